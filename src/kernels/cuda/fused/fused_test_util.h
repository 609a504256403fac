// What the tests of this folder share: quantised rows read back, references of the CPU on one thread.
#pragma once

#include <string>
#include <vector>

#include "kernels/cuda/scales.h"
#include "kernels/cuda/test_util.h"
#include "kernels/ops.h"

namespace moesaic::cuda::test {

// A pool of one thread and its stream, for the CPU's operations.
struct CpuStream {
  ThreadPool pool{1};
  Stream stream{pool};
};

inline Tensor f32_view(std::vector<float>& values, Shape shape) {
  return {values.data(), DType::kF32, shape};
}

// Rounded to bf16, as the device will see them.
inline std::vector<float> bf16_values(Rng& rng, int64_t count, float scale = 1.0f) {
  return widen_bf16(to_bf16(gaussians(rng, count, scale)));
}

// A matrix [m, k] quantised on the device and what it should be.
struct Quantized {
  DeviceTensor q, scales;
  Quantized(int64_t m, int64_t k)
      : q(poisoned(DType::kE4M3, {m, k})), scales(poisoned(DType::kF32, {k / kScaleGroup, scale_row_stride(m)})) {}
};

// Codes and scales of `values` by the CPU's definition; scales [m, k / 128].
struct CpuQuantized {
  std::vector<uint8_t> q;
  std::vector<float> scales;
  CpuQuantized(std::vector<float> values, int64_t m, int64_t k) : q(m * k), scales(m * (k / kScaleGroup)) {
    CpuStream cpu;
    quantize_fp8(cpu.stream, {.x = f32_view(values, {m, k}),
                              .q = {q.data(), DType::kE4M3, {m, k}},
                              .scales = f32_view(scales, {m, k / kScaleGroup})});
  }
};

}  // namespace moesaic::cuda::test
