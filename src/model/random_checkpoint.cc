#include "model/random_checkpoint.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "base/rng.h"
#include "model/checkpoint.h"

namespace moesaic {
namespace {

constexpr int64_t kBlock = 128;  // of weight_scale_inv
constexpr int64_t kShardBytes = int64_t{1} << 30;

class SpecList {
 public:
  explicit SpecList(const ModelConfig& config) : config_(config) {}

  void vector(const std::string& name, int64_t n, DType dtype = DType::kBF16) { specs.push_back({name, dtype, {n}}); }
  void table(const std::string& name, int64_t n, int64_t k) {
    specs.push_back({name + ".weight", DType::kBF16, {n, k}});
  }
  void linear(const std::string& name, int64_t n, int64_t k, bool has_bias = false) {
    if (!config_.fp8_weights) {
      table(name, n, k);
    } else {
      specs.push_back({name + ".weight", DType::kE4M3, {n, k}});
      specs.push_back(
          {name + ".weight_scale_inv", DType::kF32, {(n + kBlock - 1) / kBlock, (k + kBlock - 1) / kBlock}});
    }
    if (has_bias) vector(name + ".bias", n);
  }

  void attention(const std::string& prefix) {
    const int64_t hidden = config_.hidden_size, heads = config_.num_attention_heads, qk = config_.qk_head_dim();
    const bool bias = config_.attention_bias;
    if (config_.q_lora_rank > 0) {
      linear(prefix + "q_a_proj", config_.q_lora_rank, hidden, bias);
      vector(prefix + "q_a_layernorm.weight", config_.q_lora_rank);
      linear(prefix + "q_b_proj", heads * qk, config_.q_lora_rank);
    } else {
      linear(prefix + "q_proj", heads * qk, hidden);
    }
    linear(prefix + "kv_a_proj_with_mqa", config_.latent_dim(), hidden, bias);
    vector(prefix + "kv_a_layernorm.weight", config_.kv_lora_rank);
    linear(prefix + "kv_b_proj", heads * (config_.qk_nope_head_dim + config_.v_head_dim), config_.kv_lora_rank);
    linear(prefix + "o_proj", hidden, heads * config_.v_head_dim, bias);
  }

  void mlp(const std::string& prefix, int64_t intermediate) {
    linear(prefix + "gate_proj", intermediate, config_.hidden_size);
    linear(prefix + "up_proj", intermediate, config_.hidden_size);
    linear(prefix + "down_proj", config_.hidden_size, intermediate);
  }

  void layer(int64_t index) {
    const std::string prefix = str_cat("model.layers.", index, ".");
    vector(prefix + "input_layernorm.weight", config_.hidden_size);
    vector(prefix + "post_attention_layernorm.weight", config_.hidden_size);
    attention(prefix + "self_attn.");
    if (!config_.is_moe_layer(index)) return mlp(prefix + "mlp.", config_.intermediate_size);
    table(prefix + "mlp.gate", config_.n_routed_experts, config_.hidden_size);
    if (config_.topk_method == TopkMethod::kNoauxTc) {
      vector(prefix + "mlp.gate.e_score_correction_bias", config_.n_routed_experts, DType::kF32);
    }
    for (int64_t expert = 0; expert < config_.n_routed_experts; ++expert) {
      mlp(str_cat(prefix, "mlp.experts.", expert, "."), config_.moe_intermediate_size);
    }
    const int64_t shared = config_.n_shared_experts * config_.moe_intermediate_size;
    if (shared > 0) mlp(prefix + "mlp.shared_experts.", shared);
  }

  void mtp(int64_t index) {
    const std::string prefix = str_cat("model.layers.", index, ".");
    layer(index);
    vector(prefix + "enorm.weight", config_.hidden_size);
    vector(prefix + "hnorm.weight", config_.hidden_size);
    table(prefix + "eh_proj", config_.hidden_size, 2 * config_.hidden_size);
    vector(prefix + "shared_head.norm.weight", config_.hidden_size);
    table(prefix + "embed_tokens", config_.vocab_size, config_.hidden_size);
    table(prefix + "shared_head.head", config_.vocab_size, config_.hidden_size);
  }

  std::vector<TensorSpec> specs;

 private:
  const ModelConfig& config_;
};

// Draws from 4,096 equally likely values of a standard Gaussian, in the bits of one format.
class ValueTable {
 public:
  static constexpr float kE4M3Sigma = 112.0f;  // 4 sigma is the largest e4m3

  explicit ValueTable(double sigma) {
    for (size_t i = 0; i < kSize; ++i) {
      // Logistic approximation of the normal quantile: within 0.02 of it.
      const double p = (static_cast<double>(i) + 0.5) / kSize;
      const double z = std::log(p / (1 - p)) / 1.702;
      bf16_[i] = f32_to_bf16(static_cast<float>(z * sigma));
      e4m3_[i] = f32_to_e4m3(static_cast<float>(z) * kE4M3Sigma);
    }
  }

  void fill(Rng& rng, const Tensor& tensor) const {
    uint64_t bits = 0;
    for (int64_t i = 0, count = tensor.num_elements(); i < count; ++i, bits >>= 12) {
      if (i % 5 == 0) bits = rng.next_u64();
      if (tensor.dtype() == DType::kE4M3) {
        tensor.data<uint8_t>()[i] = e4m3_[bits % kSize];
      } else {
        tensor.data<uint16_t>()[i] = bf16_[bits % kSize];
      }
    }
  }

