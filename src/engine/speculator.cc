#include "engine/speculator.h"

#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "engine/step_measure.h"

namespace moesaic {
namespace {

constexpr double kFirstAcceptance = 0.8;    // before anything is known
constexpr double kLearningRate = 1.0 / 16;  // an unlucky text costs a few dozen slower steps, no more
// Without drafts nothing is learned: the acceptance drifts back to the first guess, so that they are tried again.
constexpr double kForgettingRate = 1.0 / 1024;
// Sequences that decode without the module miss rows in its cache and cannot draft again: it is switched off only when
// that has looked better for some steps, or much better for two. The gain is below the 2 % that drafts may ever cost,
// as those at the ends of requests come to nothing (speculation_gain_test.cc).
constexpr double kGainToSwitchOff = 1.01;
constexpr double kLargeGain = 1.15;
constexpr int kStepsToSwitchOff = 8;

}  // namespace

Speculator::Speculator(int max_depth, int dp_size, int kv_block_tokens, int64_t context_length,
                       std::shared_ptr<const StepTable> table)
    : max_depth_(max_depth),
      kv_block_tokens_(kv_block_tokens),
      context_length_(context_length),
      table_(std::move(table)),
      acceptance_(max_depth, kFirstAcceptance),
      groups_(dp_size) {
  plan_.groups.resize(dp_size);
}

void Speculator::begin(const StepPlan& plan) {
  MOESAIC_CHECK_EQ(plan.groups.size(), plan_.groups.size());
  for (GroupDraft& group : plan_.groups) {
    group.chunks.clear();
    group.next_ids.clear();
  }
  std::fill(groups_.begin(), groups_.end(), GroupState());
  wishes_.clear();
  row_counts_.clear();
}

void Speculator::add(int group, int32_t chunk_index, const PlannedChunk& chunk, const Sequence& sequence,
                     std::span<const int32_t> accepted, bool finished, int32_t* draft_rows) {
  const auto num_accepted = static_cast<int32_t>(accepted.size());
  if (chunk.num_draft > 0 && num_accepted > 0) learn(chunk, num_accepted - 1);
  // Rows whose next token is known: all but drafts that were wrong, and but the last if nothing was sampled.
  const int32_t num_rows = std::min(chunk.num_tokens(), chunk.num_total - chunk.kv_begin + num_accepted - 1);
  if (*draft_rows == 0) *draft_rows = std::min(chunk.kv_begin, sequence.num_cached_tokens);
  const bool has_rows_before = chunk.kv_begin <= *draft_rows;
  const bool decodes = chunk.num_total - chunk.kv_begin == 1 && !chunk.is_prefill;
  const bool goes_on = !finished && num_accepted > 0;
  GroupState& state = groups_[group];
  if (goes_on) {
    ++state.num_decoding;
    state.num_keys += chunk.kv_begin + num_rows;
  }
  // Prompt rows are taken in also for requests that end or cannot draft: other requests may share them.
  if (num_rows < 1 || (!chunk.is_prefill && (finished || !has_rows_before))) return;
  GroupDraft& draft = plan_.groups[group];
  draft.chunks.push_back({.chunk = chunk_index, .num_rows = num_rows, .depth = 0});
  for (int32_t next = chunk.kv_begin + 1; next <= chunk.kv_begin + num_rows; ++next) {
    draft.next_ids.push_back(next < chunk.num_total ? sequence.token(next) : accepted[next - chunk.num_total]);
  }
  if (decodes) {
    ++state.num_decode_chunks;
    MOESAIC_CHECK_EQ(state.num_decode_chunks, static_cast<int32_t>(draft.chunks.size()));
    state.num_decode_ids = static_cast<int32_t>(draft.next_ids.size());
  }
  if (!has_rows_before) return;
  row_counts_.push_back({draft_rows, chunk.kv_begin + num_rows, decodes});
  if (goes_on) add_wish(group, chunk, sequence, num_rows, num_accepted);
}

// As many guesses as the rest of the request, the context and the blocks in hand leave room for.
void Speculator::add_wish(int group, const PlannedChunk& chunk, const Sequence& sequence, int32_t num_rows,
                          int64_t num_accepted) {
  const int64_t last_row = chunk.kv_begin + num_rows - 1;
  const auto room = static_cast<int64_t>(chunk.block_table.size()) * kv_block_tokens_;
  const int64_t num_output = chunk.num_total + num_accepted - sequence.num_prompt();
  const int64_t depth = std::min(
      {int64_t{max_depth_}, std::min(room, context_length_) - last_row, sequence.request.max_tokens - num_output - 1});
  if (depth < 1) return;
  ++groups_[group].num_wishes;
  wishes_.push_back({.group = group,
                     .index = static_cast<int32_t>(plan_.groups[group].chunks.size()) - 1,
                     .request_id = chunk.request_id,
                     .max_depth = static_cast<int32_t>(depth)});
}

void Speculator::learn(const PlannedChunk& chunk, int num_right) {
  ++stats_.drafts_total;
  stats_.draft_tokens_total += chunk.num_draft;
  stats_.accepted_tokens_total += num_right;
  for (int level = 0; level < chunk.num_draft && level <= num_right; ++level) {
    acceptance_[level] += kLearningRate * ((level < num_right ? 1.0 : 0.0) - acceptance_[level]);
  }
}

// All groups step together: the largest sets the time.
double Speculator::tokens_per_s(int depth) const {
  double tokens = 0, step_s = 0, draft_s = 0, expected = 0, likely = 1;
  for (int level = 0; level < depth; ++level) expected += likely *= acceptance_[level];
  for (const GroupState& group : groups_) {
    tokens += group.num_decoding + group.num_wishes * expected;
    if (group.num_decoding == 0) continue;
    // Rows are those of the sequences on average.
    const auto work_of = [&](int64_t num_seqs, int64_t num_tokens) {
      const int64_t num_keys = group.num_keys * num_seqs / group.num_decoding;
      return GroupWork{.num_decode_seqs = num_seqs,
                       .num_decode_tokens = num_tokens,
                       .decode_kv_tokens = num_keys,
                       .decode_pairs = static_cast<double>(num_keys * num_tokens) / static_cast<double>(num_seqs)};
    };
    const int64_t num_tokens = group.num_decoding + int64_t{group.num_wishes} * depth;
    step_s = std::max(step_s, table_->seconds(table_->step, work_of(group.num_decoding, num_tokens)));
    if (depth == 0 || group.num_wishes == 0) continue;
    draft_s = std::max(draft_s, depth * table_->seconds(table_->draft, work_of(group.num_wishes, group.num_wishes)));
  }
  return tokens / (step_s + draft_s);
}

int Speculator::choose_depth() {
  if (wishes_.empty()) return 0;
  if (!table_) return max_depth_;
  const double without = tokens_per_s(0);
  double best = 0;
  int depth = 1;
  for (int candidate = 1; candidate <= max_depth_; ++candidate) {
    const double rate = tokens_per_s(candidate);
    if (rate <= best) continue;
    best = rate;
    depth = candidate;
  }
  const int evidence = without > best * kLargeGain ? kStepsToSwitchOff / 2 : 1;
  // Once it is off, drafts must pay to come back: a few sequences that may draft look nearly free, more and more do
  // not.
  const double needed = num_better_without_ == kStepsToSwitchOff ? 1.0 : kGainToSwitchOff;
  num_better_without_ = without > best * needed ? std::min(num_better_without_ + evidence, kStepsToSwitchOff) : 0;
  if (num_better_without_ < kStepsToSwitchOff) return depth;
  for (double& acceptance : acceptance_) acceptance += kForgettingRate * (kFirstAcceptance - acceptance);
  return 0;
}

// What only keeps the module ready to draft later.
void Speculator::drop_decode_chunks() {
  for (size_t group = 0; group < groups_.size(); ++group) {
    GroupDraft& draft = plan_.groups[group];
    draft.chunks.erase(draft.chunks.begin(), draft.chunks.begin() + groups_[group].num_decode_chunks);
    draft.next_ids.erase(draft.next_ids.begin(), draft.next_ids.begin() + groups_[group].num_decode_ids);
  }
  std::erase_if(row_counts_, [](const RowCount& count) { return count.decodes; });
  wishes_.clear();
}

absl::Status Speculator::draft(const StepPlan& plan, Executor& executor) {
  depth_ = choose_depth();
  if (depth_ == 0) drop_decode_chunks();
  plan_.depth = 0;
  for (const Wish& wish : wishes_) {
    int32_t& depth = plan_.groups[wish.group].chunks[wish.index].depth;
    depth = std::min(wish.max_depth, depth_);
    plan_.depth = std::max(plan_.depth, depth);
  }
  for (const RowCount& count : row_counts_) *count.rows = count.value;
  for (const GroupDraft& group : plan_.groups) {
    if (!group.chunks.empty()) return executor.draft(plan, plan_, &tokens_);
  }
  return absl::OkStatus();
}

void Speculator::hand_over(Scheduler& scheduler) {
  for (const Wish& wish : wishes_) {
    const int32_t depth = plan_.groups[wish.group].chunks[wish.index].depth;
    if (depth == 0) continue;
    const std::vector<int32_t>& tokens = tokens_.groups[wish.group];
    scheduler.set_draft(wish.request_id, std::span(tokens).subspan(wish.index * plan_.depth, depth));
  }
}

absl::Status make_speculator(const EngineOptions& options, Executor& executor, const Clock& clock,
                             std::optional<Speculator>* speculator) {
  const int max_depth = std::min(options.max_draft_depth, executor.max_draft_depth());
  if (max_depth == 0) return absl::OkStatus();
  std::shared_ptr<const StepTable> table;
  if (options.adaptive_draft_depth) table = options.step_table;
  if (options.adaptive_draft_depth && !table) {
    MOESAIC_ASSIGN_OR_RETURN(StepTable measured, measure_steps(executor, options, StepMeasureOptions(), clock));
    log_debug(str_cat("steps and drafts take: ", measured.to_json()));
    table = std::make_shared<const StepTable>(std::move(measured));
  }
  speculator->emplace(max_depth, options.dp_size, options.kv_block_tokens, options.context_length, std::move(table));
  return absl::OkStatus();
}

}  // namespace moesaic
