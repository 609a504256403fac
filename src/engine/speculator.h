// Speculator: which tokens the draft module guesses for the next step, and how many. The depth is the one that gives
// most tokens a second, by a StepTable and by how often guesses of each level were right lately; it is common to all DP
// groups. Output never depends on it: a guess is accepted when it is the token that would have been sampled anyway.
// Engine thread; no clock, no randomness: same calls, same depth.
//
//   speculator.begin(plan);
//   speculator.add(...) for every chunk, after its tokens were sampled;
//   speculator.draft(plan, executor);   // before Scheduler::apply
//   speculator.hand_over(scheduler);    // after it
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/executor.h"
#include "engine/step_table.h"
#include "sched/scheduler.h"

namespace moesaic {

class Speculator {
 public:
  // `table`: null = always the largest depth.
  Speculator(int max_depth, int dp_size, int kv_block_tokens, int64_t context_length,
             std::shared_ptr<const StepTable> table);

  void begin(const StepPlan& plan);
  // What became of a chunk: `accepted` are its sampled tokens (none if it did not reach the end), of which the last was
  // not drafted. *draft_rows: rows of the sequence in the module's cache, 0 at first; kept by the caller and written by
  // draft().
  void add(int group, int32_t chunk_index, const PlannedChunk& chunk, const Sequence& sequence,
           std::span<const int32_t> accepted, bool finished, int32_t* draft_rows);
  absl::Status draft(const StepPlan& plan, Executor& executor);
  void hand_over(Scheduler& scheduler);

  int depth() const { return depth_; }  // of the last draft()
  const SpeculationStats& stats() const { return stats_; }
  // By level: how often the guess of that level was right when those before it were, lately.
  std::span<const double> acceptance() const { return acceptance_; }

 private:
  struct Wish {
    int group;
    int32_t index;  // in DraftPlan::groups[group].chunks
    RequestId request_id;
    int32_t max_depth;
  };
  struct GroupState {
    int32_t num_wishes = 0;
    int32_t num_decoding = 0;       // sequences that decode in the next step
    int64_t num_keys = 0;           // their cached rows
    int32_t num_decode_chunks = 0;  // the first of the draft plan's
    int32_t num_decode_ids = 0;
  };
  struct RowCount {
    int32_t* rows;
    int32_t value;
    bool decodes;
  };

  void add_wish(int group, const PlannedChunk& chunk, const Sequence& sequence, int32_t num_rows, int64_t num_accepted);
  int choose_depth();
  void drop_decode_chunks();
  double tokens_per_s(int depth) const;
  void learn(const PlannedChunk& chunk, int num_right);

  const int max_depth_;
  const int kv_block_tokens_;
  const int64_t context_length_;
  const std::shared_ptr<const StepTable> table_;
  std::vector<double> acceptance_;
  std::vector<Wish> wishes_;
  std::vector<RowCount> row_counts_;
  std::vector<GroupState> groups_;
  int depth_ = 0;
  int num_better_without_ = 0;  // steps in a row, those with a large gain counted more
  SpeculationStats stats_;
  DraftPlan plan_;
  DraftTokens tokens_;
};

// Speculates if the options and the executor have drafts. With adaptive depth and no step_table, measures what steps
// take first; errors are the executor's.
absl::Status make_speculator(const EngineOptions& options, Executor& executor, const Clock& clock,
                             std::optional<Speculator>* speculator);

}  // namespace moesaic
