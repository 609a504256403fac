#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/rng.h"
#include "engine/engine.h"
#include "kernels/ops.h"

namespace moesaic {
namespace {

constexpr float kBanned = -std::numeric_limits<float>::infinity();

}  // namespace

void Sampler::adjust(const Request& request, std::span<const int32_t> output_ids, std::span<float> logits) const {
  const SamplingParams& sampling = request.sampling;
  apply_penalties({.logits = logits,
                   .prompt_ids = request.prompt_ids,
                   .output_ids = output_ids,
                   .frequency_penalty = sampling.frequency_penalty,
                   .presence_penalty = sampling.presence_penalty,
                   .repetition_penalty = sampling.repetition_penalty});
  for (const auto& [id, bias] : sampling.logit_bias) logits[id] += bias;
  if (static_cast<int64_t>(output_ids.size()) >= sampling.min_tokens) return;
  for (const int32_t id : request.stop_token_ids) logits[id] = kBanned;
  if (request.ignore_eos) return;
  for (const int32_t id : eos_token_ids_) logits[id] = kBanned;
}

void apply_mask(std::span<const uint64_t> allowed, std::span<float> logits) {
  for (size_t word = 0; word < allowed.size(); ++word) {
    if (allowed[word] == ~uint64_t{0}) continue;
    const size_t begin = word * 64;
    const size_t end = std::min(begin + 64, logits.size());
    for (size_t i = begin; i < end; ++i) {
      if ((allowed[word] >> (i - begin) & 1) == 0) logits[i] = kBanned;
    }
  }
}

int32_t Sampler::sample(const Request& request, std::span<const int32_t> output_ids, std::span<const uint64_t> allowed,
                        std::span<float> logits) const {
  adjust(request, output_ids, logits);
  apply_mask(allowed, logits);
  const size_t position = output_ids.size();
  if (!script_.empty()) {
    if (position < script_.size()) return script_[position];
    return eos_token_ids_.empty() ? script_.back() : eos_token_ids_[0];
  }
  const SamplingParams& sampling = request.sampling;
  const int32_t id = sample_token({.logits = logits,
                                   .temperature = sampling.temperature,
                                   .top_k = std::max(sampling.top_k, 0),
                                   .top_p = sampling.top_p,
                                   .min_p = sampling.min_p,
                                   .uniform = Rng(sampling.seed, position).uniform()});
  // With nothing but banned tokens there is still a largest logit.
  const bool is_allowed = allowed.empty() || (id >= 0 && (allowed[id >> 6] >> (id & 63) & 1) != 0);
  return is_allowed ? id : -1;
}

void fill_logprob(std::span<const float> logits, int32_t id, int32_t num_top, TokenLogprob* logprob) {
  const float total = log_sum_exp(logits);
  logprob->id = id;
  logprob->logprob = logits[id] - total;
  auto& top = logprob->top;
  top.clear();
  if (num_top <= 0) return;
  top.reserve(static_cast<size_t>(num_top) + 1);
  for (size_t i = 0; i < logits.size(); ++i) {
    const float logit = logits[i];
    const bool full = static_cast<int32_t>(top.size()) == num_top;
    if (!(logit > kBanned) || (full && logit <= top.back().second)) continue;
    const auto place = std::upper_bound(top.begin(), top.end(), logit,
                                        [](float value, const auto& entry) { return value > entry.second; });
    top.insert(place, {static_cast<int32_t>(i), logit});
    if (full) top.pop_back();
  }
  for (auto& entry : top) entry.second -= total;
}

}  // namespace moesaic
