// The inner loops of norms, elementwise operations, gate, sampling and MLA, without threads, one set for each
// instruction set. A logical vector has 16 lanes everywhere (two AVX2 registers, one of AVX-512, an array in plain C++)
// and every multiply-add is fused, so all sets give the same bits. No alignment is needed. Any thread.
#pragma once

#include <cstdint>

namespace moesaic {

inline constexpr int64_t kLanes = 16;
inline constexpr int64_t kDecodeKeys = 64;   // keys of a decode chunk
inline constexpr int64_t kTileKeys = 128;    // keys of a prefill tile
inline constexpr int64_t kQueryRows = 48;    // queries of a prefill block
inline constexpr int64_t kDecodeHeads = 32;  // heads that share one pass over a chunk

// The keys of one chunk meet some query heads of one token.
struct DecodeChunk {
  const float* const* keys;  // num_keys rows [width]
  int64_t num_keys;          // 1 .. kDecodeKeys
  int64_t width;
  int64_t lora;
  const float* q;     // [num_heads, width]
  int64_t num_heads;  // up to kDecodeHeads
  float scale;
  float* max;  // [num_heads] of scaled scores
  float* sum;  // [num_heads] of exp(score - max)
  float* acc;  // [num_heads, lora] of exp(score - max) * row
};

// A block of queries of one head meets a tile of keys.
struct PrefillBlock {
  const float* q;  // num_rows rows [width], q_stride apart
  int64_t q_stride;
  int64_t num_rows;     // up to kQueryRows
  int64_t position;     // of row 0; rows are consecutive
  int64_t key_begin;    // position of the first key
  int64_t num_keys;     // up to kTileKeys
  const float* keys;    // [ceil(num_keys / 16), width, 16]
  const float* values;  // [ceil(v_dim / 16), kTileKeys, 16]
  int64_t width;
  int64_t v_dim;
  float scale;
  float* max;  // num_rows entries, state_stride apart; -infinity at first
  float* sum;  // 0 at first
  int64_t state_stride;
  float* out;  // num_rows rows [v_dim], out_stride apart; 0 at first
  int64_t out_stride;
};

struct VectorOps {
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n, float* y);
  void (*add)(float* y, const float* x, int64_t n);
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* y);
  void (*sigmoid)(const float* x, int64_t n, float* y);
  // y = exp((x - shift) * scale); below about 1e-38 it is 0.
  void (*exp_shifted)(const float* x, float shift, float scale, int64_t n, float* y);
  float (*max)(const float* x, int64_t n);                  // of what is not NaN; -infinity if nothing is
  int64_t (*find)(const float* x, int64_t n, float value);  // the first equal to `value`; n if none is
  void (*widen_bf16)(const uint16_t* x, int64_t n, float* y);
  void (*narrow_bf16)(const float* x, int64_t n, uint16_t* y);             // f32_to_bf16
  void (*widen_e4m3)(const uint8_t* x, float scale, int64_t n, float* y);  // y = x * scale
  // Pairs (x[2i], x[2i+1]) turned by (cos, sin) = turn[2i], turn[2i+1]; n is even; y may be x.
  void (*rotate)(const float* x, const float* turn, int64_t n, float* y);
  // In place: e = exp(row * scale - max); max = the largest scaled value, sum = that of e. n is a multiple of kLanes,
  // scale > 0; -infinity becomes 0.
  void (*softmax)(float* row, int64_t n, float scale, float* max, float* sum);
  void (*decode_chunk)(const DecodeChunk& chunk);
  // (max, sum, acc) takes in another chunk's; the state at first is (-infinity, 0, zeros).
  void (*decode_merge)(const float* chunk_acc, float chunk_max, float chunk_sum, int64_t lora, float* acc, float* max,
                       float* sum);
  void (*prefill_block)(const PrefillBlock& block);
  // y *= factor, and -0 becomes 0.
  void (*scale)(float* y, float factor, int64_t n);
};

// Of active_isa().
const VectorOps& vector_ops();

extern const VectorOps kPlainVectorOps;
#if defined(__x86_64__)
extern const VectorOps kAvx2VectorOps;
extern const VectorOps kAvx512VectorOps;
#endif

}  // namespace moesaic
