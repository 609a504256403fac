#include "plan/planner.h"

#include <algorithm>
#include <cmath>

#include "plan/deployment_settings.h"

namespace moesaic {
namespace {

constexpr double kGiga = 1e9;

std::string gigabytes(double bytes) {
  return str_cat(std::round(bytes / kGiga * 10) / 10, " GB");
}

std::string label_of(const Deployment& d, const OperatingPoint& p) {
  const std::string size = p.phase == Phase::kDecode ? str_cat("batch ", p.batch) : str_cat("chunk ", p.chunk_tokens);
  const std::string drafts = p.phase == Phase::kDecode ? str_cat(" draft ", d.num_draft) : "";
  return str_cat(d.hardware.name, " EP", d.layout.ep_size(), " DP", d.layout.dp_size, " TP", d.layout.tp_size, " ",
                 size, " ", overlap_name(d.overlap), drafts);
}

void try_point(const Deployment& deployment, const OperatingPoint& point, Sweep* out) {
  auto candidate = evaluate(deployment, point);
  if (candidate.ok()) {
    out->fits.push_back(*std::move(candidate));
  } else {
    out->refused.push_back({label_of(deployment, point), std::string(candidate.status().message())});
  }
}

// The sizes of steps: batches to decode, chunks to prefill.
void try_sizes(const PlanSpace& space, const Deployment& deployment, OperatingPoint point, Sweep* out) {
  if (point.phase == Phase::kPrefill) {
    for (const int64_t chunk : space.chunk_tokens) {
      point.chunk_tokens = chunk;
      try_point(deployment, point, out);
    }
    return;
  }
  for (const int64_t batch : space.batches) {
    point.batch = batch;
    const size_t num_fits = out->fits.size();
    try_point(deployment, point, out);
    if (out->fits.size() == num_fits) return;  // larger ones need more memory still
  }
}

bool differ_in_batch_alone(const LayoutCandidate& a, const LayoutCandidate& b) {
  const Deployment &x = a.deployment, &y = b.deployment;
  return x.hardware.name == y.hardware.name && x.layout.ep_size() == y.layout.ep_size() &&
         x.layout.tp_size == y.layout.tp_size && x.num_draft == y.num_draft &&
         a.point.chunk_tokens == b.point.chunk_tokens;
}

template <typename Reaches>
std::vector<const LayoutCandidate*> cheapest(const Sweep& sweep, double tokens_per_s, size_t num, Reaches reaches) {
  std::vector<const LayoutCandidate*> sorted, out;
  for (const LayoutCandidate& candidate : sweep.fits) {
    if (reaches(candidate)) sorted.push_back(&candidate);
  }
  std::stable_sort(sorted.begin(), sorted.end(), [&](const LayoutCandidate* a, const LayoutCandidate* b) {
    const double x = dollars_per_hour(*a, tokens_per_s), y = dollars_per_hour(*b, tokens_per_s);
    return x != y ? x < y : a->prediction.tokens_per_s_per_gpu > b->prediction.tokens_per_s_per_gpu;
  });
  for (const LayoutCandidate* candidate : sorted) {
    if (out.size() == num) break;
    const bool is_known = std::any_of(out.begin(), out.end(), [&](const LayoutCandidate* other) {
      return differ_in_batch_alone(*candidate, *other);
    });
    if (!is_known) out.push_back(candidate);
  }
  return out;
}

}  // namespace

std::string LayoutCandidate::label() const {
  return label_of(deployment, point);
}

absl::StatusOr<LayoutCandidate> evaluate(const Deployment& deployment, const OperatingPoint& point) {
  MOESAIC_ASSIGN_OR_RETURN(const CostModel cost, CostModel::make(deployment));
  LayoutCandidate out{.deployment = deployment, .point = point};
  MOESAIC_ASSIGN_OR_RETURN(out.prediction, predict(cost, point, deployment.hardware.gpus_per_node));
  if (!out.prediction.fits) {
    const RankMemory& memory = out.prediction.memory;
    return absl::ResourceExhaustedError(str_cat(
        "memory: ", gigabytes(memory.total_bytes()), " without KV cache + ", gigabytes(out.prediction.kv_bytes_needed),
        " KV cache = ", gigabytes(memory.total_bytes() + out.prediction.kv_bytes_needed), " of ",
        gigabytes(memory.capacity_bytes)));
  }
  return out;
}

absl::StatusOr<Sweep> sweep(const PlanSpace& space, const Deployment& base, const OperatingPoint& point) {
  Sweep out;
  const bool decode = point.phase == Phase::kDecode;
  for (const HardwareSpec& hardware : space.hardware) {
    for (const int ep : space.ep_sizes) {
      for (const int tp : space.tp_sizes) {
        Deployment d = base;
        d.hardware = hardware;
        const auto layout = ParallelLayout::make(ep, 0, tp);
        if (!layout.ok() || tp > hardware.nvlink_domain) continue;  // TP that does not divide EP is no layout
        d.layout = *layout;
        // A whole number of slots a rank: what memory holds anyway.
        const int64_t slots = base.model.n_routed_experts + base.num_redundant_experts;
        d.num_redundant_experts = (slots + ep - 1) / ep * ep - base.model.n_routed_experts;
        for (const OverlapMode overlap : space.overlaps) {
          d.overlap = overlap;
          for (const int64_t draft : decode ? space.drafts : std::vector<int64_t>{0}) {
            if (draft > 0 && base.model.num_nextn_predict_layers == 0) continue;
            d.num_draft = draft;
            try_sizes(space, d, point, &out);
          }
        }
      }
    }
  }
  if (out.fits.empty() && out.refused.empty()) return absl::InvalidArgumentError("no layout to try: EP and TP lists");
  return out;
}

std::vector<const LayoutCandidate*> frontier(const std::vector<const LayoutCandidate*>& candidates) {
  std::vector<const LayoutCandidate*> sorted = candidates;
  std::sort(sorted.begin(), sorted.end(), [](const LayoutCandidate* a, const LayoutCandidate* b) {
    const Prediction &x = a->prediction, &y = b->prediction;
    if (x.tokens_per_s_per_user != y.tokens_per_s_per_user) return x.tokens_per_s_per_user > y.tokens_per_s_per_user;
    return x.tokens_per_s_per_node > y.tokens_per_s_per_node;
  });
  std::vector<const LayoutCandidate*> out;
  for (const LayoutCandidate* candidate : sorted) {
    if (!out.empty() && candidate->prediction.tokens_per_s_per_node <= out.back()->prediction.tokens_per_s_per_node) {
      continue;
    }
    out.push_back(candidate);
  }
  return out;
}

double throughput_at_speed(const std::vector<const LayoutCandidate*>& candidates, double speed) {
  double most = 0;
  for (const LayoutCandidate* candidate : candidates) {
    if (candidate->prediction.tokens_per_s_per_user < speed) continue;
    most = std::max(most, candidate->prediction.tokens_per_s_per_node);
  }
  return most;
}

std::vector<const LayoutCandidate*> select(const Sweep& sweep, const std::string& hardware, int ep_size) {
  std::vector<const LayoutCandidate*> out;
  for (const LayoutCandidate& candidate : sweep.fits) {
    const Deployment& d = candidate.deployment;
    if (d.hardware.name == hardware && d.layout.ep_size() == ep_size) out.push_back(&candidate);
  }
  return out;
}

int64_t instances_for(const LayoutCandidate& candidate, double tokens_per_s) {
  const double capacity = candidate.prediction.tokens_per_s_per_gpu * candidate.deployment.layout.world_size();
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(tokens_per_s / capacity)));
}

