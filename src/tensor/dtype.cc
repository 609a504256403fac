#include "tensor/dtype.h"

#include <cmath>

#include "base/check.h"

namespace moesaic {

int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
      return 2;
    case DType::kE4M3:
    case DType::kU8:
      return 1;
    case DType::kI64:
      return 8;
  }
  MOESAIC_CHECK(false);
}

std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kE4M3:
      return "e4m3";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
    case DType::kU8:
      return "u8";
  }
  MOESAIC_CHECK(false);
}

std::ostream& operator<<(std::ostream& out, DType dtype) {
  return out << dtype_name(dtype);
}

float e4m3_to_f32(uint8_t bits) {
  if ((bits & 0x7f) == 0x7f) return std::bit_cast<float>(0x7fc00000u);
  // The 7 magnitude bits as the top of an f32 with an exponent bias of 7 instead of 127; exact for subnormals too.
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80) << 24;
  const float magnitude = std::bit_cast<float>(static_cast<uint32_t>(bits & 0x7f) << 20) * 0x1.0p120f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

uint8_t f32_to_e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint8_t sign = static_cast<uint8_t>((bits >> 24) & 0x80);
  if (std::isnan(value)) return 0x7f;
  const float magnitude = std::fabs(value);
  if (magnitude >= kE4M3Max) return sign | 0x7e;
  if (magnitude < 0x1.0p-6f) {  // subnormal: steps of 2^-9; nearbyint rounds to even
    return sign | static_cast<uint8_t>(std::nearbyint(magnitude * 0x1.0p9f));
  }
  uint32_t m = std::bit_cast<uint32_t>(magnitude);
  m += 0x7ffffu + ((m >> 20) & 1u);
  return sign | static_cast<uint8_t>((m >> 20) - ((127 - 7) << 3));
}

}  // namespace moesaic
