#include "text/code_point_reader.h"

#include <algorithm>

#include "text/utf8.h"

namespace moesaic {

bool CodePointReader::take(std::string_view expected) {
  if (!rest().starts_with(expected)) return false;
  at_ += expected.size();
  return true;
}

uint32_t CodePointReader::next() {
  const Utf8Step step = utf8_step(rest());
  at_ += step.length;
  return step.code_point;
}

std::optional<uint32_t> CodePointReader::hex(int digits) {
  const std::string_view text = rest().substr(0, digits);
  uint32_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + digits) return std::nullopt;
  at_ += digits;
  return value;
}

std::optional<int> CodePointReader::number() {
  if (peek() < '0' || peek() > '9') return std::nullopt;
  int value = 0;
  for (; peek() >= '0' && peek() <= '9'; ++at_) value = std::min(value * 10 + (peek() - '0'), 1'000'000);
  return value;
}

std::optional<CodePointReader::Counts> CodePointReader::counts() {
  const size_t begin = at_;
  if (take("{")) {
    if (const std::optional<int> min = number()) {
      if (take("}")) return Counts{*min, *min};
      if (take(",")) {
        const std::optional<int> max = number();
        if (take("}")) return Counts{*min, max.value_or(-1)};
      }
    }
  }
  at_ = begin;
  return std::nullopt;
}

}  // namespace moesaic
