#include "cost/model_size.h"

namespace moesaic {
namespace {

constexpr int64_t kBf16Bytes = 2;
constexpr int64_t kScaleGroup = 128;
constexpr int64_t kScaleBytes = 4;

int64_t attention_size(const ModelConfig& c) {
  const int64_t q_out = c.num_attention_heads * c.qk_head_dim();
  const int64_t q = c.q_lora_rank > 0 ? c.hidden_size * c.q_lora_rank + c.q_lora_rank * q_out : c.hidden_size * q_out;
  const int64_t kv_a = c.hidden_size * c.latent_dim();
  const int64_t kv_b = c.kv_lora_rank * c.num_attention_heads * (c.qk_nope_head_dim + c.v_head_dim);
  const int64_t o = c.num_attention_heads * c.v_head_dim * c.hidden_size;
  const int64_t biases = c.attention_bias ? c.q_lora_rank + c.latent_dim() + c.hidden_size : 0;
  return q + kv_a + kv_b + o + biases;
}

}  // namespace

ModelSize::ModelSize(const ModelConfig& c) {
  attention = attention_size(c);
  layer_norms = 2 * c.hidden_size + c.q_lora_rank + c.kv_lora_rank;
  const int64_t ffn = 3 * c.hidden_size;  // gate, up and down projection, for each unit of the hidden layer
  if (c.n_routed_experts > 0) {
    gate = c.n_routed_experts * (c.hidden_size + (c.topk_method == TopkMethod::kNoauxTc ? 1 : 0));
    num_experts = c.n_routed_experts;
    expert = ffn * c.moe_intermediate_size;
    shared_expert = ffn * c.moe_intermediate_size * c.n_shared_experts;
  }
  dense_ffn = ffn * c.intermediate_size;
  embedding = c.vocab_size * c.hidden_size;
  head = c.tie_word_embeddings ? 0 : embedding;
  final_norm = c.hidden_size;
  for (int64_t layer = 0; layer < c.num_hidden_layers; ++layer) num_moe_layers += c.is_moe_layer(layer);
  num_dense_layers = c.num_hidden_layers - num_moe_layers;
  if (c.num_nextn_predict_layers > 0) {
    // Two norms of the inputs, their projection, the norm before the head (DeepSeek-V3 technical report, 2.2).
    mtp_layer =
        moe_layer_without_experts() + num_experts * expert + 3 * c.hidden_size + 2 * c.hidden_size * c.hidden_size;
  }
}

int64_t ModelSize::total() const {
  return touched(num_experts) + embedding;
}

int64_t ModelSize::touched(int64_t num_distinct) const {
  return num_moe_layers * (moe_layer_without_experts() + num_distinct * expert) +
         num_dense_layers * (attention + layer_norms + dense_ffn) + head + final_norm;
}

int64_t latent_row_bytes(const ModelConfig& c, bool fp8) {
  if (!fp8) return c.latent_dim() * kBf16Bytes;
  return c.kv_lora_rank + (c.kv_lora_rank + kScaleGroup - 1) / kScaleGroup * kScaleBytes +
         c.qk_rope_head_dim * kBf16Bytes;
}

int64_t kv_bytes_per_token(const ModelConfig& c, bool fp8) {
  return c.num_hidden_layers * latent_row_bytes(c, fp8);
}

}  // namespace moesaic
