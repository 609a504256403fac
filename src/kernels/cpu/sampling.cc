// Sampling without sorting: a radix selection over the logits' ordered bits finds where top-k and top-p cut, after a
// first pass has left only the tokens that can matter. Scratch is one vector per thread that grows once.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/vector_ops.h"
#include "kernels/ops.h"

namespace moesaic {
namespace {

// Unsigned order of keys = order of values. -0 and 0 share a key; NaN comes last.
uint32_t order_key(float value) {
  if (std::isnan(value)) return 0;
  const uint32_t bits = std::bit_cast<uint32_t>(value + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// NaN counts as 0. Four sums, or each addition would wait for the one before.
double sum_of(const float* x, int64_t n) {
  double sums[4] = {};
  for (int64_t i = 0; i < n; ++i) sums[i % 4] += x[i] >= 0.0f ? static_cast<double>(x[i]) : 0.0;
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

struct Candidate {
  int32_t id;
  float logit;
  float weight;  // exp((logit - max) / temperature): the most probable token has 1
};

// Candidates are kept by id, so that the uniform number means the same token whatever the cuts needed.
class Sampler {
 public:
  Sampler(const SampleArgs& args, float max) : args_(args), max_(max), inverse_temperature_(1.0f / args.temperature) {}

  int32_t sample() {
    const int64_t vocab = static_cast<int64_t>(args_.logits.size());
    const bool by_rank = args_.top_k > 0 && args_.top_k < vocab;
    const bool by_mass = args_.top_p < 1.0f;
    if (by_rank) {
      take_best_bins();
      cut(args_.top_k, [](const Candidate&) { return 1.0; });
    } else {
      take_all(by_mass ? 1.0 - std::max(args_.top_p, 0.0f) : 0.0);
    }
    if (by_mass) {
      if (by_rank) total_ = mass();
      cut(total_ * std::max(args_.top_p, 0.0f), [](const Candidate& c) { return static_cast<double>(c.weight); });
    }
    return pick();
  }

 private:
  // Candidates for top_k: a coarse histogram, then the tokens of the bins that the best top_k reach into.
  void take_best_bins() {
    constexpr int kShift = 20;
    int32_t counts[1 << (32 - kShift)] = {};
    for (const float logit : args_.logits) ++counts[order_key(logit) >> kShift];
    uint32_t lowest = (1u << (32 - kShift)) - 1;
    for (int64_t above = counts[lowest]; above < args_.top_k && lowest > 0;) above += counts[--lowest];
    candidates_.clear();
    for (size_t i = 0; i < args_.logits.size(); ++i) {
      const float logit = args_.logits[i];
      if (order_key(logit) >> kShift >= lowest && !std::isnan(logit)) {
        candidates_.push_back({static_cast<int32_t>(i), logit, 0.0f});
      }
    }
    float values[kBlock];
    for (size_t begin = 0; begin < candidates_.size(); begin += kBlock) {
      const size_t count = std::min(candidates_.size() - begin, kBlock);
      for (size_t i = 0; i < count; ++i) values[i] = candidates_[begin + i].logit;
      vector_ops().exp_shifted(values, max_, inverse_temperature_, static_cast<int64_t>(count), values);
      for (size_t i = 0; i < count; ++i) candidates_[begin + i].weight = values[i];
    }
  }

  // All tokens but the lightest, which together weigh at most `tail` of the total: top_p cuts above them.
  void take_all(double tail) {
    const int64_t vocab = static_cast<int64_t>(args_.logits.size());
    weights_.resize(vocab);
    vector_ops().exp_shifted(args_.logits.data(), max_, inverse_temperature_, vocab, weights_.data());
    total_ = sum_of(weights_.data(), vocab);
    const float least = static_cast<float>(0.5 * tail * total_ / static_cast<double>(vocab));
    candidates_.clear();
    for (int64_t i = 0; i < vocab; ++i) {
      if (weights_[i] >= least && weights_[i] > 0.0f) {
        candidates_.push_back({static_cast<int32_t>(i), args_.logits[i], weights_[i]});
      }
    }
  }

  double mass() const {
    double total = 0.0;
    for (const Candidate& c : candidates_) total += c.weight;
    return total;
  }

  // Keeps the smallest set of best tokens whose mass reaches `need` (lower ids first among equals), at least one.
  template <typename Mass>
  void cut(double need, Mass&& mass_of) {
    constexpr int kShifts[] = {21, 10, 0}, kBits[] = {11, 11, 10};
    uint32_t prefix = 0;
    double above = 0.0;
    for (int round = 0; round < 3; ++round) {
      const int shift = kShifts[round], bits = kBits[round];
      double bins[2048] = {};
      bool used[2048] = {};
      for (const Candidate& c : candidates_) {
        const uint32_t key = order_key(c.logit);
        if (round > 0 && key >> (shift + bits) != prefix) continue;
        const uint32_t bin = (key >> shift) & ((1u << bits) - 1);
        bins[bin] += mass_of(c);
        used[bin] = true;
      }
      int chosen = -1;
      for (int bin = (1 << bits) - 1; bin >= 0; --bin) {
        if (!used[bin]) continue;
        if (chosen >= 0) above += bins[chosen];
        chosen = bin;
        if (above + bins[bin] >= need) break;
      }
      prefix = prefix << bits | static_cast<uint32_t>(chosen);
    }
    double taken = above;
    bool first = true;
    std::erase_if(candidates_, [&](const Candidate& c) {
      const uint32_t key = order_key(c.logit);
      if (key != prefix) return key < prefix;
      if (taken >= need && !first) return true;
      first = false;
      taken += mass_of(c);
      return false;
    });
  }

  int32_t pick() const {
    double total = 0.0;
    for (const Candidate& c : candidates_) total += c.weight >= args_.min_p ? c.weight : 0.0f;
    const double target = args_.uniform * total;
    double sum = 0.0;
    int32_t picked = -1;
    for (const Candidate& c : candidates_) {
      if (c.weight < args_.min_p || c.weight == 0.0f) continue;
      picked = c.id;  // the last one stands if rounding leaves the sum below the target
      sum += c.weight;
      if (sum > target) break;
    }
    return picked;
  }

  static constexpr size_t kBlock = 256;
  static thread_local std::vector<Candidate> candidates_;
  static thread_local std::vector<float> weights_;

  const SampleArgs& args_;
  const float max_;
  const float inverse_temperature_;
  double total_ = 0.0;
};

thread_local std::vector<Candidate> Sampler::candidates_;
thread_local std::vector<float> Sampler::weights_;

}  // namespace

int32_t sample_token(const SampleArgs& args) {
  const int64_t vocab = static_cast<int64_t>(args.logits.size());
  const float max = vector_ops().max(args.logits.data(), vocab);
  const int64_t best = vector_ops().find(args.logits.data(), vocab, max);
  if (best == vocab) return -1;
  const bool greedy = !(args.temperature > 0.0f) || std::isinf(1.0f / args.temperature) || std::isinf(max);
  if (greedy) return static_cast<int32_t>(best);
  return Sampler(args, max).sample();
}

float log_sum_exp(std::span<const float> logits) {
  constexpr int64_t kBlock = 1024;
  const int64_t n = static_cast<int64_t>(logits.size());
  const float max = vector_ops().max(logits.data(), n);
  if (std::isinf(max)) return max;
  float weights[kBlock];
  double sum = 0.0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t count = std::min(kBlock, n - begin);
    vector_ops().exp_shifted(logits.data() + begin, max, 1.0f, count, weights);
    sum += sum_of(weights, count);
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
