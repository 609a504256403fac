// Sampling without sorting: a radix selection over the logits' ordered bits finds where top-k and top-p cut, in a few
// passes over the vocabulary and without scratch that grows with it.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/ops.h"

namespace moesaic {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Unsigned order of keys = order of values. -0 and 0 share a key. NaN is the caller's to skip.
uint32_t order_key(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The kept set: keys above `key`, and the first `ties` (by id) of those equal to it.
struct Cut {
  uint32_t key = 0;
  int64_t ties = std::numeric_limits<int64_t>::max();
};

class Sampler {
 public:
  Sampler(const SampleArgs& args, float max) : args_(args), max_(max) {}

  int32_t sample() {
    const int64_t vocab = static_cast<int64_t>(args_.logits.size());
    if (args_.top_k > 0 && args_.top_k < vocab) {
      cut_ = select(static_cast<double>(args_.top_k), [](float) { return 1.0; });
    }
    if (args_.top_p < 1.0f) {
      const double total = mass();
      cut_ = select(total * std::max(args_.top_p, 0.0f), [this](float logit) { return weight(logit); });
    }
    min_weight_ = args_.min_p;
    return pick();
  }

 private:
  // Relative to the most probable token, whose weight is 1.
  double weight(float logit) const {
    return logit == max_ ? 1.0 : static_cast<double>(std::exp((logit - max_) / args_.temperature));
  }

  // visit(id, logit) for the kept set, by id, until it returns false.
  template <typename Visit>
  void for_kept(Visit&& visit) const {
    int64_t ties = cut_.ties;
    for (size_t i = 0; i < args_.logits.size(); ++i) {
      const float logit = args_.logits[i];
      if (std::isnan(logit)) continue;
      const uint32_t key = order_key(logit);
      if (key < cut_.key || (key == cut_.key && ties-- <= 0)) continue;
      if (!visit(static_cast<int32_t>(i), logit)) return;
    }
  }

  double mass() const {
    double total = 0.0;
    for_kept([&](int32_t, float logit) {
      total += weight(logit);
      return true;
    });
    return total;
  }

  // The smallest set of best tokens, within the kept set, whose mass reaches `need`; at least one token.
  template <typename Mass>
  Cut select(double need, Mass&& mass_of) const {
    constexpr int kShifts[] = {21, 10, 0}, kBits[] = {11, 11, 10};
    uint32_t prefix = 0;
    double above = 0.0;
    for (int round = 0; round < 3; ++round) {
      const int shift = kShifts[round], bits = kBits[round];
      double bins[2048] = {};
      bool used[2048] = {};
      for_kept([&](int32_t, float logit) {
        const uint32_t key = order_key(logit);
        if (round > 0 && key >> (shift + bits) != prefix) return true;
        const uint32_t bin = (key >> shift) & ((1u << bits) - 1);
        bins[bin] += mass_of(logit);
        used[bin] = true;
        return true;
      });
      int chosen = -1;
      for (int bin = (1 << bits) - 1; bin >= 0; --bin) {
        if (!used[bin]) continue;
        if (chosen >= 0) above += bins[chosen];
        chosen = bin;
        if (above + bins[bin] >= need) break;
      }
      prefix = prefix << bits | static_cast<uint32_t>(chosen);
    }
    double one = 0.0;
    int64_t count = 0;
    for_kept([&](int32_t, float logit) {
      if (order_key(logit) == prefix) one = mass_of(logit), ++count;
      return true;
    });
    const double wanted = one > 0.0 ? std::ceil((need - above) / one) : static_cast<double>(count);
    return {prefix, static_cast<int64_t>(std::clamp(wanted, 1.0, static_cast<double>(count)))};
  }

  int32_t pick() const {
    double total = 0.0;
    for_kept([&](int32_t, float logit) {
      const double w = weight(logit);
      if (w >= min_weight_) total += w;
      return true;
    });
    const double target = args_.uniform * total;
    double sum = 0.0;
    int32_t picked = -1;
    for_kept([&](int32_t id, float logit) {
      const double w = weight(logit);
      if (w < min_weight_ || w == 0.0) return true;
      picked = id;  // the last one stands if rounding leaves the sum below the target
      sum += w;
      return sum <= target;
    });
    return picked;
  }

  const SampleArgs& args_;
  const float max_;
  Cut cut_;
  double min_weight_ = 0.0;
};

}  // namespace

int32_t sample_token(const SampleArgs& args) {
  int32_t best = -1;
  float max = -kInfinity;
  for (size_t i = 0; i < args.logits.size(); ++i) {
    if (args.logits[i] > max || (best < 0 && args.logits[i] == max))
      max = args.logits[i], best = static_cast<int32_t>(i);
  }
  if (best < 0 || !(args.temperature > 0.0f) || std::isinf(max)) return best;
  return Sampler(args, max).sample();
}

float log_sum_exp(std::span<const float> logits) {
  float max = -kInfinity;
  for (const float logit : logits) max = std::max(max, logit);
  if (std::isinf(max)) return max;
  double sum = 0.0;
  for (const float logit : logits) {
    if (!std::isnan(logit)) sum += static_cast<double>(std::exp(logit - max));
  }
  return static_cast<float>(static_cast<double>(max) + std::log(sum));
}

void apply_penalties(const PenaltyArgs& args) {
  if (args.frequency_penalty == 0.0f && args.presence_penalty == 0.0f && args.repetition_penalty == 1.0f) return;
  // Occurrences in the output; -1: in the prompt only. All zero between calls; grows once per thread and vocabulary.
  static thread_local std::vector<int32_t> counts;
  const int64_t vocab = static_cast<int64_t>(args.logits.size());
  if (static_cast<int64_t>(counts.size()) < vocab) counts.resize(vocab);
  for (const int32_t id : args.output_ids) {
    MOESAIC_CHECK(id >= 0 && id < vocab);
    ++counts[id];
  }
  for (const int32_t id : args.prompt_ids) {
    MOESAIC_CHECK(id >= 0 && id < vocab);
    if (counts[id] == 0) counts[id] = -1;
  }
  const auto apply = [&](int32_t id) {
    const int32_t count = counts[id];
    if (count == 0) return;
    counts[id] = 0;
    float& logit = args.logits[id];
    logit = logit > 0.0f ? logit / args.repetition_penalty : logit * args.repetition_penalty;
    if (count > 0) logit -= args.frequency_penalty * static_cast<float>(count) + args.presence_penalty;
  };
  for (const int32_t id : args.output_ids) apply(id);
  for (const int32_t id : args.prompt_ids) apply(id);
}

}  // namespace moesaic
