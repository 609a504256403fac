#include "text/detokenizer.h"

#include "text/utf8.h"

namespace moesaic {

std::string Detokenizer::add(int32_t id) {
  if (skip_special_tokens_ && tokenizer_->is_special(id)) return {};
  pending_ += tokenizer_->token_bytes(id);
  std::string text;
  pending_.erase(0, append_utf8(pending_, /*final=*/false, text));
  return text;
}

std::string Detokenizer::flush() {
  std::string text;
  append_utf8(pending_, /*final=*/true, text);
  pending_.clear();
  return text;
}

}  // namespace moesaic
