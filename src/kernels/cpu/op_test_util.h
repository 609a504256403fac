// What the tests of the operations share: random tensors, bitwise comparison, one run for every instruction set.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "base/thread.h"
#include "gtest/gtest.h"
#include "kernels/cpu/simd.h"
#include "kernels/ops.h"

namespace moesaic::test {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInf = std::numeric_limits<float>::infinity();

// A tensor with its memory.
struct Owned {
  Buffer buffer;
  Tensor tensor;

  Owned() = default;
  Owned(DType dtype, Shape shape)
      : buffer(std::max<int64_t>(1, shape.num_elements()) * dtype_bytes(dtype)), tensor(buffer.data(), dtype, shape) {}
  operator const Tensor&() const { return tensor; }
  float* f32() const { return tensor.f32(); }
};

// Standard normal, by Box and Muller.
inline float gaussian(Rng& rng) {
  const double u = 1.0 - rng.uniform(), v = rng.uniform();
  return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v));
}

inline Owned random_f32(Rng& rng, Shape shape, float scale = 1.0f) {
  Owned owned(DType::kF32, shape);
  for (int64_t i = 0; i < shape.num_elements(); ++i) owned.f32()[i] = gaussian(rng) * scale;
  return owned;
}

inline Owned filled_f32(Shape shape, float value) {
  Owned owned(DType::kF32, shape);
  std::fill_n(owned.f32(), shape.num_elements(), value);
  return owned;
}

inline std::vector<float> values(const Tensor& t) {
  return {t.f32(), t.f32() + t.num_elements()};
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.num_bytes() == b.num_bytes() && (a.num_bytes() == 0 || std::memcmp(a.raw(), b.raw(), a.num_bytes()) == 0);
}

// Runs `body` under every instruction set that this CPU has.
template <typename Body>
void for_each_isa(Body&& body) {
  const Isa before = active_isa();
  for (const Isa isa : {Isa::kPlain, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    if (!isa_supported(isa)) continue;
    SCOPED_TRACE(isa_name(isa));
    force_isa(isa);
    if constexpr (std::is_invocable_v<Body, Isa>) {
      body(isa);
    } else {
      body();
    }
  }
  force_isa(before);
}

}  // namespace moesaic::test
