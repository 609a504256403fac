// Helpers of this folder's tests: files of the source tree, and a byte tokenizer (the 256 bytes as ids 0..255, a few
// merges, DeepSeek's special tokens).
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace moesaic {

std::string source_path(const std::string& relative);
std::string read_source_file(const std::string& relative);
nlohmann::ordered_json byte_tokenizer();

}  // namespace moesaic
