// Schemas, regexes and grammars from hostile hands: an error or a grammar that a matcher follows in bounded time, whose
// every allowed byte leads on. The first byte chooses the form; after a zero byte comes an output to follow.
#include <cstdint>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "text/grammar_states.h"
#include "text/output_grammar.h"

namespace {

using moesaic::GrammarStates;
using moesaic::OutputFormat;

constexpr int64_t kWork = 100'000;

bool read_format(std::string_view input, OutputFormat* format) {
  static constexpr OutputFormat::Kind kKinds[] = {OutputFormat::Kind::kJsonSchema, OutputFormat::Kind::kRegex,
                                                  OutputFormat::Kind::kEbnf, OutputFormat::Kind::kChoice};
  format->kind = kKinds[input[0] & 3];
  format->text = input.substr(1);
  format->choices = {format->text, format->text.substr(0, format->text.size() / 2)};
  if (format->kind != OutputFormat::Kind::kJsonSchema) return true;
  const auto schema = nlohmann::ordered_json::parse(format->text, nullptr, /*allow_exceptions=*/false);
  format->schema = std::make_shared<const nlohmann::ordered_json>(schema);
  return !schema.is_discarded();
}

void follow(GrammarStates& states, std::string_view text) {
  GrammarStates::State state = states.start();
  for (const char byte : text) {
    states.allow_work(kWork);
    const GrammarStates::State next = states.step(state, static_cast<uint8_t>(byte));
    if (next == GrammarStates::kDead) return;
    MOESAIC_CHECK(states.can_continue(next) || states.complete(next));
    const GrammarStates::State local = states.local(next);
    MOESAIC_CHECK(states.local(local) == local);
    state = next;
  }
  GrammarStates::State* used[] = {&state};
  const bool complete = states.complete(state);
  states.compact(used);
  MOESAIC_CHECK(states.complete(state) == complete);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (input.empty()) return 0;
  const size_t split = input.find('\0', 1);
  OutputFormat format;
  if (!read_format(input.substr(0, split), &format)) return 0;
  for (const std::string_view tag : {"", "</think>"}) {
    const auto grammar = moesaic::output_grammar(format, tag);
    if (!grammar.ok()) {
      MOESAIC_CHECK(grammar.status().code() == absl::StatusCode::kInvalidArgument);
      continue;
    }
    GrammarStates states(*grammar);
    if (split != std::string_view::npos) follow(states, input.substr(split + 1));
    follow(states, "{\"a\": [1, \"b\"]}");
  }
  return 0;
}
