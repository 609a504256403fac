#include "cli/model_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "model/deepseek.h"

namespace moesaic {
namespace {

constexpr std::string_view kLayerPrefix = "model.layers.";
constexpr std::string_view kExperts = ".mlp.experts.";

bool contains(std::string_view text, std::string_view piece) {
  return text.find(piece) != std::string_view::npos;
}

// The number after `prefix` at its first place in `name`, or -1.
int64_t number_after(std::string_view name, std::string_view prefix) {
  const size_t at = name.find(prefix);
  if (at == std::string_view::npos) return -1;
  int64_t number = -1;
  std::from_chars(name.data() + at + prefix.size(), name.data() + name.size(), number);
  return number;
}

bool is_scale(std::string_view name) {
  constexpr std::string_view kSuffix = "_scale_inv";
  return name.size() > kSuffix.size() && name.substr(name.size() - kSuffix.size()) == kSuffix;
}

// Sharded over the TP ranks of a group; everything else but the routed experts is held in full.
bool is_tp_sharded(std::string_view name) {
  for (std::string_view piece : {".q_proj.", ".q_b_proj.", ".kv_b_proj.", ".o_proj."}) {
    if (contains(name, piece)) return true;
  }
  return false;
}

bool is_mtp(std::string_view name, const ModelConfig& config) {
  return number_after(name, kLayerPrefix) >= config.num_hidden_layers;
}

std::string count_text(int64_t count) {
  if (count >= 10'000'000'000) return fmt::format("{:.1f} B", static_cast<double>(count) / 1e9);
  if (count >= 10'000'000) return fmt::format("{:.1f} M", static_cast<double>(count) / 1e6);
  return fmt::format("{:.1f} k", static_cast<double>(count) / 1e3);
}

std::string bytes_text(int64_t bytes) {
  if (bytes >= int64_t{10} << 30) return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30));
  if (bytes >= int64_t{10} << 20) return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
  return fmt::format("{:.1f} KiB", static_cast<double>(bytes) / (1 << 10));
}

std::string attention_text(const ModelConfig& config) {
  return fmt::format("MLA, {} heads of {}+{} (values {}), latent {}+{}, q_lora {}", config.num_attention_heads,
                     config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim, config.kv_lora_rank,
                     config.qk_rope_head_dim, config.q_lora_rank);
}

std::string experts_text(const ModelConfig& config) {
  if (config.n_routed_experts == 0) return "none (dense)";
  return fmt::format("{} routed in {} groups, top {} of the best {} groups, {} shared", config.n_routed_experts,
                     config.n_group, config.num_experts_per_tok, config.topk_group, config.n_shared_experts);
}

}  // namespace

std::string part_of(const std::string& name, const ModelConfig& config) {
  if (is_mtp(name, config)) return "MTP";
  if (contains(name, kExperts)) return "routed experts";
  if (contains(name, ".mlp.shared_experts.")) return "shared experts";
  if (contains(name, ".mlp.gate.")) return "gate";
  if (contains(name, ".mlp.")) return "dense FFN";
  if (contains(name, "norm")) return "norms";
  if (contains(name, ".self_attn.")) return "attention";
  if (contains(name, "embed_tokens")) return "embedding";
  if (contains(name, "lm_head")) return "head";
  return "other";
}

absl::StatusOr<ModelReport> make_model_report(const ModelConfig& config, const std::map<std::string, Tensor>& tensors,
                                              const ParallelLayout& layout) {
  MOESAIC_RETURN_IF_ERROR(layout.validate_heads(config.num_attention_heads));
  ModelReport report;
  report.rank_bytes.assign(layout.world_size(), 0);
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    report.rank_experts.push_back(layout.slots(config.n_routed_experts, rank));
  }
  for (const auto& [name, tensor] : tensors) {
    const std::string part = part_of(name, config);
    const int64_t parameters = is_scale(name) ? 0 : tensor.num_elements();
    for (PartSize* size : {&report.parts[part], &report.total}) {
      size->num_parameters += parameters;
      size->num_bytes += tensor.num_bytes();
    }
    const int64_t expert = number_after(name, kExperts);
    if (part != "routed experts" && part != "MTP") report.active_parameters += parameters;
    for (int rank = 0; rank < layout.world_size(); ++rank) {
      const Range held = report.rank_experts[rank];
      if (expert >= 0 && (expert < held.begin || expert >= held.end)) continue;
      report.rank_bytes[rank] += is_tp_sharded(name) ? tensor.num_bytes() / layout.tp_size : tensor.num_bytes();
    }
  }
  if (config.n_routed_experts > 0) {
    report.active_parameters +=
        report.parts["routed experts"].num_parameters / config.n_routed_experts * config.num_experts_per_tok;
  }
  report.kv_bytes_per_token = config.num_hidden_layers * kv_row_bytes(config, DType::kF32);
  return report;
}

