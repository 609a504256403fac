#include "kernels/cpu/mla_cache.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/quantize_rows.h"
#include "kernels/cpu/vector_ops.h"

namespace moesaic {
namespace {

constexpr int64_t kScaleGroup = 128;

int64_t pad4(int64_t bytes) {
  return (bytes + 3) / 4 * 4;
}

// Where the parts of an FP8 row lie, in bytes.
struct Fp8Row {
  explicit Fp8Row(int64_t lora) : scales(pad4(lora)), rope(scales + (lora + kScaleGroup - 1) / kScaleGroup * 4) {}
  int64_t scales, rope;
};

void write_row(const LatentCache& cache, int64_t row, const float* from) {
  const int64_t lora = cache.kv_lora_rank, width = latent_width(cache);
  if (cache.rows.dtype() == DType::kF32) {
    std::memcpy(cache.rows.row<float>(row), from, width * sizeof(float));
    return;
  }
  const VectorOps& ops = vector_ops();
  if (cache.rows.dtype() == DType::kBF16) return ops.narrow_bf16(from, width, cache.rows.row<uint16_t>(row));
  const Fp8Row parts(lora);
  uint8_t* bytes = cache.rows.row<uint8_t>(row);
  quantize_fp8_row(from, lora, bytes, reinterpret_cast<float*>(bytes + parts.scales));
  ops.narrow_bf16(from + lora, width - lora, reinterpret_cast<uint16_t*>(bytes + parts.rope));
}

}  // namespace

int64_t latent_row_elements(DType dtype, int64_t kv_lora_rank, int64_t rope_dim) {
  if (dtype != DType::kE4M3) return kv_lora_rank + rope_dim;
  return Fp8Row(kv_lora_rank).rope + pad4(2 * rope_dim);
}

void read_latent(const LatentCache& cache, int64_t row, float* latent, float* rope) {
  const VectorOps& ops = vector_ops();
  const int64_t lora = cache.kv_lora_rank, rope_dim = cache.rope_dim;
  switch (cache.rows.dtype()) {
    case DType::kF32: {
      const float* from = cache.rows.row<float>(row);
      std::memcpy(latent, from, lora * sizeof(float));
      std::memcpy(rope, from + lora, rope_dim * sizeof(float));
      return;
    }
    case DType::kBF16: {
      const uint16_t* from = cache.rows.row<uint16_t>(row);
      ops.widen_bf16(from, lora, latent);
      ops.widen_bf16(from + lora, rope_dim, rope);
      return;
    }
    default:
      break;
  }
  const Fp8Row parts(lora);
  const uint8_t* bytes = cache.rows.row<uint8_t>(row);
  const float* scales = reinterpret_cast<const float*>(bytes + parts.scales);
  for (int64_t i = 0; i < lora; i += kScaleGroup) {
    ops.widen_e4m3(bytes + i, scales[i / kScaleGroup], std::min(kScaleGroup, lora - i), latent + i);
  }
  ops.widen_bf16(reinterpret_cast<const uint16_t*>(bytes + parts.rope), rope_dim, rope);
}

void check_cache(const LatentCache& cache) {
  const DType dtype = cache.rows.dtype();
  MOESAIC_CHECK(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kE4M3);
  MOESAIC_CHECK_GT(cache.block_tokens, 0);
  MOESAIC_CHECK_EQ(cache.rows.dim(1), latent_row_elements(dtype, cache.kv_lora_rank, cache.rope_dim));
}

void check_spans(const LatentCache& cache, std::span<const AttentionSpan> spans, int64_t num_tokens) {
  const int64_t num_blocks = cache.rows.dim(0) / cache.block_tokens;
  for (const AttentionSpan& span : spans) {
    MOESAIC_CHECK(span.q_begin >= 0 && span.q_len >= 0 && int64_t{span.q_begin} + span.q_len <= num_tokens);
    MOESAIC_CHECK_GE(span.kv_len, 0);
    for (int64_t b = 0; b * cache.block_tokens < span.kv_len; ++b) {
      MOESAIC_CHECK(span.block_table[b] >= 0 && span.block_table[b] < num_blocks);
    }
  }
}

void append_latent(Stream& stream, const LatentCache& cache, const Tensor& x, std::span<const int32_t> slots) {
  check_cache(cache);
  MOESAIC_CHECK_EQ(x.dim(0), static_cast<int64_t>(slots.size()));
  MOESAIC_CHECK_EQ(x.dim(1), latent_width(cache));
  for (const int32_t slot : slots) MOESAIC_CHECK(slot >= 0 && slot < cache.rows.dim(0));
  if (slots.empty()) return;
  x.f32();
  stream.pool().parallel_for(static_cast<int64_t>(slots.size()), 32, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) write_row(cache, slots[t], x.row<float>(t));
  });
}

}  // namespace moesaic