 private:
  static constexpr size_t kSize = 4096;
  std::array<uint16_t, kSize> bf16_;
  std::array<uint8_t, kSize> e4m3_;
};

bool ends_with(const std::string& name, std::string_view end) {
  return name.ends_with(end);
}

void fill_tensor(Rng& rng, const std::string& name, const Tensor& tensor) {
  const int64_t k = tensor.dim(tensor.rank() - 1);
  if (ends_with(name, "norm.weight")) {
    std::fill_n(tensor.data<uint16_t>(), tensor.num_elements(), f32_to_bf16(1.0f));
  } else if (tensor.dtype() == DType::kF32) {
    // A scale's inner size is 128 times its own; the gate's bias is small beside scores in (0, 1).
    const bool is_scale = ends_with(name, "_scale_inv");
    const double value = is_scale ? 1.0 / (ValueTable::kE4M3Sigma * std::sqrt(static_cast<double>(k * kBlock))) : 0.0;
    for (int64_t i = 0; i < tensor.num_elements(); ++i) {
      tensor.f32()[i] = static_cast<float>(is_scale ? value * (0.75 + 0.5 * rng.uniform()) : 0.02 * rng.uniform());
    }
  } else {
    ValueTable(1.0 / std::sqrt(static_cast<double>(k))).fill(rng, tensor);
  }
}

std::string shard_name(size_t shard, size_t num_shards) {
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", shard + 1, num_shards);
  return name;
}

// Cuts the list where a file would grow past kShardBytes.
std::vector<std::vector<TensorSpec>> cut_shards(std::vector<TensorSpec> specs) {
  std::vector<std::vector<TensorSpec>> shards(1);
  int64_t bytes = 0;
  for (TensorSpec& spec : specs) {
    const int64_t size = spec.shape.num_elements() * dtype_bytes(spec.dtype);
    if (bytes > 0 && bytes + size > kShardBytes) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += size;
    shards.back().push_back(std::move(spec));
  }
  return shards;
}

absl::Status write_text(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  return out ? absl::OkStatus() : absl::UnavailableError(str_cat("cannot write ", path));
}

absl::Status copy_tokenizer(const std::string& from, const std::string& to) {
  if (from.empty()) return absl::OkStatus();
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    std::error_code error;
    if (!std::filesystem::exists(str_cat(from, "/", name), error)) continue;
    std::filesystem::copy_file(str_cat(from, "/", name), str_cat(to, "/", name), error);
    if (error) return absl::UnavailableError(str_cat("cannot copy ", name, " from ", from, ": ", error.message()));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<TensorSpec> checkpoint_tensors(const ModelConfig& config) {
  SpecList list(config);
  list.table("model.embed_tokens", config.vocab_size, config.hidden_size);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) list.layer(i);
  for (int64_t i = 0; i < config.num_nextn_predict_layers; ++i) list.mtp(config.num_hidden_layers + i);
  list.vector("model.norm.weight", config.hidden_size);
  if (!config.tie_word_embeddings) list.table("lm_head", config.vocab_size, config.hidden_size);
  return std::move(list.specs);
}

absl::Status write_random_checkpoint(const RandomCheckpoint& args) {
  std::ifstream in(args.config_path, std::ios::binary);
  const std::string config_json{std::istreambuf_iterator<char>(in), {}};
  if (!in) return absl::NotFoundError(str_cat("cannot read ", args.config_path, ": expected a config.json"));
  MOESAIC_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfig::parse(config_json));
  std::error_code error;
  std::filesystem::create_directories(args.out_dir, error);
  if (error) return absl::UnavailableError(str_cat("cannot make ", args.out_dir, ": ", error.message()));
  if (std::filesystem::exists(args.out_dir + "/config.json", error)) {
    return absl::AlreadyExistsError(str_cat(args.out_dir, " holds a checkpoint already: name another folder"));
  }
  const auto shards = cut_shards(checkpoint_tensors(config));
  nlohmann::json index = {{"metadata", nlohmann::json::object()}, {"weight_map", nlohmann::json::object()}};
  Rng rng(args.seed);
  for (size_t shard = 0; shard < shards.size(); ++shard) {
    std::vector<Buffer> buffers;
    std::map<std::string, Tensor> tensors;
    int64_t num_bytes = 0;
    for (const TensorSpec& spec : shards[shard]) {
      const int64_t bytes = spec.shape.num_elements() * dtype_bytes(spec.dtype);
      const Tensor tensor(buffers.emplace_back(bytes).data(), spec.dtype, spec.shape);
      fill_tensor(rng, spec.name, tensor);
      tensors[spec.name] = tensor;
      index["weight_map"][spec.name] = shard_name(shard, shards.size());
      num_bytes += bytes;
    }
    MOESAIC_RETURN_IF_ERROR(write_safetensors(str_cat(args.out_dir, "/", shard_name(shard, shards.size())), tensors));
    if (args.progress) args.progress(num_bytes);
  }
  MOESAIC_RETURN_IF_ERROR(copy_tokenizer(args.tokenizer_dir, args.out_dir));
  MOESAIC_RETURN_IF_ERROR(write_text(args.out_dir + "/model.safetensors.index.json", index.dump()));
  return write_text(args.out_dir + "/config.json", config_json);
}

}  // namespace moesaic
