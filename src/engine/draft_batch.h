// DraftBatch: one DP group's part of a DraftPlan as batches for the draft module, one a level. Level 0 takes the step's
// rows whose next tokens are known and guesses the first token; each further level takes what the level before guessed,
// one row a chunk. Made by the engine thread, read by the ranks of the group; keeps its memory from step to step.
// Borrows the block tables of the StepPlan.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/executor.h"
#include "model/deepseek.h"

namespace moesaic {

class DraftBatch {
 public:
  explicit DraftBatch(int max_depth) : levels_(max_depth) {}

  void assign(const GroupPlan& plan, const GroupDraft& draft, int depth);

  // token_ids holds zeros: the module is told the tokens separately. a2a_mode is left to the lockstep.
  ForwardBatch forward_batch(int level) const;
  // Rows of the previous forward's hidden states (level 0: of the step) that this level continues, ascending.
  std::span<const int32_t> hidden_rows(int level) const { return levels_[level].hidden_rows; }
  // Level 0: the tokens after its rows.
  std::span<const int32_t> next_ids() const { return next_ids_; }
  // Level 1 and up: for each row, which of the level before's guesses it takes.
  std::span<const int32_t> guess_rows(int level) const { return levels_[level].guess_rows; }
  // For each guess of a level: which chunk of the GroupDraft it belongs to.
  std::span<const int32_t> guess_chunks(int level) const { return levels_[level].guess_chunks; }
  int32_t num_prefill_rows() const { return num_prefill_rows_; }  // of level 0
  int32_t num_rows(int level) const { return static_cast<int32_t>(levels_[level].hidden_rows.size()); }

 private:
  struct Level {
    std::vector<int32_t> hidden_rows;
    std::vector<int32_t> guess_rows;
    std::vector<SequenceChunk> chunks;
    std::vector<int32_t> logit_rows;
    std::vector<int32_t> guess_chunks;
    void clear();
  };

  void add_rows(const PlannedChunk& chunk, int32_t step_row, int32_t num_rows);
  void chain(const GroupPlan& plan, const GroupDraft& draft, int level);

  std::vector<Level> levels_;
  std::vector<int32_t> next_ids_;
  std::vector<int32_t> zeros_;
  int32_t num_prefill_rows_ = 0;
};

}  // namespace moesaic