double dollars_per_hour(const LayoutCandidate& candidate, double tokens_per_s) {
  const int64_t gpus = instances_for(candidate, tokens_per_s) * candidate.deployment.layout.world_size();
  return static_cast<double>(gpus) * candidate.deployment.hardware.price_per_gpu_hour;
}

std::vector<const LayoutCandidate*> cheapest_decode(const Sweep& sweep, double tokens_per_s,
                                                    double least_tokens_per_s_per_user, size_t num) {
  return cheapest(sweep, tokens_per_s, num, [&](const LayoutCandidate& candidate) {
    return candidate.prediction.tokens_per_s_per_user >= least_tokens_per_s_per_user;
  });
}

std::vector<const LayoutCandidate*> cheapest_prefill(const Sweep& sweep, double tokens_per_s, double most_ttft_s,
                                                     size_t num) {
  return cheapest(sweep, tokens_per_s, num,
                  [&](const LayoutCandidate& candidate) { return ttft_seconds(candidate) <= most_ttft_s; });
}

double ttft_seconds(const LayoutCandidate& candidate) {
  const OperatingPoint& p = candidate.point;
  const double steps =
      std::ceil(static_cast<double>(p.prompt_len - p.cached_len) / static_cast<double>(p.chunk_tokens));
  return candidate.prediction.step.seconds * (0.5 + steps);
}

EngineLimits engine_limits(const LayoutCandidate& candidate) {
  const OperatingPoint& p = candidate.point;
  const int64_t kv_tokens = candidate.prediction.memory.kv_tokens_free / 64 * 64;
  if (p.phase == Phase::kDecode) return {p.batch, p.batch * (1 + candidate.deployment.num_draft), kv_tokens};
  // A step may begin with the rest of one prompt and end with the beginning of another.
  const int64_t fresh = p.prompt_len - p.cached_len;
  return {(p.chunk_tokens + fresh - 1) / fresh + 1, p.chunk_tokens, kv_tokens};
}

}  // namespace moesaic
