// Any bytes as a safetensors file: every tensor that is accepted lies inside the file.
#include <cstddef>
#include <cstdint>

#include "model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto file = moesaic::parse_safetensors(bytes);
  if (file.ok()) {
    for (const auto& [name, info] : file->tensors) {
      if (info.begin < 0 || info.begin > info.end) __builtin_trap();
      if (file->data_begin + info.end > static_cast<int64_t>(size)) __builtin_trap();
    }
  }
  (void)moesaic::parse_safetensors_index(bytes);
  return 0;
}
