// The safetensors format: u64 header length, a JSON header, then the data section. Pure functions over bytes; hostile
// input gives INVALID_ARGUMENT. https://github.com/huggingface/safetensors#format
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/checkpoint.h"

namespace moesaic {

struct SafetensorsFile {
  int64_t data_begin = 0;  // bytes from the start of the file
  std::map<std::string, TensorInfo> tensors;
};

// A whole file's bytes. Only the header is read.
absl::StatusOr<SafetensorsFile> parse_safetensors(std::string_view file);

// model.safetensors.index.json: file name -> the tensors that it holds.
absl::StatusOr<std::map<std::string, std::vector<std::string>>> parse_safetensors_index(std::string_view json);

}  // namespace moesaic
