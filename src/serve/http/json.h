// JSON of the HTTP front end: a strict parser for bodies from outside, and string escaping for answers. Values keep
// their key order (chat templates show tools in the user's order). Pure functions.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/status.h"

namespace moesaic {

using Json = nlohmann::ordered_json;

inline constexpr int kMaxJsonDepth = 128;

// Refuses invalid UTF-8, lone surrogates, NaN and Infinity, numbers beyond double, nesting over kMaxJsonDepth,
// duplicate keys and trailing text. Time and memory are linear in the text (n log n in the keys of one object).
absl::StatusOr<Json> parse_json(std::string_view text);

// `text` in quotes, escaped; broken UTF-8 becomes U+FFFD.
void append_json_string(std::string& out, std::string_view text);
std::string json_string(std::string_view text);
// A finite number in its shortest form; others as -9999.0, the value that OpenAI uses for "impossible".
void append_json_number(std::string& out, float value);
// Code points in valid UTF-8.
size_t count_code_points(std::string_view text);

}  // namespace moesaic
