#include "text/grammar_test_util.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "base/check.h"
#include "text/text_test_util.h"

namespace moesaic {
namespace {

constexpr int64_t kWork = 1'000'000;

const std::multimap<std::string, int32_t>& demo_tokens() {
  static const auto& tokens = *[] {
    auto* made = new std::multimap<std::string, int32_t>;
    const Tokenizer& tokenizer = demo_tokenizer();
    for (int32_t id = 0; id < tokenizer.size(); ++id) {
      if (!tokenizer.is_special(id)) made->emplace(tokenizer.token_bytes(id), id);
    }
    return made;
  }();
  return tokens;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Grammar>> regex_grammar(std::string_view pattern) {
  return output_grammar({.kind = OutputFormat::Kind::kRegex, .text = std::string(pattern)});
}

absl::StatusOr<std::shared_ptr<const Grammar>> ebnf_grammar(std::string_view text) {
  return output_grammar({.kind = OutputFormat::Kind::kEbnf, .text = std::string(text)});
}

absl::StatusOr<std::shared_ptr<const Grammar>> schema_grammar(std::string_view schema) {
  return output_grammar(
      {.kind = OutputFormat::Kind::kJsonSchema, .schema = std::make_shared<const Json>(Json::parse(schema))});
}

GrammarStates::State Recognizer::state_after(std::string_view text) {
  GrammarStates::State state = states_.start();
  states_.allow_work(kWork);
  for (const char byte : text) state = states_.step(state, static_cast<uint8_t>(byte));
  return state;
}

std::string Recognizer::completed(std::string_view text) {
  std::deque<std::pair<GrammarStates::State, std::string>> open = {{state_after(text), std::string(text)}};
  std::set<GrammarStates::State> seen = {GrammarStates::kDead};
  while (!open.empty() && seen.size() < 5'000) {
    const auto [state, word] = open.front();
    open.pop_front();
    if (states_.complete(state)) return word;
    for (int byte = 0; byte < 256; ++byte) {
      states_.allow_work(kWork);
      const GrammarStates::State next = states_.step(state, static_cast<uint8_t>(byte));
      if (seen.insert(next).second) open.emplace_back(next, word + static_cast<char>(byte));
    }
  }
  return "?";
}

std::string Recognizer::random_word(Rng& rng, size_t min_bytes) {
  std::string word;
  GrammarStates::State state = states_.start();
  while (word.size() < min_bytes) {
    std::vector<uint8_t> possible;
    for (int byte = 0; byte < 256; ++byte) {
      states_.allow_work(kWork);
      if (states_.step(state, static_cast<uint8_t>(byte)) != GrammarStates::kDead) possible.push_back(byte);
    }
    if (possible.empty()) return word;
    const uint8_t byte = possible[rng.below(possible.size())];
    word += static_cast<char>(byte);
    state = states_.step(state, byte);
  }
  return completed(word);
}

const Tokenizer& demo_tokenizer() {
  static const Tokenizer& tokenizer = *Tokenizer::load(source_path("models/tiny-deepseek-v3"))->release();
  return tokenizer;
}

std::vector<int32_t> random_tokens(std::string_view text, Rng& rng) {
  std::vector<int32_t> ids;
  while (!text.empty()) {
    std::vector<int32_t> possible;
    for (size_t size = 1; size <= std::min<size_t>(text.size(), 24); ++size) {
      const auto [first, last] = demo_tokens().equal_range(std::string(text.substr(0, size)));
      for (auto it = first; it != last; ++it) possible.push_back(it->second);
    }
    MOESAIC_CHECK(!possible.empty());  // every byte is a token
    ids.push_back(possible[rng.below(possible.size())]);
    text.remove_prefix(demo_tokenizer().token_bytes(ids.back()).size());
  }
  return ids;
}

}  // namespace moesaic
