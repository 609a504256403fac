// TokenizerSpec: what tokenizer.json and tokenizer_config.json say, checked and in the form that the Tokenizer uses.
// Internal to the folder. A value; built once.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pre_tokenizer.h"
#include "text/vocab.h"

namespace moesaic {

struct TokenizerSpec {
  Vocab vocab;
  Bpe bpe;
  bool ignore_merges = false;
  PreTokenizer pre_tokenizer;
  // The reference looks for added tokens twice: first those that are not "normalized", then, between them, the others.
  AddedTokens raw_added;
  AddedTokens normalized_added;
  std::vector<bool> special;  // by id

  // tokenizer_config.json
  bool add_bos_token = false;
  std::string bos_token;
  std::string eos_token;
};

// Errors name the place in the file ("tokenizer.json: model.merges[17]: ...").
absl::StatusOr<TokenizerSpec> parse_tokenizer_spec(std::string_view tokenizer_json,
                                                   std::string_view tokenizer_config_json);

}  // namespace moesaic
