// What a model writes to call tools, in the text form of its ToolFormat: the beginning of a call that a request
// demands, and the grammar of calls. Their arguments follow the tool's parameters as far as json_schema_grammar.h goes;
// where it does not, and where the tools before are large, they are any JSON object. Pure functions.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "base/status.h"
#include "text/grammar_builder.h"
#include "text/output_parser.h"

namespace moesaic {

// The beginning of the first call of any tool, or of the one with this name: up to the arguments.
std::string forced_call(ToolFormat format, std::string_view name);

struct ToolCalls {
  ToolFormat format = ToolFormat::kNone;          // kNone: no calls
  const nlohmann::ordered_json* tools = nullptr;  // OpenAI's list; each has function.name and .parameters
  bool is_forced = false;                         // the text begins behind forced_call(format, name)
  std::string name;
};
// One call or more and what closes them. `calls` has a format.
GrammarBuilder::Expr tool_calls_expr(const ToolCalls& calls, GrammarBuilder* builder);

// INVALID_ARGUMENT names the first tool with `strict` whose parameters cannot be followed, and where.
absl::Status check_strict_tools(const nlohmann::ordered_json& tools);

}  // namespace moesaic
