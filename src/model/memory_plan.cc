#include "model/memory_plan.h"

#include "model/forward_plan.h"

namespace moesaic {
namespace {

void add_caches(const ModelConfig& config, const ModelOptions& options, std::vector<MemoryBuffer>* buffers) {
  const int64_t layer_bytes = options.num_kv_blocks * options.kv_block_tokens * kv_row_bytes(config, options.kv_dtype);
  buffers->push_back(
      {.kind = MemoryKind::kKvCache, .name = "KV cache", .num_bytes = config.num_hidden_layers * layer_bytes});
  const int64_t mtp_layers = kv_layers(config, options) - config.num_hidden_layers;
  if (mtp_layers > 0) {
    buffers->push_back(
        {.kind = MemoryKind::kKvCache, .name = "KV cache of the MTP layer", .num_bytes = mtp_layers * layer_bytes});
  }
}

void add_workspace(const ModelConfig& config, const ModelOptions& options, std::vector<MemoryBuffer>* buffers) {
  const ForwardWorkspace space = forward_workspace(config, options);
  const int64_t layer = space.residual + space.normed;
  buffers->push_back({.kind = MemoryKind::kWorkspace,
                      .name = "work space",
                      .num_bytes = space.total(),
                      .uses = {{"residual stream and attention", layer + space.attention},
                               {"residual stream and FFN", layer + space.ffn},
                               {"residual stream and logits", space.residual + space.logits},
                               {"residual stream and MTP input", space.residual + space.mtp_input}}});
}

void add_all_to_all(const ModelConfig& config, const ModelOptions& options, std::vector<MemoryBuffer>* buffers) {
  if (config.n_routed_experts == 0) return;
  const AllToAllOptions a2a = DeepseekModel::all_to_all_options(config, options);
  const auto rows = [&](A2aMode mode) {
    return AllToAll::capacity_rows(a2a, mode) * a2a.hidden * static_cast<int64_t>(sizeof(float));
  };
  const int64_t normal = rows(A2aMode::kNormal), low_latency = rows(A2aMode::kLowLatency);
  const int64_t widest = std::max(normal, low_latency);
  buffers->push_back({.kind = MemoryKind::kExchange,
                      .name = "all-to-all rows",
                      .num_bytes = widest,
                      .uses = {{"normal mode", normal}, {"low-latency mode", low_latency}}});
  buffers->push_back(
      {.kind = MemoryKind::kExchange, .name = "all-to-all tables", .num_bytes = AllToAll::buffer_bytes(a2a) - widest});
}

}  // namespace

int64_t MemoryPlan::rank_bytes(int rank) const {
  int64_t total = 0;
  for (const MemoryBuffer& buffer : ranks[rank]) total += buffer.num_bytes;
  return total;
}

int64_t MemoryPlan::process_bytes(MemoryKind kind) const {
  int64_t total = 0;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const MemoryBuffer& buffer : ranks[rank]) {
      const bool counts = !buffer.is_shared || rank < static_cast<size_t>(tp_size);
      if (buffer.kind == kind && counts) total += buffer.num_bytes;
    }
  }
  return total;
}

int64_t MemoryPlan::process_bytes() const {
  return process_bytes(MemoryKind::kWeights) + process_bytes(MemoryKind::kKvCache) +
         process_bytes(MemoryKind::kWorkspace) + process_bytes(MemoryKind::kExchange);
}

absl::StatusOr<MemoryPlan> plan_memory(const Checkpoint& checkpoint, const ModelConfig& config,
                                       const ModelOptions& options) {
  MOESAIC_RETURN_IF_ERROR(validate_options(config, options));
  const ParallelLayout& layout = options.layout;
  const LoadArgs args = {.checkpoint = &checkpoint,
                         .config = &config,
                         .layout = layout,
                         .load_mtp = options.load_mtp,
                         .max_position = options.max_position,
                         .sizes_only = true};
  const ExpertMap experts = ExpertMap::identity(static_cast<int>(config.n_routed_experts));
  std::vector<std::vector<WeightPart>> replicated;
  for (int tp_rank = 0; tp_rank < layout.tp_size; ++tp_rank) {
    MOESAIC_ASSIGN_OR_RETURN(const auto weights, load_replicated_weights(args, tp_rank));
    replicated.push_back(weight_parts(*weights));
  }
  MemoryPlan plan{.ranks = {}, .tp_size = layout.tp_size};
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    std::vector<MemoryBuffer>& buffers = plan.ranks.emplace_back();
    for (const WeightPart& part : replicated[layout.tp_rank(rank)]) {
      if (part.num_bytes == 0) continue;
      buffers.push_back(
          {.kind = MemoryKind::kWeights, .name = part.name, .num_bytes = part.num_bytes, .is_shared = true});
    }
    MOESAIC_ASSIGN_OR_RETURN(const ExpertWeights mine, load_expert_weights(args, experts, rank));
    if (mine.num_bytes > 0) {
      buffers.push_back({.kind = MemoryKind::kWeights, .name = "routed experts", .num_bytes = mine.num_bytes});
    }
    add_caches(config, options, &buffers);
    add_workspace(config, options, &buffers);
    add_all_to_all(config, options, &buffers);
    const int64_t num_groups = layout.tp_size > 1 ? 2 : 1;  // all ranks, and the TP group
    buffers.push_back({.kind = MemoryKind::kExchange,
                       .name = "staging of sums and gathers",
                       .num_bytes = num_groups * thread_communicator_bytes()});
  }
  return plan;
}

}  // namespace moesaic
