// The operations of the model, one function each. This list is the contract between backends: kernels/cpu defines each
// operation (plain reference beside the fast version); a CUDA backend must agree with it.
// Every function: runs on `stream`, allocates nothing (scratch comes from the Arena named in its arguments), reads its
// inputs only, writes only its outputs, treats zero tokens as an ordinary input. Shapes are checked (CHECK): callers
// have validated the model's configuration. Activations are f32 on CPU. The result for one token has the same bits
// whatever other tokens are in the call.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/op_types.h"
#include "kernels/packed_weight.h"
#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace moesaic {

// ---- Linear ------------------------------------------------------------------------------------------------------

// y[m, n] = x[m, k] W[n, k]^T + bias[n].
struct LinearArgs {
  Tensor x;                    // [m, k] f32, rows may be strided
  const PackedWeight* weight;  // [n, k]
  Tensor bias;                 // [n] f32, or undefined
  Tensor y;                    // [m, n] f32, rows may be strided; overwritten
};
void linear(Stream& stream, const LinearArgs& args);

// y[t, h, :] = W[h] x[t, h, :] for every head h (the absorbed k_b and v_b of MLA).
struct HeadLinearArgs {
  Tensor x;  // [num_tokens, num_heads, >= k] f32 contiguous; the first k of each head are read
  std::span<const PackedWeight> weights;  // num_heads matrices [n, k]
  Tensor y;  // [num_tokens, num_heads, >= n] f32 contiguous; the first n of each head are written
};
void head_linear(Stream& stream, const HeadLinearArgs& args);

// Rows of group g go through weights[g]. Groups with no rows are skipped; rows outside every group are neither read nor
// written. Contiguous form: x [num_rows, k], group_begin gives the (aligned) start of each expert's rows. Masked form:
// x viewed as [num_groups * max_rows, k] with group_begin[g] = g * max_rows. With y_begin, a group's outputs lie
// elsewhere than its inputs.
struct GroupedLinearArgs {
  Tensor x;                               // [num_rows, k] f32
  std::span<const PackedWeight> weights;  // num_groups matrices [n, k]
  std::span<const int32_t> group_begin;   // [num_groups]
  std::span<const int32_t> group_rows;    // [num_groups], >= 0
  Tensor y;                               // [num_rows of y, n] f32
  std::span<const int32_t> y_begin = {};  // [num_groups]; empty: group_begin
};
void grouped_linear(Stream& stream, const GroupedLinearArgs& args);

// ---- FP8 activations -----------------------------------------------------------------------------------------------

// Per row and 128 channels (the last group may be shorter): scale = max(amax, 1e-4) / 448, q = e4m3(x / scale).
struct QuantizeArgs {
  Tensor x;       // [m, k] f32
  Tensor q;       // [m, k] e4m3
  Tensor scales;  // [m, ceil(k / 128)] f32
};
void quantize_fp8(Stream& stream, const QuantizeArgs& args);
// y = q * scale.
void dequantize_fp8(Stream& stream, const Tensor& q, const Tensor& scales, const Tensor& y);
// y = dequantize(quantize(x)) without the intermediate; y may be x.
void round_trip_fp8(Stream& stream, const Tensor& x, const Tensor& y);

// ---- Elementwise and norms -----------------------------------------------------------------------------------------

// y = x / sqrt(mean(x^2) + eps) * weight, row by row. y may be x. Rows may be strided.
struct RmsNormArgs {
  Tensor x;       // [m, n] f32
  Tensor weight;  // [n] f32
  float eps;
  Tensor y;  // [m, n] f32
};
void rms_norm(Stream& stream, const RmsNormArgs& args);

// y += x.
void add_inplace(Stream& stream, const Tensor& y, const Tensor& x);

// y[m, n] = silu(gate_up[m, :n]) * gate_up[m, n:]. Rows named by groups as in GroupedLinearArgs, or all when the spans
// are empty. With fp8 set, y is additionally rounded through e4m3 as by round_trip_fp8.
struct SiluMulArgs {
  Tensor gate_up;  // [m, 2n] f32
  Tensor y;        // [m, n] f32
  std::span<const int32_t> group_begin;
  std::span<const int32_t> group_rows;
  bool fp8 = false;
};
void silu_mul(Stream& stream, const SiluMulArgs& args);

// y[t, :] = table[ids[t], :]. Ids are in range (checked).
void embedding(Stream& stream, const Tensor& table /* [vocab, n] f32 or bf16 */, std::span<const int32_t> ids,
               const Tensor& y);

// ---- RoPE --------------------------------------------------------------------------------------------------------

// inv_freq[dim / 2], f64.
void rope_inv_freq(const RopeConfig& config, std::span<double> inv_freq);
// Factor on cos and sin: m(mscale) / m(mscale_all_dim), with m(a) = 0.1 a ln(factor) + 1.
double rope_magnitude(const RopeConfig& config);
// Factor on the softmax scale: m(mscale_all_dim)^2, or 1 without it.
double rope_softmax_factor(const RopeConfig& config);
// cos/sin of positions [0, max_positions): table [max_positions, dim] f32 as (cos, sin) pairs.
void rope_table(const RopeConfig& config, const Tensor& table);

// Rotates the pairs (x[2i], x[2i+1]) of the last `dim` elements of each head into those of y; writes nothing else.
struct RopeArgs {
  Tensor x;  // [num_tokens, num_heads * head_dim] f32, rows may be strided
  int64_t num_heads = 1;
  Tensor table;                        // [max_positions, dim] f32
  std::span<const int32_t> positions;  // [num_tokens]
  Tensor y;                            // [num_tokens, num_heads * its own head_dim] f32; may be x
};
void rope(Stream& stream, const RopeArgs& args);

