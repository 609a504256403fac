// ModelConfig: the fields of a DeepSeek-family config.json, with Hugging Face's spelling, validated. A value;
// host-only. DeepseekV3ForCausalLM (V3, R1, V3.1) and DeepseekV2ForCausalLM (V2, V2-Lite).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kernels/op_types.h"

namespace moesaic {

struct ModelConfig {
  std::string architecture;  // "DeepseekV3ForCausalLM"
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;      // dense layers
  int64_t moe_intermediate_size = 0;  // one expert
  int64_t num_hidden_layers = 0;
  int64_t num_nextn_predict_layers = 0;  // MTP modules stored after the main layers
  int64_t num_attention_heads = 0;
  int64_t q_lora_rank = 0;  // 0 = q is projected directly (null in the file)
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0;
  int64_t qk_rope_head_dim = 0;
  int64_t v_head_dim = 0;
  int64_t n_routed_experts = 0;  // 0 = all layers dense
  int64_t n_shared_experts = 0;
  int64_t num_experts_per_tok = 0;
  int64_t n_group = 1;
  int64_t topk_group = 1;
  int64_t first_k_dense_replace = 0;
  int64_t moe_layer_freq = 1;
  bool norm_topk_prob = true;
  float routed_scaling_factor = 1.0f;
  ScoringFunc scoring_func = ScoringFunc::kSigmoid;
  TopkMethod topk_method = TopkMethod::kNoauxTc;
  bool attention_bias = false;
  bool tie_word_embeddings = false;
  float rms_norm_eps = 1e-6f;
  int64_t max_position_embeddings = 0;
  double rope_theta = 10000.0;
  std::optional<RopeConfig> rope_scaling;  // YaRN, when present (dim and theta filled in)
  bool fp8_weights = false;                // quantization_config: fp8, e4m3, 128x128 blocks
  int32_t bos_token_id = 0;
  std::vector<int32_t> eos_token_ids;  // generation_config.json may add to them

  // From the text of config.json. Errors name the field, what was found and what is legal; contradictions (groups that
  // do not divide the experts, top-k above what the kept groups hold, ...) are refused.
  static absl::StatusOr<ModelConfig> parse(std::string_view config_json);
  // config.json and, if there, generation_config.json of a checkpoint directory.
  static absl::StatusOr<ModelConfig> load(const std::string& model_dir);

  bool is_moe_layer(int64_t layer) const;  // MTP layers (>= num_hidden_layers) are MoE whenever there are experts
  int64_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  int64_t latent_dim() const { return kv_lora_rank + qk_rope_head_dim; }
  float softmax_scale() const;  // qk_head_dim^-0.5 * YaRN's factor
  RopeConfig rope() const;      // plain RoPE without rope_scaling
};

}  // namespace moesaic
