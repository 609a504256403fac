#include "text/jinja_expr_parser.h"

#include <algorithm>
#include <charconv>

#include "text/jinja_builtins.h"

namespace moesaic::jinja {

ExprPtr ExprParser::make(ExprKind kind, const Token& token, std::string name) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->place = token.place;
  expr->name = std::move(name);
  return expr;
}

// Sets the depth; every operator's node passes through here.
ExprParser::Result ExprParser::finish(ExprPtr expr) const {
  for (const ExprPtr& arg : expr->args) {
    if (arg) expr->depth = std::max(expr->depth, arg->depth + 1);
  }
  for (const auto& [name, arg] : expr->named) expr->depth = std::max(expr->depth, arg->depth + 1);
  if (expr->depth > kMaxExprDepth) {
    return template_error(expr->place, str_cat("the expression is deeper than ", kMaxExprDepth, " operations"));
  }
  return expr;
}

ExprParser::Result ExprParser::parse(bool allow_choice) {
  if (nesting_ >= kMaxNesting) {
    return template_error(tokens_.peek().place, str_cat("expressions are nested deeper than ", kMaxNesting, " levels"));
  }
  ++nesting_;
  MOESAIC_ASSIGN_OR_RETURN(ExprPtr expr, parse_or());
  while (allow_choice && tokens_.is(TokenKind::kName, "if")) {
    ExprPtr choose = make(ExprKind::kChoose, tokens_.take());
    MOESAIC_ASSIGN_OR_RETURN(ExprPtr condition, parse_or());
    ExprPtr otherwise;
    if (tokens_.skip_name("else")) {
      MOESAIC_ASSIGN_OR_RETURN(otherwise, parse());
    }
    choose->args.push_back(std::move(expr));
    choose->args.push_back(std::move(condition));
    choose->args.push_back(std::move(otherwise));
    MOESAIC_ASSIGN_OR_RETURN(expr, finish(std::move(choose)));
  }
  --nesting_;
  return expr;
}

ExprParser::Result ExprParser::parse_tuple(bool allow_choice) {
  const Token first = tokens_.peek();
  MOESAIC_ASSIGN_OR_RETURN(ExprPtr expr, parse(allow_choice));
  if (!tokens_.is(TokenKind::kOperator, ",")) return expr;
  ExprPtr tuple = make(ExprKind::kList, first);
  tuple->args.push_back(std::move(expr));
  while (tokens_.skip_op(",")) {
    const TokenKind kind = tokens_.peek().kind;
    if (kind == TokenKind::kBlockClose || kind == TokenKind::kPrintClose || tokens_.is(TokenKind::kOperator, ")"))
      break;
    MOESAIC_ASSIGN_OR_RETURN(ExprPtr item, parse(allow_choice));
    tuple->args.push_back(std::move(item));
  }
  return finish(std::move(tuple));
}

ExprParser::Result ExprParser::parse_left_chain(Result (ExprParser::*operand)(),
                                                std::initializer_list<std::string_view> operators, TokenKind kind) {
  MOESAIC_ASSIGN_OR_RETURN(ExprPtr expr, (this->*operand)());
  while (tokens_.peek().kind == kind &&
         std::find(operators.begin(), operators.end(), tokens_.peek().text) != operators.end()) {
    const Token op = tokens_.take();
    ExprPtr binary = make(ExprKind::kBinary, op, op.text);
    MOESAIC_ASSIGN_OR_RETURN(ExprPtr right, (this->*operand)());
    binary->args.push_back(std::move(expr));
    binary->args.push_back(std::move(right));
    MOESAIC_ASSIGN_OR_RETURN(expr, finish(std::move(binary)));
  }
  return expr;
}

ExprParser::Result ExprParser::parse_or() {
  return parse_left_chain(&ExprParser::parse_and, {"or"}, TokenKind::kName);
}
ExprParser::Result ExprParser::parse_and() {
  return parse_left_chain(&ExprParser::parse_not, {"and"}, TokenKind::kName);
}
ExprParser::Result ExprParser::parse_additive() {
  return parse_left_chain(&ExprParser::parse_concat, {"+", "-"}, TokenKind::kOperator);
}
ExprParser::Result ExprParser::parse_concat() {
  return parse_left_chain(&ExprParser::parse_product, {"~"}, TokenKind::kOperator);
}
ExprParser::Result ExprParser::parse_product() {
  return parse_left_chain(&ExprParser::parse_power_operand, {"*", "/", "//", "%"}, TokenKind::kOperator);
}

