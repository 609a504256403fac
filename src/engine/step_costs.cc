#include "engine/step_costs.h"

#include <algorithm>
#include <limits>

namespace moesaic {
namespace {

constexpr int kRepetitions = 5;               // the fastest counts
constexpr int64_t kBudgetNs = 1'000'000'000;  // of all measurements
constexpr int64_t kMaxRows = 32;              // beyond, time is taken to go on as between the last two
constexpr int32_t kShortKeys = 16;            // cached rows of a sequence in the steps that vary the rows
constexpr int64_t kTokenStride = 7919;        // prime
constexpr int64_t kLongKeys = 2048;           // and in the step that shows what keys cost

// Steps in which every group decodes `rows` sequences that have `keys` cached rows. Sequences share the blocks: nobody
// reads what they compute.
class Probe {
 public:
  Probe(Executor& executor, const StepCostOptions& options, const Clock& clock)
      : executor_(executor), options_(options), clock_(clock), begin_ns_(clock.now_ns()) {}

  bool out_of_time() const { return clock_.now_ns() - begin_ns_ > kBudgetNs; }

  // Nanoseconds of the step, and of a level of drafts after it.
  absl::Status run(int64_t rows, int32_t keys, double* step_ns, double* draft_ns) {
    fill(rows, keys);
    *step_ns = *draft_ns = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kRepetitions && (i == 0 || !out_of_time()); ++i) {
      plan_.step_id = ++step_id_;
      const int64_t begin = clock_.now_ns();
      MOESAIC_RETURN_IF_ERROR(executor_.execute(plan_, &logits_));
      const int64_t middle = clock_.now_ns();
      MOESAIC_RETURN_IF_ERROR(executor_.draft(plan_, drafts_, &tokens_));
      *step_ns = std::min(*step_ns, static_cast<double>(middle - begin));
      *draft_ns = std::min(*draft_ns, static_cast<double>(clock_.now_ns() - middle));
    }
    return absl::OkStatus();
  }

 private:
  void fill(int64_t rows, int32_t keys) {
    plan_.groups.assign(options_.dp_size, {});
    drafts_.groups.assign(options_.dp_size, {});
    drafts_.depth = 1;
    const int num_blocks = (keys + 1 + options_.kv_block_tokens - 1) / options_.kv_block_tokens;
    for (int group = 0; group < options_.dp_size; ++group) {
      for (int64_t row = 0; row < rows; ++row) {
        PlannedChunk& chunk = plan_.groups[group].chunks.emplace_back();
        // Different tokens: equal ones would share their experts.
        chunk.token_ids = {static_cast<int32_t>((row + 1) * kTokenStride % options_.vocab_size)};
        chunk.kv_begin = keys;
        chunk.num_total = keys + 1;
        chunk.samples = true;
        for (int block = 0; block < num_blocks; ++block) {
          chunk.block_table.push_back(static_cast<int32_t>((row * num_blocks + block) % options_.num_kv_blocks));
        }
        drafts_.groups[group].chunks.push_back({.chunk = static_cast<int32_t>(row), .num_rows = 1, .depth = 1});
        drafts_.groups[group].next_ids.push_back(chunk.token_ids[0]);
      }
      plan_.groups[group].num_decode_tokens = static_cast<int32_t>(rows);
    }
  }

  Executor& executor_;
  const StepCostOptions& options_;
  const Clock& clock_;
  const int64_t begin_ns_;
  int64_t step_id_ = std::numeric_limits<int64_t>::min();  // no step of the scheduler
  StepPlan plan_;
  StepLogits logits_;
  DraftPlan drafts_;
  DraftTokens tokens_;
};

}  // namespace

StepCosts::StepCosts(const Linear& costs)
    : step_{{0, costs.step_ns}, {1, costs.step_ns + costs.row_ns}},
      draft_{{0, costs.draft_ns}, {1, costs.draft_ns + costs.draft_row_ns}},
      key_ns_(costs.key_ns) {}

absl::StatusOr<StepCosts> StepCosts::measure(Executor& executor, const StepCostOptions& options, const Clock& clock) {
  StepCosts costs;
  Probe probe(executor, options, clock);
  double step_ns = 0, draft_ns = 0;
  const auto short_keys = static_cast<int32_t>(std::min<int64_t>(kShortKeys, options.context_length - 1));
  MOESAIC_RETURN_IF_ERROR(probe.run(1, short_keys, &step_ns, &draft_ns));  // the first step is always slow
  for (int64_t rows = 1; rows <= std::min(options.max_rows, kMaxRows); rows *= 2) {
    if (costs.step_.size() >= 2 && probe.out_of_time()) break;
    MOESAIC_RETURN_IF_ERROR(probe.run(rows, short_keys, &step_ns, &draft_ns));
    costs.step_.push_back({static_cast<double>(rows), step_ns});
    costs.draft_.push_back({static_cast<double>(rows), draft_ns});
  }
  // Fewer rows never take longer: what says so was disturbed.
  for (std::vector<Point>* points : {&costs.step_, &costs.draft_}) {
    for (size_t i = points->size() - 1; i > 0; --i)
      (*points)[i - 1].ns = std::min((*points)[i - 1].ns, (*points)[i].ns);
  }
  const int64_t room = int64_t{options.num_kv_blocks} * options.kv_block_tokens;
  const auto long_keys = static_cast<int32_t>(std::min({kLongKeys, room - 1, options.context_length - 1}));
  if (long_keys <= 2 * short_keys) return costs;
  MOESAIC_RETURN_IF_ERROR(probe.run(1, long_keys, &step_ns, &draft_ns));
  costs.key_ns_ = std::max(0.0, (step_ns - costs.step_[0].ns) / (long_keys - short_keys));
  return costs;
}

double StepCosts::interpolate(const std::vector<Point>& points, double rows) {
  if (points.size() == 1) return points[0].ns;
  size_t right = 1;
  while (right + 1 < points.size() && points[right].rows < rows) ++right;
  const Point &a = points[right - 1], &b = points[right];
  return a.ns + (b.ns - a.ns) * (rows - a.rows) / (b.rows - a.rows);
}

std::string StepCosts::to_string() const {
  std::string text;
  for (size_t i = 0; i < step_.size(); ++i) {
    text += str_cat(i == 0 ? "" : ", ", step_[i].rows, " rows ", step_[i].ns * 1e-6, " + ", draft_[i].ns * 1e-6, " ms");
  }
  return str_cat(text, "; a cached row ", key_ns_ * 1e-3, " us");
}

}  // namespace moesaic
