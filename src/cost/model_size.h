// ModelSize: the parameters of a DeepSeek-family model by part, exactly, from its config alone. A value; host-only.
#pragma once

#include <cstdint>

#include "model/model_config.h"

namespace moesaic {

struct ModelSize {
  // One layer each. Weights that FP8 checkpoints keep in bf16 (norms, gate, embedding, head) are counted apart where
  // they matter for bytes.
  int64_t attention = 0;      // q_a, q_b (or q), kv_a, kv_b, o
  int64_t layer_norms = 0;    // the norms of a layer, q_a and kv_a included
  int64_t gate = 0;           // router, with its correction bias where there is one
  int64_t expert = 0;         // one routed expert
  int64_t shared_expert = 0;  // all shared experts of a layer
  int64_t dense_ffn = 0;
  int64_t embedding = 0;
  int64_t head = 0;  // 0 if tied to the embedding
  int64_t final_norm = 0;
  int64_t mtp_layer = 0;    // one MTP module without embedding and head, which are the model's own
  int64_t num_experts = 0;  // routed, of a layer
  int64_t num_moe_layers = 0;
  int64_t num_dense_layers = 0;

  explicit ModelSize(const ModelConfig& config);

  // Without MTP modules: 671.03e9 for DeepSeek-V3.
  int64_t total() const;
  // What a step reads whose tokens choose `num_distinct` experts in each layer: everything but the embedding
  // and the other experts. 16 for two tokens of DeepSeek-V3: 57.06e9.
  int64_t touched(int64_t num_distinct) const;
  // Of one layer, without experts: attention, norms, gate and shared expert.
  int64_t moe_layer_without_experts() const { return attention + layer_norms + gate + shared_expert; }
};

// Latent rows of all layers: 70,272 bytes a token for DeepSeek-V3 in bf16. With FP8: 1 byte an element of the latent,
// one f32 scale for 128 of them, bf16 for the RoPE part (FlashMLA's format, 656 bytes a layer).
int64_t latent_row_bytes(const ModelConfig& config, bool fp8);
int64_t kv_bytes_per_token(const ModelConfig& config, bool fp8);

}  // namespace moesaic