ExprParser::Result ExprParser::parse_not() {
  if (!tokens_.is(TokenKind::kName, "not")) return parse_compare();
  if (++nesting_ > kMaxNesting) return template_error(tokens_.peek().place, "too many nested \"not\"");
  ExprPtr expr = make(ExprKind::kUnary, tokens_.take(), "not");
  MOESAIC_ASSIGN_OR_RETURN(ExprPtr operand, parse_not());
  --nesting_;
  expr->args.push_back(std::move(operand));
  return finish(std::move(expr));
}

ExprParser::Result ExprParser::parse_compare() {
  const Token first = tokens_.peek();
  MOESAIC_ASSIGN_OR_RETURN(ExprPtr expr, parse_additive());
  ExprPtr compare;
  while (true) {
    const Token& token = tokens_.peek();
    constexpr std::string_view kOperators[] = {"==", "!=", "<", "<=", ">", ">="};
    std::string op;
    if (token.kind == TokenKind::kOperator &&
        std::find(std::begin(kOperators), std::end(kOperators), token.text) != std::end(kOperators)) {
      op = token.text;
    } else if (tokens_.is(TokenKind::kName, "in")) {
      op = "in";
    } else if (tokens_.is(TokenKind::kName, "not") && tokens_.peek(1).kind == TokenKind::kName &&
               tokens_.peek(1).text == "in") {
      tokens_.take();
      op = "not in";
    } else {
      break;
    }
    tokens_.take();
    if (!compare) {
      compare = make(ExprKind::kCompare, first);
      compare->args.push_back(std::move(expr));
    }
    MOESAIC_ASSIGN_OR_RETURN(ExprPtr right, parse_additive());
    compare->args.push_back(std::move(right));
    compare->names.push_back(std::move(op));
  }
  return compare ? finish(std::move(compare)) : Result(std::move(expr));
}

ExprParser::Result ExprParser::parse_power_operand() {
  MOESAIC_ASSIGN_OR_RETURN(ExprPtr expr, parse_unary(/*with_filters=*/true));
  if (tokens_.is(TokenKind::kOperator, "**"))
    return template_error(tokens_.peek().place, "the operator ** is not supported");
  return expr;
}

ExprParser::Result ExprParser::parse_unary(bool with_filters) {
  ExprPtr expr;
  if (tokens_.is(TokenKind::kOperator, "-") || tokens_.is(TokenKind::kOperator, "+")) {
    if (++nesting_ > kMaxNesting) return template_error(tokens_.peek().place, "too many nested signs");
    const Token sign = tokens_.take();
    ExprPtr unary = make(ExprKind::kUnary, sign, sign.text);
    MOESAIC_ASSIGN_OR_RETURN(ExprPtr operand, parse_unary(/*with_filters=*/false));
    --nesting_;
    unary->args.push_back(std::move(operand));
    MOESAIC_ASSIGN_OR_RETURN(expr, finish(std::move(unary)));
  } else {
    MOESAIC_ASSIGN_OR_RETURN(expr, parse_primary());
  }
  MOESAIC_ASSIGN_OR_RETURN(expr, parse_postfix(std::move(expr)));
  return with_filters ? parse_filters(std::move(expr)) : Result(std::move(expr));
}

