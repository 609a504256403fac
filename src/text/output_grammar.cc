#include "text/output_grammar.h"

#include <algorithm>

#include "text/ebnf_grammar.h"
#include "text/json_exprs.h"
#include "text/json_schema_grammar.h"
#include "text/regex_grammar.h"

namespace moesaic {
namespace {

absl::StatusOr<GrammarBuilder::Expr> expr_of(const OutputFormat& format, GrammarBuilder* builder) {
  switch (format.kind) {
    case OutputFormat::Kind::kRegex:
      return regex_expr(format.text, {}, builder);
    case OutputFormat::Kind::kChoice:
      if (std::find(format.choices.begin(), format.choices.end(), "") != format.choices.end()) {
        return absl::InvalidArgumentError("has an empty choice");
      }
      return JsonExprs(builder).one_of(format.choices);
    case OutputFormat::Kind::kJsonSchema: {
      MOESAIC_ASSIGN_OR_RETURN(const GrammarBuilder::Rule rule, json_schema_rule(*format.schema, builder));
      return builder->call(rule);
    }
    case OutputFormat::Kind::kEbnf: {
      MOESAIC_ASSIGN_OR_RETURN(const GrammarBuilder::Rule rule, ebnf_rule(format.text, builder));
      return builder->call(rule);
    }
    case OutputFormat::Kind::kJsonObject:
    case OutputFormat::Kind::kNone:
      break;
  }
  return JsonExprs(builder).object();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Grammar>> output_grammar(const OutputFormat& format, std::string_view tag,
                                                              const ToolCalls& calls) {
  if (format.kind == OutputFormat::Kind::kNone && !calls.is_forced) return nullptr;
  GrammarBuilder builder;
  std::vector<GrammarBuilder::Expr> choices;
  if (calls.format != ToolFormat::kNone) choices.push_back(tool_calls_expr(calls, &builder));
  if (!calls.is_forced) {
    MOESAIC_ASSIGN_OR_RETURN(choices.emplace_back(), expr_of(format, &builder));
  }
  const GrammarBuilder::Rule root = builder.new_rule("root");
  builder.define(root, builder.alt(std::move(choices)));
  return builder.build(root, tag);
}

}  // namespace moesaic
