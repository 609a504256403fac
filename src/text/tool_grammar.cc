#include "text/tool_grammar.h"

#include <nlohmann/json.hpp>

#include "text/json_exprs.h"
#include "text/json_schema_grammar.h"
#include "text/tool_tags.h"

namespace moesaic {
namespace {

using Expr = GrammarBuilder::Expr;
using Json = nlohmann::ordered_json;

// Of all tools together: so much takes a tenth of a second.
constexpr int64_t kMaxToolNodes = GrammarBuilder::kMaxNodes / 4;

// Adds the schema's share to *num_nodes. Errors say what cannot be followed, or that no more fits.
absl::Status check_schema(const Json& schema, int64_t* num_nodes) {
  const absl::Status too_large = absl::InvalidArgumentError("the schemas of the tools are too large together");
  if (*num_nodes > kMaxToolNodes) return too_large;
  GrammarBuilder builder;
  MOESAIC_ASSIGN_OR_RETURN(const GrammarBuilder::Rule rule, json_schema_rule(schema, &builder));
  const auto grammar = builder.build(rule);
  *num_nodes += grammar.ok() ? (*grammar)->num_nodes() : kMaxToolNodes;
  return *num_nodes > kMaxToolNodes ? too_large : grammar.status();
}

class CallExprs {
 public:
  CallExprs(ToolFormat format, GrammarBuilder* builder)
      : is_v3_(format == ToolFormat::kDeepseekV3), builder_(*builder), json_(builder) {}

  // "function<sep>NAME\n```json\nARGUMENTS\n```<end>" (V3) or "NAME<sep>ARGUMENTS<end>" (V3.1), from the name on.
  Expr from_name(const Json& function) {
    const std::string name = function.at("name").get<std::string>();
    const Expr head = is_v3_ ? builder_.literal(str_cat(name, "\n", kJsonFence, "\n"))
                             : builder_.seq({builder_.literal(name), builder_.tag(kCallSep)});
    return builder_.seq({head, from_arguments(function)});
  }

  Expr from_arguments(const Json& function) {
    const Expr fence = is_v3_ ? builder_.literal(str_cat("\n", kFence)) : builder_.empty();
    return builder_.seq({arguments(function.at("parameters")), fence, builder_.tag(kCallEnd)});
  }

  Expr call(Expr from_name) {
    const Expr type = is_v3_ ? builder_.seq({builder_.literal("function"), builder_.tag(kCallSep)}) : builder_.empty();
    return builder_.seq({builder_.tag(kCallBegin), type, from_name});
  }

  // A template may have put a line break between calls.
  Expr further(Expr call) {
    return builder_.repeat(builder_.seq({builder_.optional(builder_.literal("\n")), call}), 0,
                           GrammarBuilder::kUnbounded);
  }

 private:
  Expr arguments(const Json& parameters) {
    if (!check_schema(parameters, &num_nodes_).ok() || parameters.empty()) return json_.object();
    return builder_.call(*json_schema_rule(parameters, &builder_));
  }

  const bool is_v3_;
  GrammarBuilder& builder_;
  JsonExprs json_;
  int64_t num_nodes_ = 0;
};

}  // namespace

std::string forced_call(ToolFormat format, std::string_view name) {
  const bool is_v3 = format == ToolFormat::kDeepseekV3;
  const std::string begin = str_cat(kCallsBegin, kCallBegin, is_v3 ? str_cat("function", kCallSep) : "");
  if (name.empty()) return begin;
  return str_cat(begin, name, is_v3 ? str_cat("\n", kJsonFence, "\n") : std::string(kCallSep));
}

GrammarBuilder::Expr tool_calls_expr(const ToolCalls& calls, GrammarBuilder* builder) {
  CallExprs exprs(calls.format, builder);
  std::vector<Expr> names;
  Expr forced = -1;
  for (const Json& tool : *calls.tools) {
    const Json& function = tool.at("function");
    if (function.at("name") == calls.name) forced = exprs.from_arguments(function);
    names.push_back(exprs.from_name(function));
  }
  const GrammarBuilder::Rule any = builder->new_rule("call");
  builder->define(any, builder->alt(std::move(names)));
  const Expr call = exprs.call(builder->call(any));
  const Expr rest = builder->seq({exprs.further(call), builder->tag(kCallsEnd)});
  if (!calls.is_forced) return builder->seq({builder->tag(kCallsBegin), call, rest});
  return builder->seq({calls.name.empty() ? builder->call(any) : forced, rest});
}

absl::Status check_strict_tools(const Json& tools) {
  int64_t num_nodes = 0;
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json& function = tools[i].at("function");
    const absl::Status status = check_schema(function.at("parameters"), &num_nodes);
    if (function.value("strict", Json(false)) != true) continue;
    MOESAIC_RETURN_IF_ERROR(annotate(status, str_cat("tools[", i, "].function.parameters")));
  }
  return absl::OkStatus();
}

}  // namespace moesaic
