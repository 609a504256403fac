#include "engine/step_sampler.h"

#include "base/check.h"
#include "base/prefetch.h"
#include "base/rng.h"

namespace moesaic {
namespace {

// The engine has put it there. Looking up the id would cost two cache misses a token.
OpenRequest& open_request_of(const Sequence& sequence) {
  return *static_cast<OpenRequest*>(sequence.request.context);
}

}  // namespace

void StepSampler::sample(const StepPlan& plan, const StepLogits& logits, int64_t begin_ns, Speculator* speculator,
                         std::vector<OpenRequest*>* touched) {
  MOESAIC_CHECK_EQ(logits.groups.size(), plan.groups.size());
  MOESAIC_CHECK_EQ(logits.vocab_size, options_.vocab_size);
  begin_ns_ = begin_ns;
  speculator_ = speculator;
  touched_ = touched;
  sampled_.clear();
  sampled_ids_.clear();
  size_t num_logit_rows = 0;
  for (const GroupPlan& group : plan.groups) {
    for (const PlannedChunk& chunk : group.chunks) num_logit_rows += chunk.num_logit_rows();
  }
  sampled_ids_.reserve(num_logit_rows);  // the spans in sampled_ stay valid
  if (speculator != nullptr) speculator->begin(plan);
  for (size_t group = 0; group < plan.groups.size(); ++group) {
    take_group(static_cast<int>(group), plan.groups[group], logits.groups[group]);
  }
}

void StepSampler::take_group(int group, const GroupPlan& plan, std::span<float> logits) {
  size_t begin = 0;
  for (size_t i = 0; i < plan.chunks.size(); ++i) {
    if (i + 2 * kPrefetchDistance < plan.chunks.size()) {
      prefetch(&scheduler_.planned(group, i + 2 * kPrefetchDistance).request);
      prefetch(scheduler_.planned(group, i + kPrefetchDistance).request.context, sizeof(OpenRequest));
    }
    const PlannedChunk& chunk = plan.chunks[i];
    const size_t count = static_cast<size_t>(chunk.num_logit_rows()) * options_.vocab_size;
    MOESAIC_CHECK_LE(begin + count, logits.size());
    const Sequence& sequence = scheduler_.planned(group, i);
    const std::span<const int32_t> accepted = take_chunk(sequence, chunk, logits.subspan(begin, count));
    begin += count;
    if (speculator_ == nullptr) continue;
    OpenRequest& open_request = open_request_of(sequence);
    speculator_->add(group, static_cast<int32_t>(i), chunk, sequence, accepted, open_request.finished(),
                     open_request.draft_rows());
  }
}

// The tokens that the chunk adds to its sequence: its right drafts and one more; none if it does not reach the end.
std::span<const int32_t> StepSampler::take_chunk(const Sequence& sequence, const PlannedChunk& chunk,
                                                 std::span<float> rows) {
  const Request& request = sequence.request;
  OpenRequest& open_request = open_request_of(sequence);
  open_request.set_num_cached_tokens(sequence.num_cached_tokens);
  if (open_request.admit(begin_ns_)) trace_.admitted(open_request.id(), open_request.times());
  if (chunk.all_logits) collect_prompt_logprobs(chunk, rows, request, &open_request);
  if (chunk.kv_end() - chunk.num_draft < chunk.num_total) return {};
  touched_->push_back(&open_request);
  open_request.complete_prompt();
  const size_t first = sampled_ids_.size();
  const auto accepted = [&] { return std::span<const int32_t>(sampled_ids_).subspan(first); };
  if (!chunk.samples) open_request.finish(FinishReason::kLength);
  for (int32_t draft = 0; draft <= chunk.num_draft && !open_request.finished(); ++draft) {
    const std::span<float> row =
        rows.last((chunk.num_draft + 1 - draft) * options_.vocab_size).first(options_.vocab_size);
    int32_t id = sample_row(sequence, open_request, accepted(), row);
    if (id < 0) {
      open_request.finish(FinishReason::kError, open_request.no_token_error());
      break;
    }
    const bool is_last = draft == chunk.num_draft;
    const int32_t guess = is_last ? -1 : chunk.token_ids[chunk.num_tokens() - chunk.num_draft + draft];
    const bool goes_on = !is_last && is_right(request, guess, chunk.num_total + draft, &id);
    if (request.num_logprobs >= 0) fill_logprob(row, id, request.num_logprobs, open_request.new_logprob());
    open_request.add_token(request, id);
    ++num_output_tokens_;
    sampled_ids_.push_back(id);
    if (!goes_on) break;
  }
  sampled_.push_back({request.id, accepted(), open_request.finished()});
  return accepted();
}

// The token that follows the output and `accepted`: the same that would be sampled without drafts, so a guess is right
// with the probability that the model gives it, and the output's distribution is the model's.
int32_t StepSampler::sample_row(const Sequence& sequence, OpenRequest& open_request, std::span<const int32_t> accepted,
                                std::span<float> row) {
  const Request& request = sequence.request;
  const std::span<const uint64_t> allowed = open_request.allowed_tokens(request);
  if (accepted.empty()) return sampler_.sample(request, sequence.output_ids, allowed, row);
  // One token more than in the call before.
  if (accepted.size() == 1) output_ids_.assign(sequence.output_ids.begin(), sequence.output_ids.end());
  output_ids_.push_back(accepted.back());
  return sampler_.sample(request, output_ids_, allowed, row);
}

bool StepSampler::is_right(const Request& request, int32_t draft, int32_t position, int32_t* id) const {
  if (options_.synthetic_acceptance < 0 || request.grammar) return *id == draft;
  Rng rng(request.sampling.seed ^ (uint64_t{0x9e3779b97f4a7c15} * (position + 1)));
  const bool right = rng.uniform() < options_.synthetic_acceptance;
  if (right) *id = draft;
  return right;
}

// Row i of the chunk says what follows position kv_begin + i. The last prompt position is followed by the output.
void StepSampler::collect_prompt_logprobs(const PlannedChunk& chunk, std::span<float> rows, const Request& request,
                                          OpenRequest* open_request) {
  const auto num_prompt = static_cast<int32_t>(request.prompt_ids.size());
  for (int32_t i = 0; i < chunk.num_tokens(); ++i) {
    const int32_t next = chunk.kv_begin + i + 1;
    if (next >= num_prompt) return;
    MOESAIC_CHECK_EQ(next, open_request->num_prompt_logprobs() + 1);
    fill_logprob(rows.subspan(i * options_.vocab_size, options_.vocab_size), request.prompt_ids[next],
                 request.num_logprobs, open_request->new_prompt_logprob());
  }
}

}  // namespace moesaic
