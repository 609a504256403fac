// Expert selection. Everything stays f32: rounding the correction bias would change the routing of most tokens.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/vector_ops.h"
#include "kernels/ops.h"

namespace moesaic {
namespace {

constexpr int64_t kMaxExperts = 2048;
constexpr int64_t kMaxGroups = 256;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// False if a score is NaN.
bool compute_scores(ScoringFunc func, const float* logits, int64_t num_experts, float* scores) {
  if (func == ScoringFunc::kSigmoid) {
    vector_ops().sigmoid(logits, num_experts, scores);
  } else {
    float max = -kInfinity, sum = 0.0f;
    for (int64_t e = 0; e < num_experts; ++e) max = std::max(max, logits[e]);
    vector_ops().exp_shifted(logits, max, 1.0f, num_experts, scores);
    for (int64_t e = 0; e < num_experts; ++e) sum += scores[e];
    for (int64_t e = 0; e < num_experts; ++e) scores[e] /= sum;
  }
  return std::none_of(scores, scores + num_experts, [](float s) { return std::isnan(s); });
}

// Index of the largest value, the lowest on ties; -1 if all are -infinity (taken, or outside the kept groups).
int64_t take_best(float* values, int64_t count) {
  int64_t best = -1;
  float best_value = -kInfinity;
  for (int64_t i = 0; i < count; ++i) {
    if (values[i] > best_value) best_value = values[i], best = i;
  }
  if (best >= 0) values[best] = -kInfinity;
  return best;
}

float group_score(TopkMethod method, const float* values, int64_t count) {
  float first = -kInfinity, second = -kInfinity;
  for (int64_t i = 0; i < count; ++i) {
    if (values[i] > first) {
      second = first;
      first = values[i];
    } else if (values[i] > second) {
      second = values[i];
    }
  }
  return method == TopkMethod::kNoauxTc ? first + second : first;
}

// Leaves -infinity in all but the best topk_group groups.
void keep_groups(const GateArgs& args, float* choice, int64_t num_experts) {
  const int64_t size = num_experts / args.n_group;
  float groups[kMaxGroups];
  bool kept[kMaxGroups] = {};
  for (int64_t g = 0; g < args.n_group; ++g) groups[g] = group_score(args.topk_method, choice + g * size, size);
  for (int64_t i = 0; i < args.topk_group; ++i) {
    const int64_t g = take_best(groups, args.n_group);
    if (g >= 0) kept[g] = true;
  }
  for (int64_t g = 0; g < args.n_group; ++g) {
    if (!kept[g]) std::fill_n(choice + g * size, size, -kInfinity);
  }
}

void gate_token(const GateArgs& args, const float* logits, const float* bias, int64_t num_experts, int32_t* ids,
                float* weights) {
  const int64_t topk = args.topk_ids.dim(1);
  float scores[kMaxExperts], choice[kMaxExperts];
  std::fill_n(ids, topk, -1);
  std::fill_n(weights, topk, 0.0f);
  if (!compute_scores(args.scoring_func, logits, num_experts, scores)) return;
  for (int64_t e = 0; e < num_experts; ++e) choice[e] = bias == nullptr ? scores[e] : scores[e] + bias[e];
  if (args.topk_method != TopkMethod::kGreedy && args.n_group > 1) keep_groups(args, choice, num_experts);
  float sum = 0.0f;
  for (int64_t i = 0; i < topk; ++i) {
    const int64_t e = take_best(choice, num_experts);
    if (e < 0) break;
    ids[i] = static_cast<int32_t>(e);
    weights[i] = scores[e];
    sum += scores[e];
  }
  const float divisor = args.norm_topk_prob ? sum + 1e-20f : 1.0f;
  for (int64_t i = 0; i < topk; ++i) weights[i] = weights[i] / divisor * args.routed_scaling_factor;
}

void check_gate(const GateArgs& args) {
  const int64_t num_experts = args.logits.dim(1), topk = args.topk_ids.dim(1);
  MOESAIC_CHECK(num_experts >= 1 && num_experts <= kMaxExperts);
  MOESAIC_CHECK_EQ(args.topk_ids.dim(0), args.logits.dim(0));
  MOESAIC_CHECK_EQ(args.topk_weights.shape(), args.topk_ids.shape());
  if (args.bias.defined()) MOESAIC_CHECK_EQ(args.bias.num_elements(), num_experts);
  if (args.topk_method == TopkMethod::kGreedy) {
    MOESAIC_CHECK_LE(topk, num_experts);
    return;
  }
  MOESAIC_CHECK(args.n_group >= 1 && args.n_group <= kMaxGroups && num_experts % args.n_group == 0);
  MOESAIC_CHECK(args.topk_group >= 1 && args.topk_group <= args.n_group);
  MOESAIC_CHECK_LE(topk, num_experts / args.n_group * args.topk_group);
}

}  // namespace

void gate(Stream& stream, const GateArgs& args) {
  check_gate(args);
  const int64_t num_tokens = args.logits.dim(0), num_experts = args.logits.dim(1);
  if (num_tokens == 0) return;
  args.logits.f32(), args.topk_ids.i32(), args.topk_weights.f32();
  const float* bias = args.bias.defined() ? args.bias.f32() : nullptr;
  stream.pool().parallel_for(num_tokens, 8, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      gate_token(args, args.logits.row<float>(t), bias, num_experts, args.topk_ids.row<int32_t>(t),
                 args.topk_weights.row<float>(t));
    }
  });
}

}  // namespace moesaic
