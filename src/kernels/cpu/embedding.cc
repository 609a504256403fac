// Rows of the embedding table, as f32.
#include <cstring>

#include "kernels/ops.h"

namespace moesaic {

void embedding(Stream& stream, const Tensor& table, std::span<const int32_t> ids, const Tensor& y) {
  const int64_t vocab = table.dim(0), n = table.dim(1);
  MOESAIC_CHECK_EQ(y.dim(0), static_cast<int64_t>(ids.size()));
  MOESAIC_CHECK_EQ(y.dim(1), n);
  MOESAIC_CHECK(table.dtype() == DType::kF32 || table.dtype() == DType::kBF16);
  for (const int32_t id : ids) MOESAIC_CHECK(id >= 0 && id < vocab);
  if (ids.empty()) return;
  y.f32();
  // Copies: a few rows a worker at least, or waking the pool costs more than it gains.
  stream.pool().parallel_for(static_cast<int64_t>(ids.size()), 16, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* to = y.row<float>(t);
      if (table.dtype() == DType::kF32) {
        std::memcpy(to, table.row<float>(ids[t]), n * sizeof(float));
        continue;
      }
      const uint16_t* from = table.row<uint16_t>(ids[t]);
      for (int64_t i = 0; i < n; ++i) to[i] = bf16_to_f32(from[i]);
    }
  });
}

}  // namespace moesaic
