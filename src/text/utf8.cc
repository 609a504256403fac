#include "text/utf8.h"

#include <cstring>

namespace moesaic {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Length of the leading run of ASCII.
size_t ascii_prefix(std::string_view text) {
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    if (word & 0x8080808080808080ull) break;
  }
  while (i < text.size() && static_cast<uint8_t>(text[i]) < 0x80) ++i;
  return i;
}

}  // namespace

Utf8Step utf8_step(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, true, false};
  if (lead < 0xC2 || lead > 0xF4) return {0, 1, false, false};
  const int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and what lies above U+10FFFF (Unicode, table 3-7).
  const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  uint32_t code_point = lead & (0x7F >> length);
  for (int i = 1; i < length; ++i) {
    if (static_cast<size_t>(i) == text.size()) return {0, static_cast<uint8_t>(i), false, true};
    const uint8_t b = byte(i);
    const bool fits = i == 1 ? b >= low && b <= high : (b & 0xC0) == 0x80;
    if (!fits) return {0, static_cast<uint8_t>(i), false, false};
    code_point = code_point << 6 | (b & 0x3F);
  }
  return {code_point, static_cast<uint8_t>(length), true, false};
}

bool is_valid_utf8(std::string_view text) {
  while (true) {
    text.remove_prefix(ascii_prefix(text));
    if (text.empty()) return true;
    const Utf8Step step = utf8_step(text);
    if (!step.valid) return false;
    text.remove_prefix(step.length);
  }
}

size_t append_utf8(std::string_view text, bool final, std::string& out) {
  const char* const begin = text.data();
  const size_t size = text.size();
  while (!text.empty()) {
    const size_t ascii = ascii_prefix(text);
    if (ascii > 0) {
      out.append(text.substr(0, ascii));
      text.remove_prefix(ascii);
      continue;
    }
    const Utf8Step step = utf8_step(text);
    if (step.incomplete && !final) return text.data() - begin;
    out.append(step.valid ? text.substr(0, step.length) : kReplacement);
    text.remove_prefix(step.length);
  }
  return size;
}

std::string repair_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  append_utf8(text, /*final=*/true, out);
  return out;
}

void append_code_point(uint32_t c, std::string& out) {
  const auto put = [&](uint32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xC0 | c >> 6);
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
  }
  put(0x80 | (c & 0x3F));
}

}  // namespace moesaic
