#include "plan/predict.h"

#include <algorithm>
#include <cmath>

namespace moesaic {
namespace {

constexpr double kLeastBalancedness = 0.5;

// What the published systems of data/validation.csv span; beyond it the model extrapolates.
std::vector<std::string> reasons_out_of_range(const Deployment& d, const OperatingPoint& p) {
  std::vector<std::string> out;
  const auto within = [&](const char* name, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most) out.push_back(str_cat(name, " ", value, " is not in ", least, "..", most));
  };
  if (d.hardware.family != "hopper") out.push_back(str_cat("hardware of the family ", d.hardware.family));
  if (d.comm == CommFamily::kMoesaic) out.push_back("comm moesaic has no measured table");
  if (!d.model.fp8_weights) out.push_back("weights are not FP8");
  within("hidden_size", d.model.hidden_size, 5120, 7168);
  within("EP", d.layout.ep_size(), 8, 160);
  if (d.balancedness < kLeastBalancedness) {
    out.push_back(str_cat("balancedness ", d.balancedness, " is below ", kLeastBalancedness));
  }
  if (p.phase == Phase::kDecode) {
    within("batch", p.batch, 8, 512);
    within("kv-len", p.kv_len, 512, 16384);
    within("draft", d.num_draft, 0, 3);
  } else {
    within("prompt-len", p.prompt_len, 512, 16384);
    within("chunk-tokens", p.chunk_tokens, 4096, 32768);
  }
  return out;
}

}  // namespace

double tokens_per_verify(int64_t num_draft, double acceptance) {
  double tokens = 1, chance = 1;
  for (int64_t i = 0; i < num_draft; ++i) tokens += chance *= acceptance;
  return tokens;
}

GroupWork uniform_work(const OperatingPoint& point, int64_t num_draft) {
  GroupWork work;
  if (point.phase == Phase::kDecode) {
    for (int64_t i = 0; i < point.batch; ++i) work.add_decode(1 + num_draft, point.kv_len);
    return work;
  }
  // A prompt longer than the chunk is at the mean of its chunks.
  const int64_t fresh = point.prompt_len - point.cached_len;
  for (int64_t left = point.chunk_tokens; left > 0;) {
    const int64_t tokens = std::min({left, fresh, point.chunk_tokens});
    work.add_prefill(tokens, point.cached_len + (fresh - tokens) / 2);
    left -= tokens;
  }
  return work;
}

absl::StatusOr<Prediction> predict(const CostModel& cost, const OperatingPoint& point, int64_t gpus_per_node) {
  const Deployment& d = cost.deployment();
  const bool decode = point.phase == Phase::kDecode;
  if (decode && (point.batch < 1 || point.kv_len < 1 + d.num_draft)) {
    return absl::InvalidArgumentError(
        str_cat("decoding needs a batch of at least 1 and KV of at least 1 + drafts = ", 1 + d.num_draft,
                " rows; found batch ", point.batch, ", kv_len ", point.kv_len));
  }
  if (!decode && (point.cached_len < 0 || point.cached_len >= point.prompt_len || point.chunk_tokens < 1)) {
    return absl::InvalidArgumentError(str_cat("prefill needs tokens to compute: prompt_len ", point.prompt_len,
                                              ", cached_len ", point.cached_len, ", chunk_tokens ",
                                              point.chunk_tokens));
  }
  const GroupWork work = uniform_work(point, d.num_draft);
  Prediction out{.phase = point.phase};
  out.step = cost.step({&work, 1});
  out.tokens_per_step = decode ? static_cast<double>(point.batch) * tokens_per_verify(d.num_draft, point.acceptance)
                               : static_cast<double>(point.chunk_tokens);
  out.tokens_per_s_per_gpu = out.tokens_per_step / out.step.seconds / d.layout.tp_size;
  out.tokens_per_s_per_node = out.tokens_per_s_per_gpu * static_cast<double>(gpus_per_node);
  if (decode) out.tokens_per_s_per_user = out.tokens_per_step / static_cast<double>(point.batch) / out.step.seconds;
  out.memory = plan_rank_memory(d, {work.num_tokens(), work.num_decode_tokens});
  const int64_t rows = decode ? point.batch * point.kv_len : std::max(point.chunk_tokens, point.prompt_len);
  out.kv_bytes_needed = static_cast<double>(rows * cost.kv_bytes_per_token());
  out.out_of_range = reasons_out_of_range(d, point);
  out.in_range = out.out_of_range.empty();
  out.fits = out.kv_bytes_needed <= out.memory.kv_bytes_free;
  return out;
}

}  // namespace moesaic