ExprParser::Result ExprParser::parse_primary() {
  const Token token = tokens_.peek();
  ExprPtr expr = make(ExprKind::kLiteral, token);
  if (token.kind == TokenKind::kString) {
    std::string text;
    while (tokens_.peek().kind == TokenKind::kString) text += tokens_.take().text;  // 'a' 'b' is 'ab'
    expr->literal = Value(std::move(text));
    return expr;
  }
  if (token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat) {
    tokens_.take();
    const char* const last = token.text.data() + token.text.size();
    int64_t integer = 0;
    double real = 0;
    const bool is_float = token.kind == TokenKind::kFloat;
    const auto error = is_float ? std::from_chars(token.text.data(), last, real).ec
                                : std::from_chars(token.text.data(), last, integer).ec;
    if (error != std::errc())
      return template_error(token.place, str_cat("the number ", token.text.substr(0, 40), " is out of range"));
    expr->literal = is_float ? Value(real) : Value(integer);
    return expr;
  }
  if (token.kind == TokenKind::kName) {
    tokens_.take();
    if (token.text == "true" || token.text == "True") {
      expr->literal = Value(true);
    } else if (token.text == "false" || token.text == "False") {
      expr->literal = Value(false);
    } else if (token.text == "none" || token.text == "None") {
      expr->literal = Value(None{});
    } else {
      expr->kind = ExprKind::kName;
      expr->name = token.text;
    }
    return expr;
  }
  if (tokens_.skip_op("(")) {
    if (tokens_.skip_op(")")) {
      expr->kind = ExprKind::kList;
      return expr;
    }
    MOESAIC_ASSIGN_OR_RETURN(expr, parse_tuple());
    MOESAIC_RETURN_IF_ERROR(tokens_.expect(TokenKind::kOperator, ")"));
    return expr;
  }
  const bool list = tokens_.is(TokenKind::kOperator, "[");
  if (!list && !tokens_.is(TokenKind::kOperator, "{")) return tokens_.unexpected("an expression");
  tokens_.take();
  const std::string_view close = list ? "]" : "}";
  expr->kind = list ? ExprKind::kList : ExprKind::kDict;
  while (!tokens_.skip_op(close)) {
    if (!expr->args.empty()) MOESAIC_RETURN_IF_ERROR(tokens_.expect(TokenKind::kOperator, ","));
    if (tokens_.skip_op(close)) break;
    MOESAIC_ASSIGN_OR_RETURN(ExprPtr item, parse());
    expr->args.push_back(std::move(item));
    if (list) continue;
    MOESAIC_RETURN_IF_ERROR(tokens_.expect(TokenKind::kOperator, ":"));
    MOESAIC_ASSIGN_OR_RETURN(ExprPtr value, parse());
    expr->args.push_back(std::move(value));
  }
  return finish(std::move(expr));
}

ExprParser::Result ExprParser::parse_postfix(ExprPtr expr) {
  while (true) {
    if (tokens_.is(TokenKind::kOperator, ".")) {
      const Token dot = tokens_.take();
      const Token name = tokens_.peek();
      if (name.kind != TokenKind::kName && name.kind != TokenKind::kInteger) return tokens_.unexpected("an attribute");
      tokens_.take();
      ExprPtr attribute = make(ExprKind::kAttribute, dot, name.text);
      attribute->args.push_back(std::move(expr));
      MOESAIC_ASSIGN_OR_RETURN(expr, finish(std::move(attribute)));
    } else if (tokens_.is(TokenKind::kOperator, "[")) {
      MOESAIC_ASSIGN_OR_RETURN(expr, parse_subscript(std::move(expr)));
    } else if (tokens_.is(TokenKind::kOperator, "(")) {
      MOESAIC_ASSIGN_OR_RETURN(expr, parse_call(std::move(expr)));
    } else {
      return expr;
    }
  }
}

ExprParser::Result ExprParser::parse_subscript(ExprPtr object) {
  ExprPtr index = make(ExprKind::kIndex, tokens_.take());
  index->args.push_back(std::move(object));
  while (!tokens_.is(TokenKind::kOperator, "]")) {
    if (tokens_.skip_op(":")) {
      // A colon closes the part before it, which may be empty.
      if (index->kind == ExprKind::kIndex && index->args.size() == 1) index->args.push_back(nullptr);
      index->kind = ExprKind::kSlice;
      index->args.push_back(nullptr);
      if (index->args.size() > 4) return tokens_.unexpected("]");
      continue;
    }
    MOESAIC_ASSIGN_OR_RETURN(ExprPtr part, parse());
    if (index->args.size() == 1) {
      index->args.push_back(std::move(part));
    } else if (index->kind == ExprKind::kSlice && !index->args.back()) {
      index->args.back() = std::move(part);
    } else {
      return tokens_.unexpected("]");
    }
  }
  tokens_.take();
  if (index->args.size() == 1) return template_error(index->place, "expected an index in []");
  if (index->kind == ExprKind::kSlice) index->args.resize(4);
  return finish(std::move(index));
}