// ---- MLA ---------------------------------------------------------------------------------------------------------

// The latent cache of one layer: rows of kv_lora_rank normalised latents, then qk_rope_head_dim rotated keys, as f32 or
// bf16; or FP8 rows: the latents as e4m3, one f32 scale per 128 of them (quantize_fp8), the keys as bf16, each of the
// three padded to 4 bytes (DeepSeek-V3: 512 + 16 + 128 = 656 bytes, FlashMLA's row).
struct LatentCache {
  Tensor rows;           // [num_blocks * block_tokens, latent_row_elements] f32, bf16, or e4m3 for FP8 rows
  int64_t block_tokens;  // 64
  int64_t kv_lora_rank;
  int64_t rope_dim;
};

// Elements of `dtype` in a row; for e4m3 these are bytes.
int64_t latent_row_elements(DType dtype, int64_t kv_lora_rank, int64_t rope_dim);

// cache.rows[slots[t]] = x[t], rounded to the rows' format.
void append_latent(Stream& stream, const LatentCache& cache, const Tensor& x /* [num_tokens, lora + rope] f32 */,
                   std::span<const int32_t> slots);

// Queries q_begin .. q_begin + q_len - 1 of the batch are the last q_len positions of a sequence with kv_len cached
// rows (its own included); causal. Row p of the sequence is cache row block_table[p / block_tokens] * block_tokens + p
// % block_tokens.
struct AttentionSpan {
  int32_t q_begin;
  int32_t q_len;
  int32_t kv_len;
  const int32_t* block_table;
};

// Absorbed: out[t, h, :] = sum_p softmax_p(scale * q[t, h, :] . row_p) row_p[:lora]. No span has more than 8 queries.
struct MlaDecodeArgs {
  Tensor q;  // [num_tokens, num_heads, lora + rope] f32: absorbed nope part, then rotated rope part
  LatentCache cache;
  std::span<const AttentionSpan> spans;
  float softmax_scale;
  Tensor out;  // [num_tokens, num_heads, lora] f32
  Arena* arena;
};
void mla_decode(Stream& stream, const MlaDecodeArgs& args);
int64_t mla_decode_arena_bytes(int64_t num_tokens, int64_t num_heads, int64_t max_kv_len, const LatentCache& cache);

// Expanded: keys and values of the cached rows are made by kv_b tile by tile, tiles at fixed absolute positions, so
// that a prompt gives the same bits whole or in chunks.
struct MlaPrefillArgs {
  Tensor q;  // [num_tokens, num_heads * (nope + rope)] f32, rope part rotated; rows may be strided
  LatentCache cache;
  const PackedWeight* kv_b;  // [num_heads * (nope + v), lora]; per head nope key rows, then v value rows
  bool fp8 = false;          // round the latents through e4m3 before kv_b
  int64_t nope_dim;
  int64_t v_dim;
  std::span<const AttentionSpan> spans;
  float softmax_scale;
  Tensor out;  // [num_tokens, num_heads * v] f32; rows may be strided
  Arena* arena;
};
void mla_prefill(Stream& stream, const MlaPrefillArgs& args);
int64_t mla_prefill_arena_bytes(int64_t num_tokens, int64_t num_heads, int64_t nope_dim, int64_t v_dim,
                                const LatentCache& cache);

// ---- Gate --------------------------------------------------------------------------------------------------------

// Scores and selection in f32; the bias selects but never weighs. Ties go to the lower expert. A row with any NaN
// logit, and a padding row, gets ids -1 and weights 0. Mixtral's gate is softmax, greedy, norm_topk_prob, one group.
struct GateArgs {
  Tensor logits;  // [num_tokens, num_experts] f32
  Tensor bias;    // [num_experts] f32 e_score_correction_bias, or undefined
  ScoringFunc scoring_func;
  TopkMethod topk_method;
  int64_t n_group;
  int64_t topk_group;
  bool norm_topk_prob;
  float routed_scaling_factor;
  Tensor topk_ids;      // [num_tokens, num_experts_per_tok] i32, best first; -1 = not routed
  Tensor topk_weights;  // [num_tokens, num_experts_per_tok] f32
};
void gate(Stream& stream, const GateArgs& args);

// ---- Sampling ----------------------------------------------------------------------------------------------------

// logits[i] -= frequency_penalty * counts[i] + presence_penalty * (counts[i] > 0); repetition as in Hugging Face (seen
// tokens, prompt included: divide positive logits, multiply negative ones).
struct PenaltyArgs {
  std::span<float> logits;  // [vocab], in place
  std::span<const int32_t> prompt_ids;
  std::span<const int32_t> output_ids;
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  float repetition_penalty = 1.0f;
};
void apply_penalties(const PenaltyArgs& args);

// One token from softmax(logits / temperature) cut by top_k, then top_p, then min_p. temperature 0 is argmax (lowest id
// on ties). `uniform` in [0, 1) picks; same arguments, same id. NaN logits never win; all-NaN gives -1.
struct SampleArgs {
  std::span<const float> logits;  // [vocab]
  float temperature = 1.0f;
  int32_t top_k = 0;  // 0 = all
  float top_p = 1.0f;
  float min_p = 0.0f;
  double uniform = 0.0;
};
int32_t sample_token(const SampleArgs& args);

// log(sum(exp(logits))), so that logprob(i) = logits[i] - it.
float log_sum_exp(std::span<const float> logits);

}  // namespace moesaic
