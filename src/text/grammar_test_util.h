// Helpers of the grammar tests: short ways to a Grammar and to what it says of a text.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/rng.h"
#include "text/grammar_matcher.h"
#include "text/output_grammar.h"

namespace moesaic {

using Json = nlohmann::ordered_json;

absl::StatusOr<std::shared_ptr<const Grammar>> regex_grammar(std::string_view pattern);
absl::StatusOr<std::shared_ptr<const Grammar>> ebnf_grammar(std::string_view text);
absl::StatusOr<std::shared_ptr<const Grammar>> schema_grammar(std::string_view schema);

// What a grammar says of texts.
class Recognizer {
 public:
  explicit Recognizer(std::shared_ptr<const Grammar> grammar) : states_(std::move(grammar)) {}
  bool is_prefix(std::string_view text) { return state_after(text) != GrammarStates::kDead; }
  bool is_word(std::string_view text) { return states_.complete(state_after(text)); }
  // A short word that begins with `text`, by breadth-first search; "?" if none is found near.
  std::string completed(std::string_view text);
  // A word by a random walk that prefers to end after `min_bytes`; gives up ("?") far behind it.
  std::string random_word(Rng& rng, size_t min_bytes);

 private:
  GrammarStates::State state_after(std::string_view text);
  GrammarStates states_;
};

// The demo checkpoint's tokenizer, 4,096 tokens; lives for the whole process.
const Tokenizer& demo_tokenizer();
constexpr int64_t kDemoVocabSize = 4096;

// Cuts `text` at random into tokens of the demo vocabulary.
std::vector<int32_t> random_tokens(std::string_view text, Rng& rng);

inline bool has_bit(const std::vector<uint64_t>& mask, int32_t id) {
  return (mask[id >> 6] >> (id & 63) & 1) != 0;
}

}  // namespace moesaic
