// Any bytes as config.json: parse() answers with a config or an error.
#include <cstddef>
#include <cstdint>

#include "model/model_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto config = moesaic::ModelConfig::parse(std::string_view(reinterpret_cast<const char*>(data), size));
  // What was accepted must be usable.
  if (config.ok() && !(config->softmax_scale() > 0.0f)) __builtin_trap();
  return 0;
}
