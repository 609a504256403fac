// The expression half of the chat template parser. Internal to the template renderer.
#pragma once

#include <algorithm>

#include "text/jinja_parser.h"

namespace moesaic::jinja {

// A position in the tokens of a template.
class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  const Token& peek(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  Token take() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_.back(); }
  bool is(TokenKind kind, std::string_view text) const { return peek().kind == kind && peek().text == text; }
  bool skip(TokenKind kind, std::string_view text) {
    const bool found = is(kind, text);
    if (found) take();
    return found;
  }
  bool skip_name(std::string_view text) { return skip(TokenKind::kName, text); }
  bool skip_op(std::string_view text) { return skip(TokenKind::kOperator, text); }
  absl::Status expect(TokenKind kind, std::string_view text) {
    if (skip(kind, text)) return absl::OkStatus();
    return unexpected(text);
  }
  absl::StatusOr<std::string> expect_name() {
    if (peek().kind != TokenKind::kName) return unexpected("a name");
    return take().text;
  }
  absl::Status unexpected(std::string_view expected) const {
    const bool end = peek().kind == TokenKind::kEnd;
    return template_error(peek().place,
                          str_cat("expected ", expected, ", found ", end ? "the end" : peek().text.substr(0, 40)));
  }

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

class ExprParser {
 public:
  explicit ExprParser(TokenStream& tokens) : tokens_(tokens) {}
  // `allow_choice`: "a if b else c"; off where a for loop's filter follows.
  absl::StatusOr<ExprPtr> parse(bool allow_choice = true);
  // "a, b" makes a list of the two.
  absl::StatusOr<ExprPtr> parse_tuple(bool allow_choice = true);

 private:
  using Result = absl::StatusOr<ExprPtr>;
  Result parse_or();
  Result parse_and();
  Result parse_not();
  Result parse_compare();
  Result parse_additive();
  Result parse_concat();
  Result parse_product();
  Result parse_unary(bool with_filters);
  Result parse_power_operand();
  Result parse_primary();
  Result parse_postfix(ExprPtr expr);
  Result parse_subscript(ExprPtr expr);
  Result parse_filters(ExprPtr expr);
  Result parse_test(ExprPtr expr);
  Result parse_call(ExprPtr expr);
  absl::Status parse_arguments(Expr& call);
  Result parse_left_chain(Result (ExprParser::*operand)(), std::initializer_list<std::string_view> operators,
                          TokenKind kind);
  Result finish(ExprPtr expr) const;
  ExprPtr make(ExprKind kind, const Token& token, std::string name = "") const;

  TokenStream& tokens_;
  int nesting_ = 0;
};

}  // namespace moesaic::jinja