std::string report_text(const ModelConfig& config, const ParallelLayout& layout, const ModelReport& report) {
  std::string out;
  const auto line = [&](std::string_view name, const std::string& value) {
    out += fmt::format("{:<16}{}\n", name, value);
  };
  line("architecture", config.architecture);
  line("layers",
       fmt::format("{} ({} dense first), {} MTP", config.num_hidden_layers,
                   std::min(config.first_k_dense_replace, config.num_hidden_layers), config.num_nextn_predict_layers));
  line("hidden", fmt::format("{}, vocabulary {}, context {}", config.hidden_size, config.vocab_size,
                             config.max_position_embeddings));
  line("attention", attention_text(config));
  line("experts", experts_text(config));
  line("weights", config.fp8_weights ? "FP8 e4m3, one scale per 128x128 block" : "bf16 or f32");
  line("parameters", count_text(report.total.num_parameters));
  line("activated", fmt::format("{} for a token: {} routed experts a layer, embedding and head in full, no MTP",
                                count_text(report.active_parameters), config.num_experts_per_tok));
  line("bytes", bytes_text(report.total.num_bytes));
  const auto kv_text = [&](DType dtype) { return bytes_text(config.num_hidden_layers * kv_row_bytes(config, dtype)); };
  line("KV per token",
       fmt::format("{} f32, {} bf16, {} fp8", kv_text(DType::kF32), kv_text(DType::kBF16), kv_text(DType::kE4M3)));
  out += fmt::format("\n{:<16}{:>12}{:>14}\n", "part", "parameters", "bytes");
  for (const auto& [part, size] : report.parts) {
    out += fmt::format("{:<16}{:>12}{:>14}\n", part, count_text(size.num_parameters), bytes_text(size.num_bytes));
  }
  out += fmt::format("\n{}\n{:<16}{:>12}{:>14}\n", layout.to_string(), "rank", "experts", "bytes");
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    const Range held = report.rank_experts[rank];
    const std::string experts = held.size() > 0 ? fmt::format("{}..{}", held.begin, held.end - 1) : "none";
    out += fmt::format("{:<16}{:>12}{:>14}\n", rank, experts, bytes_text(report.rank_bytes[rank]));
  }
  return out;
}

std::string report_json(const ModelConfig& config, const ParallelLayout& layout, const ModelReport& report,
                        const absl::StatusOr<MemoryPlan>& memory) {
  nlohmann::ordered_json json = {{"architecture", config.architecture},
                                 {"num_hidden_layers", config.num_hidden_layers},
                                 {"num_nextn_predict_layers", config.num_nextn_predict_layers},
                                 {"n_routed_experts", config.n_routed_experts},
                                 {"max_position_embeddings", config.max_position_embeddings},
                                 {"fp8_weights", config.fp8_weights},
                                 {"num_parameters", report.total.num_parameters},
                                 {"active_parameters", report.active_parameters},
                                 {"num_bytes", report.total.num_bytes},
                                 {"kv_bytes_per_token", report.kv_bytes_per_token},
                                 {"layout", layout.to_string()}};
  for (const auto& [part, size] : report.parts) {
    json["parts"][part] = {{"num_parameters", size.num_parameters}, {"num_bytes", size.num_bytes}};
  }
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    const Range held = report.rank_experts[rank];
    json["ranks"].push_back(
        {{"rank", rank}, {"experts", {held.begin, held.end}}, {"num_bytes", report.rank_bytes[rank]}});
    if (!memory.ok()) continue;
    for (const MemoryBuffer& buffer : memory->ranks[rank]) {
      json["ranks"].back()["buffers"].push_back(
          {{"name", buffer.name}, {"num_bytes", buffer.num_bytes}, {"is_shared", buffer.is_shared}});
    }
  }
  if (memory.ok()) {
    json["process_bytes"] = memory->process_bytes();
  } else {
    json["no_memory_plan"] = std::string(memory.status().message());
  }
  return json.dump(1) + "\n";
}

}  // namespace moesaic
