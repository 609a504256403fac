// VectorOps in plain C++: the definition that the other sets equal bit for bit.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/cpu/vector_ops.h"
#include "tensor/dtype.h"

#define VEC_INLINE inline
#define VEC_UNROLL

namespace moesaic {
namespace {
namespace plain {

struct V {
  static constexpr int kGemmRows = 4, kScoreHeads = 2, kScoreKeys = 2, kValueHeads = 2, kValueColumns = 2;
  struct F {
    float v[kLanes];
  };
  static constexpr int kRegisters = 1;
  using H = F;
  template <typename Lane>
  static F each(Lane lane) {
    F f;
    for (int i = 0; i < kLanes; ++i) f.v[i] = lane(i);
    return f;
  }
  static F load(const float* p) {
    return each([&](int i) { return p[i]; });
  }
  static void store(float* p, F a) { std::copy_n(a.v, kLanes, p); }
  static F load_partial(const float* p, int64_t n) {
    return each([&](int i) { return i < n ? p[i] : 0.0f; });
  }
  static void store_partial(float* p, F a, int64_t n) { std::copy_n(a.v, n, p); }
  static F set(float a) {
    return each([&](int) { return a; });
  }
  static F zero() { return set(0.0f); }
  static F add(F a, F b) {
    return each([&](int i) { return a.v[i] + b.v[i]; });
  }
  static F sub(F a, F b) {
    return each([&](int i) { return a.v[i] - b.v[i]; });
  }
  static F mul(F a, F b) {
    return each([&](int i) { return a.v[i] * b.v[i]; });
  }
  static F div(F a, F b) {
    return each([&](int i) { return a.v[i] / b.v[i]; });
  }
  static F fma(F a, F b, F c) {
    return each([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
  }
  // b where one is NaN.
  static F max(F a, F b) {
    return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  static F min(F a, F b) {
    return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
  }
  // `value` where not x < bound, else 0.
  static F keep_not_less(F x, F bound, F value) {
    return each([&](int i) { return x.v[i] < bound.v[i] ? 0.0f : value.v[i]; });
  }
  // 2^n of the integer n in the low bits of `shifted`.
  static F pow2(F shifted) {
    return each(
        [&](int i) { return std::bit_cast<float>((std::bit_cast<uint32_t>(shifted.v[i]) << 23) + 0x3f800000u); });
  }
  static float sum(F a) {
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) a.v[i] += a.v[i + half];
    }
    return a.v[0];
  }
  static float highest(F a) {
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
    }
    return a.v[0];
  }
  static H load_register(const float* p) { return load(p); }
  static void store_register(float* p, H a) { store(p, a); }
  static H set_register(float a) { return set(a); }
  static H pin(H a) { return a; }
  static H zero_register() { return zero(); }
  static F join(const H* parts) { return parts[0]; }
  static float first(F a) { return a.v[0]; }
  static F widen(const uint16_t* p) {
    return each([&](int i) { return bf16_to_f32(p[i]); });
  }
  static void narrow(F a, uint16_t* p) {
    for (int i = 0; i < kLanes; ++i) p[i] = f32_to_bf16(a.v[i]);
  }
  static uint32_t equal(F a, F b) {  // a bit for each lane
    uint32_t bits = 0;
    for (int i = 0; i < kLanes; ++i) bits |= static_cast<uint32_t>(a.v[i] == b.v[i]) << i;
    return bits;
  }
  static F rotate(F x, F turn) {
    F y;
    for (int i = 0; i < kLanes; i += 2) {
      const float cos = turn.v[i], sin = turn.v[i + 1];
      y.v[i] = x.v[i] * cos - x.v[i + 1] * sin;
      y.v[i + 1] = x.v[i + 1] * cos + x.v[i] * sin;
    }
    return y;
  }
  static F widen_e4m3(const uint8_t* p) {
    return each([&](int i) { return e4m3_to_f32(p[i]); });
  }
};

#include "kernels/cpu/vector_ops.inc"

}  // namespace plain
}  // namespace

const VectorOps kPlainVectorOps = plain::kOps;

}  // namespace moesaic
