// UTF-8 checking and repair, one rule for the whole system: each maximal broken part becomes one U+FFFD, which is what
// Python's bytes.decode("utf-8", "replace") and Rust's from_utf8_lossy give. Free functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace moesaic {

struct Utf8Step {
  uint32_t code_point = 0;  // meaningful only if valid
  uint8_t length = 0;       // bytes of the character, or of the maximal broken part (at least 1)
  bool valid = false;
  bool incomplete = false;  // not valid, but more bytes could make it a character
};

// Reads one step at the start of `text`, which must not be empty.
Utf8Step utf8_step(std::string_view text);

bool is_valid_utf8(std::string_view text);

// Appends the repaired `text` to `out`. Returns the bytes taken: all of them if `final`; otherwise a character that is
// still incomplete at the end (at most 3 bytes) is left alone.
size_t append_utf8(std::string_view text, bool final, std::string& out);

std::string repair_utf8(std::string_view text);

void append_code_point(uint32_t code_point, std::string& out);

}  // namespace moesaic
