#include "text/jinja_parser.h"

#include <algorithm>

#include "text/jinja_expr_parser.h"

namespace moesaic::jinja {

namespace {

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)), exprs_(tokens_) {}

  absl::StatusOr<Body> run() {
    MOESAIC_ASSIGN_OR_RETURN(Body body, parse_body({}));
    if (tokens_.peek().kind != TokenKind::kEnd) return tokens_.unexpected("the end of the template");
    return body;
  }

 private:
  // Up to a tag whose name is in `ends` (the name is next then), or the end of the template.
  absl::StatusOr<Body> parse_body(std::initializer_list<std::string_view> ends);
  absl::StatusOr<std::unique_ptr<Node>> parse_statement();
  absl::Status parse_if(Node& node);
  absl::Status parse_for(Node& node);
  absl::Status parse_set(Node& node);
  absl::Status parse_targets(Node& node);
  absl::Status close_tag() { return tokens_.expect(TokenKind::kBlockClose, "%}"); }
  absl::Status end_tag(std::string_view name) {
    MOESAIC_RETURN_IF_ERROR(tokens_.expect(TokenKind::kName, name));
    return close_tag();
  }

  TokenStream tokens_;
  ExprParser exprs_;
  int nesting_ = 0;
  int loops_ = 0;
};

absl::StatusOr<Body> Parser::parse_body(std::initializer_list<std::string_view> ends) {
  if (++nesting_ > kMaxNesting) {
    return template_error(tokens_.peek().place, str_cat("statements are nested deeper than ", kMaxNesting, " levels"));
  }
  Body body;
  while (tokens_.peek().kind != TokenKind::kEnd) {
    const Token token = tokens_.take();
    auto node = std::make_unique<Node>();
    node->place = token.place;
    if (token.kind == TokenKind::kText) {
      node->text = token.text;
    } else if (token.kind == TokenKind::kPrintOpen) {
      node->kind = NodeKind::kPrint;
      MOESAIC_ASSIGN_OR_RETURN(node->expr, exprs_.parse_tuple());
      MOESAIC_RETURN_IF_ERROR(tokens_.expect(TokenKind::kPrintClose, "}}"));
    } else if (std::find(ends.begin(), ends.end(), tokens_.peek().text) != ends.end()) {
      --nesting_;
      return body;
    } else {
      MOESAIC_ASSIGN_OR_RETURN(node, parse_statement());
    }
    body.push_back(std::move(node));
  }
  if (ends.size() > 0) return tokens_.unexpected(str_cat("{% ", *(ends.end() - 1), " %}"));
  --nesting_;
  return body;
}

absl::StatusOr<std::unique_ptr<Node>> Parser::parse_statement() {
  auto node = std::make_unique<Node>();
  node->place = tokens_.peek().place;
  MOESAIC_ASSIGN_OR_RETURN(const std::string name, tokens_.expect_name());
  if (name == "if") {
    MOESAIC_RETURN_IF_ERROR(parse_if(*node));
  } else if (name == "for") {
    MOESAIC_RETURN_IF_ERROR(parse_for(*node));
  } else if (name == "set") {
    MOESAIC_RETURN_IF_ERROR(parse_set(*node));
  } else if ((name == "break" || name == "continue") && loops_ > 0) {
    node->kind = name == "break" ? NodeKind::kBreak : NodeKind::kContinue;
    MOESAIC_RETURN_IF_ERROR(close_tag());
  } else {
    return template_error(node->place, str_cat("the statement {% ", name, " %} is not supported here"));
  }
  return node;
}

absl::Status Parser::parse_if(Node& node) {
  node.kind = NodeKind::kIf;
  while (true) {
    MOESAIC_ASSIGN_OR_RETURN(ExprPtr condition, exprs_.parse_tuple());
    MOESAIC_RETURN_IF_ERROR(close_tag());
    MOESAIC_ASSIGN_OR_RETURN(Body body, parse_body({"elif", "else", "endif"}));
    node.conditions.push_back(std::move(condition));
    node.bodies.push_back(std::move(body));
    if (!tokens_.skip_name("elif")) break;
  }
  if (tokens_.skip_name("else")) {
    MOESAIC_RETURN_IF_ERROR(close_tag());
    MOESAIC_ASSIGN_OR_RETURN(Body body, parse_body({"endif"}));
    node.bodies.push_back(std::move(body));
  }
  return end_tag("endif");
}

absl::Status Parser::parse_targets(Node& node) {
  const bool bracket = tokens_.skip_op("(");
  do {
    MOESAIC_ASSIGN_OR_RETURN(std::string name, tokens_.expect_name());
    node.names.push_back(std::move(name));
  } while (tokens_.skip_op(","));
  if (bracket) return tokens_.expect(TokenKind::kOperator, ")");
  return absl::OkStatus();
}

absl::Status Parser::parse_for(Node& node) {
  node.kind = NodeKind::kFor;
  MOESAIC_RETURN_IF_ERROR(parse_targets(node));
  MOESAIC_RETURN_IF_ERROR(tokens_.expect(TokenKind::kName, "in"));
  MOESAIC_ASSIGN_OR_RETURN(node.expr, exprs_.parse_tuple(/*allow_choice=*/false));
  if (tokens_.skip_name("if")) {
    MOESAIC_ASSIGN_OR_RETURN(ExprPtr filter, exprs_.parse());
    node.conditions.push_back(std::move(filter));
  }
  if (tokens_.is(TokenKind::kName, "recursive"))
    return template_error(tokens_.peek().place, "recursive loops are not supported");
  MOESAIC_RETURN_IF_ERROR(close_tag());
  ++loops_;
  MOESAIC_ASSIGN_OR_RETURN(Body body, parse_body({"else", "endfor"}));
  --loops_;
  node.bodies.push_back(std::move(body));
  if (tokens_.skip_name("else")) {
    MOESAIC_RETURN_IF_ERROR(close_tag());
    MOESAIC_ASSIGN_OR_RETURN(Body otherwise, parse_body({"endfor"}));
    node.bodies.push_back(std::move(otherwise));
  }
  return end_tag("endfor");
}

absl::Status Parser::parse_set(Node& node) {
  node.kind = NodeKind::kSet;
  MOESAIC_RETURN_IF_ERROR(parse_targets(node));
  if (tokens_.skip_op(".")) {
    MOESAIC_ASSIGN_OR_RETURN(node.text, tokens_.expect_name());
    if (node.names.size() > 1) return template_error(node.place, "expected one target");
  }
  if (tokens_.skip_op("=")) {
    MOESAIC_ASSIGN_OR_RETURN(node.expr, exprs_.parse_tuple());
    return close_tag();
  }
  if (node.names.size() > 1 || !node.text.empty() || tokens_.peek().kind != TokenKind::kBlockClose)
    return tokens_.unexpected("=");
  node.kind = NodeKind::kSetBlock;
  MOESAIC_RETURN_IF_ERROR(close_tag());
  MOESAIC_ASSIGN_OR_RETURN(Body body, parse_body({"endset"}));
  node.bodies.push_back(std::move(body));
  return end_tag("endset");
}

}  // namespace

absl::StatusOr<Body> parse_template(std::string_view source) {
  MOESAIC_ASSIGN_OR_RETURN(std::vector<Token> tokens, tokenize(source));
  return Parser(std::move(tokens)).run();
}

}  // namespace moesaic::jinja
