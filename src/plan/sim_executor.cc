#include "plan/sim_executor.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace moesaic {
namespace {

// At least a nanosecond: virtual time never stands still while steps run.
int64_t to_ns(double seconds) {
  return std::max<int64_t>(std::llround(seconds * 1e9), 1);
}

}  // namespace

SimExecutor::SimExecutor(const StepTimer& timer, int max_draft_depth, Hooks hooks)
    : timer_(timer), max_draft_depth_(max_draft_depth), hooks_(std::move(hooks)) {}

absl::Status SimExecutor::execute(const StepPlan& plan, StepLogits* logits) {
  work_.assign(plan);
  const int64_t duration_ns = to_ns(timer_.step_s(work_));
  if (hooks_.on_step) hooks_.on_step(work_, duration_ns);
  hooks_.advance(duration_ns);
  int64_t num_rows = 0;
  for (const int64_t rows : work_.logit_rows) num_rows = std::max(num_rows, rows);
  // Greedy sampling without penalties reads and never writes: the groups share the rows.
  if (std::ssize(zeros_) < num_rows * kVocabSize) zeros_.assign(num_rows * kVocabSize, 0.0f);
  logits->vocab_size = kVocabSize;
  logits->groups.clear();
  for (const int64_t rows : work_.logit_rows) logits->groups.push_back(std::span(zeros_).first(rows * kVocabSize));
  return absl::OkStatus();
}

absl::Status SimExecutor::draft(const StepPlan& plan, const DraftPlan& drafts, DraftTokens* tokens) {
  tokens->groups.resize(drafts.groups.size());
  for (size_t g = 0; g < drafts.groups.size(); ++g) {
    tokens->groups[g].assign(drafts.groups[g].chunks.size() * drafts.depth, -1);
    for (size_t i = 0; i < drafts.groups[g].chunks.size(); ++i) {
      std::fill_n(tokens->groups[g].begin() + static_cast<int64_t>(i) * drafts.depth, drafts.groups[g].chunks[i].depth,
                  1);
    }
  }
  double seconds = 0.0;
  for (int level = 0; level < std::max(drafts.depth, 1); ++level) {
    work_.assign(plan, drafts, level);
    seconds += timer_.draft_level_s(work_);
  }
  hooks_.advance(to_ns(seconds));
  return absl::OkStatus();
}

}  // namespace moesaic
