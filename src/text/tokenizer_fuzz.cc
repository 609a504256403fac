// tokenizer.json from hostile hands: loading ends in an error or a tokenizer that encodes and decodes any text.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  // The file, then a zero byte, then a text to encode.
  const size_t split = input.find('\0');
  const std::string_view json = input.substr(0, split);
  const std::string_view text = split == std::string_view::npos ? json.substr(0, 256) : input.substr(split + 1);
  const auto tokenizer = moesaic::Tokenizer::parse(json, "");
  if (!tokenizer.ok()) return 0;
  const auto ids = (*tokenizer)->encode(text);
  const std::string decoded = (*tokenizer)->decode(ids);
  MOESAIC_CHECK(moesaic::is_valid_utf8(decoded));
  moesaic::Detokenizer detokenizer(**tokenizer, false);
  std::string joined;
  for (const int32_t id : ids) joined += detokenizer.add(id);
  joined += detokenizer.flush();
  MOESAIC_CHECK(joined == decoded);
  return 0;
}