absl::Status ExprParser::parse_arguments(Expr& call) {
  MOESAIC_RETURN_IF_ERROR(tokens_.expect(TokenKind::kOperator, "("));
  bool first = true;
  while (!tokens_.skip_op(")")) {
    if (!first) MOESAIC_RETURN_IF_ERROR(tokens_.expect(TokenKind::kOperator, ","));
    if (!first && tokens_.skip_op(")")) break;
    first = false;
    const bool named = tokens_.peek().kind == TokenKind::kName && tokens_.peek(1).kind == TokenKind::kOperator &&
                       tokens_.peek(1).text == "=";
    std::string name = named ? tokens_.take().text : "";
    if (named) tokens_.take();
    MOESAIC_ASSIGN_OR_RETURN(ExprPtr value, parse());
    if (named) {
      call.named.emplace_back(std::move(name), std::move(value));
    } else if (!call.named.empty()) {
      return template_error(value->place, "a positional argument stands behind a named one");
    } else {
      call.args.push_back(std::move(value));
    }
  }
  return absl::OkStatus();
}

ExprParser::Result ExprParser::parse_call(ExprPtr callee) {
  const bool method = callee->kind == ExprKind::kAttribute;
  if (!method && callee->kind != ExprKind::kName)
    return template_error(callee->place, "only functions and methods can be called");
  const bool known = method ? is_known_method(callee->name) : is_known_function(callee->name);
  if (!known) {
    return template_error(callee->place,
                          str_cat("the ", method ? "method " : "function ", callee->name, "() is not supported"));
  }
  callee->kind = method ? ExprKind::kMethod : ExprKind::kCall;
  callee->depth = 1;
  MOESAIC_RETURN_IF_ERROR(parse_arguments(*callee));
  return finish(std::move(callee));
}

ExprParser::Result ExprParser::parse_filters(ExprPtr expr) {
  while (true) {
    if (tokens_.is(TokenKind::kOperator, "|")) {
      ExprPtr filter = make(ExprKind::kFilter, tokens_.take());
      MOESAIC_ASSIGN_OR_RETURN(filter->name, tokens_.expect_name());
      if (!is_known_filter(filter->name))
        return template_error(filter->place, str_cat("the filter ", filter->name, " is not supported"));
      filter->args.push_back(std::move(expr));
      if (tokens_.is(TokenKind::kOperator, "(")) MOESAIC_RETURN_IF_ERROR(parse_arguments(*filter));
      MOESAIC_ASSIGN_OR_RETURN(expr, finish(std::move(filter)));
    } else if (tokens_.is(TokenKind::kName, "is")) {
      MOESAIC_ASSIGN_OR_RETURN(expr, parse_test(std::move(expr)));
    } else if (tokens_.is(TokenKind::kOperator, "(")) {
      return template_error(tokens_.peek().place, "the result of a filter or test cannot be called");
    } else {
      return expr;
    }
  }
}

ExprParser::Result ExprParser::parse_test(ExprPtr expr) {
  ExprPtr test = make(ExprKind::kTest, tokens_.take());
  const bool negated = tokens_.skip_name("not");
  MOESAIC_ASSIGN_OR_RETURN(test->name, tokens_.expect_name());
  if (!is_known_test(test->name))
    return template_error(test->place, str_cat("the test ", test->name, " is not supported"));
  test->args.push_back(std::move(expr));
  const Token& next = tokens_.peek();
  constexpr std::string_view kNotArguments[] = {"else", "or", "and", "if", "is", "in", "not", "recursive"};
  const bool name = next.kind == TokenKind::kName &&
                    std::find(std::begin(kNotArguments), std::end(kNotArguments), next.text) == std::end(kNotArguments);
  if (tokens_.is(TokenKind::kOperator, "(")) {
    MOESAIC_RETURN_IF_ERROR(parse_arguments(*test));
  } else if (name || next.kind == TokenKind::kString || next.kind == TokenKind::kInteger ||
             next.kind == TokenKind::kFloat || tokens_.is(TokenKind::kOperator, "[")) {
    MOESAIC_ASSIGN_OR_RETURN(ExprPtr primary, parse_primary());
    MOESAIC_ASSIGN_OR_RETURN(ExprPtr argument, parse_postfix(std::move(primary)));
    test->args.push_back(std::move(argument));
  }
  MOESAIC_ASSIGN_OR_RETURN(ExprPtr result, finish(std::move(test)));
  if (!negated) return result;
  ExprPtr invert = make(ExprKind::kUnary, tokens_.peek(), "not");
  invert->place = result->place;
  invert->args.push_back(std::move(result));
  return finish(std::move(invert));
}

}  // namespace moesaic::jinja
