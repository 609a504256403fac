// DType and the conversions between its storage formats and f32.
#pragma once

#include <bit>
#include <cstdint>
#include <ostream>
#include <string_view>

namespace moesaic {

enum class DType : uint8_t { kF32, kBF16, kE4M3, kI32, kI64, kU8 };

// Bytes of one element.
int64_t dtype_bytes(DType dtype);
// "f32", "bf16", "e4m3", "i32", "i64", "u8".
std::string_view dtype_name(DType dtype);
std::ostream& operator<<(std::ostream& out, DType dtype);

// Largest finite e4m3 (the "fn" format: no infinities, 0x7f and 0xff are NaN). OCP 8-bit floating point, table 1.
inline constexpr float kE4M3Max = 448.0f;

inline float bf16_to_f32(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Round to nearest even; NaN stays NaN.
inline uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float e4m3_to_f32(uint8_t bits);
// Round to nearest even; saturates to +-448; NaN gives 0x7f.
uint8_t f32_to_e4m3(float value);

}  // namespace moesaic
