#include "text/jinja_lexer.h"

#include <algorithm>
#include <charconv>

#include "text/jinja_value.h"
#include "text/utf8.h"

namespace moesaic::jinja {

namespace {

bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_name(char c) {
  return is_name_start(c) || is_digit(c);
}

std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    const bool carriage_return = source[i] == '\r';
    out += carriage_return ? '\n' : source[i];
    if (carriage_return && i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

// Drops the spaces before the end of `text` as Python's rstrip does.
std::string_view rstrip(std::string_view text) {
  while (!text.empty()) {
    size_t start = text.size() - 1;
    while (start > 0 && (static_cast<uint8_t>(text[start]) & 0xC0) == 0x80) --start;
    if (!is_python_space(utf8_step(text.substr(start)).code_point)) break;
    text = text.substr(0, start);
  }
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_newlines(source)) {}

  absl::StatusOr<std::vector<Token>> run() {
    while (at_ < source_.size()) MOESAIC_RETURN_IF_ERROR(lex_text_and_tag());
    add(TokenKind::kEnd, "", at_);
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  bool skip(std::string_view prefix) {
    if (!rest().starts_with(prefix)) return false;
    at_ += prefix.size();
    return true;
  }
  Place place(size_t at) {
    for (; placed_ < at; ++placed_) {
      if (source_[placed_] == '\n') {
        ++place_.line;
        place_.column = 1;
      } else if ((static_cast<uint8_t>(source_[placed_]) & 0xC0) != 0x80) {
        ++place_.column;
      }
    }
    return place_;
  }
  void add(TokenKind kind, std::string text, size_t at) { tokens_.push_back({kind, std::move(text), place(at)}); }
  absl::Status error(size_t at, std::string_view message) { return template_error(place(at), message); }

  absl::Status lex_text_and_tag();
  absl::Status lex_comment(size_t open);
  absl::Status lex_inside(bool block, size_t open);
  absl::Status lex_token();
  absl::Status lex_string();
  void lex_number();
  void close_tag(char sign, bool trim);

  std::string source_;
  size_t at_ = 0;
  bool line_starting_ = true;  // the text before at_ ends a line
  std::vector<Token> tokens_;
  std::vector<char> open_brackets_;
  Place place_;
  size_t placed_ = 0;
};

absl::Status Lexer::lex_text_and_tag() {
  size_t open = at_;
  while (true) {
    open = source_.find('{', open);
    if (open == std::string::npos || open + 1 >= source_.size()) open = source_.size();
    if (open == source_.size()) break;
    const char c = source_[open + 1];
    if (c == '{' || c == '%' || c == '#') break;
    ++open;
  }
  std::string_view text = std::string_view(source_).substr(at_, open - at_);
  const size_t text_at = at_;
  if (open == source_.size()) {
    if (!text.empty()) add(TokenKind::kText, std::string(text), text_at);
    at_ = open;
    return absl::OkStatus();
  }
  const char kind = source_[open + 1];
  const char sign = open + 2 < source_.size() ? source_[open + 2] : '\0';
  if (sign == '-') {
    text = rstrip(text);
  } else if (sign != '+' && kind != '{') {
    const size_t line = text.rfind('\n') + 1;  // 0 if there is none
    const std::string_view indent = text.substr(line);
    if ((line > 0 || line_starting_) && std::all_of(indent.begin(), indent.end(), is_space))
      text = text.substr(0, line);
  }
  if (!text.empty()) add(TokenKind::kText, std::string(text), text_at);
  at_ = open + 2 + (sign == '-' || sign == '+' ? 1 : 0);
  if (kind == '#') return lex_comment(open);
  return lex_inside(kind == '%', open);
}

// Behind a tag: "-" eats the following space, a block's or comment's end eats one newline unless it has a "+".
void Lexer::close_tag(char sign, bool trim) {
  if (sign == '-') {
    while (at_ < source_.size()) {
      const Utf8Step step = utf8_step(rest());
      if (!step.valid || !is_python_space(step.code_point)) break;
      at_ += step.length;
    }
  } else if (trim && sign != '+') {
    skip("\n");
  }
  line_starting_ = at_ > 0 && source_[at_ - 1] == '\n';
}

absl::Status Lexer::lex_comment(size_t open) {
  const size_t end = source_.find("#}", at_);
  if (end == std::string::npos) return error(open, "the comment has no end: expected #}");
  const char sign = end > at_ ? source_[end - 1] : '\0';
  at_ = end + 2;
  close_tag(sign, /*trim=*/true);
  return absl::OkStatus();
}

absl::Status Lexer::lex_inside(bool block, size_t open) {
  const std::string_view close = block ? "%}" : "}}";
  add(block ? TokenKind::kBlockOpen : TokenKind::kPrintOpen, block ? "{%" : "{{", open);
  open_brackets_.clear();
  while (true) {
    while (at_ < source_.size() && is_space(source_[at_])) ++at_;
    if (at_ >= source_.size()) return error(open, str_cat("the tag has no end: expected ", close));
    if (open_brackets_.empty()) {
      const char sign = source_[at_];
      const bool signed_close = (sign == '-' || (block && sign == '+')) && rest().substr(1).starts_with(close);
      if (signed_close || rest().starts_with(close)) {
        add(block ? TokenKind::kBlockClose : TokenKind::kPrintClose, std::string(close), at_);
        at_ += close.size() + (signed_close ? 1 : 0);
        close_tag(signed_close ? sign : '\0', block);
        return absl::OkStatus();
      }
    }
    MOESAIC_RETURN_IF_ERROR(lex_token());
  }
}

absl::Status Lexer::lex_token() {
  const size_t start = at_;
  const char c = source_[at_];
  if (c == '\'' || c == '"') return lex_string();
  if (is_digit(c)) {
    lex_number();
    return absl::OkStatus();
  }
  if (is_name_start(c)) {
    while (at_ < source_.size() && is_name(source_[at_])) ++at_;
    add(TokenKind::kName, source_.substr(start, at_ - start), start);
    return absl::OkStatus();
  }
  for (const std::string_view op : {"==", "!=", "<=", ">=", "//", "**"}) {
    if (!skip(op)) continue;
    add(TokenKind::kOperator, std::string(op), start);
    return absl::OkStatus();
  }
  if (std::string_view("+-*/%~|.,:()[]{}<>=").find(c) == std::string_view::npos) {
    return error(start, str_cat("unexpected character \"", rest().substr(0, utf8_step(rest()).length), "\""));
  }
  if (c == '(' || c == '[' || c == '{') open_brackets_.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
  if (c == ')' || c == ']' || c == '}') {
    if (open_brackets_.empty() || open_brackets_.back() != c) return error(start, str_cat("unexpected \"", c, "\""));
    open_brackets_.pop_back();
  }
  ++at_;
  add(TokenKind::kOperator, std::string(1, c), start);
  return absl::OkStatus();
}

void Lexer::lex_number() {
  const size_t start = at_;
  const auto digits = [&] {
    while (at_ < source_.size() && (is_digit(source_[at_]) || source_[at_] == '_')) ++at_;
  };
  digits();
  bool is_float = false;
  if (at_ + 1 < source_.size() && source_[at_] == '.' && is_digit(source_[at_ + 1])) {
    is_float = true;
    ++at_;
    digits();
  }
  if (at_ < source_.size() && (source_[at_] == 'e' || source_[at_] == 'E')) {
    size_t exponent = at_ + 1;
    if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
    if (exponent < source_.size() && is_digit(source_[exponent])) {
      is_float = true;
      at_ = exponent;
      digits();
    }
  }
  std::string text = source_.substr(start, at_ - start);
  std::erase(text, '_');
  add(is_float ? TokenKind::kFloat : TokenKind::kInteger, std::move(text), start);
}

// Python's escapes; an unknown one keeps its backslash.
absl::Status Lexer::lex_string() {
  const size_t start = at_;
  const char quote = source_[at_++];
  std::string text;
  while (at_ < source_.size() && source_[at_] != quote) {
    if (source_[at_] != '\\' || at_ + 1 >= source_.size()) {
      text += source_[at_++];
      continue;
    }
    const char c = source_[at_ + 1];
    at_ += 2;
    constexpr std::string_view kFrom = "nrtabfv\\'\"", kTo = "\n\r\t\a\b\f\v\\'\"";
    const size_t simple = kFrom.find(c);
    const int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (simple != std::string_view::npos) {
      text += kTo[simple];
    } else if (digits > 0) {
      uint32_t code = 0;
      const char* const first = source_.data() + at_;
      const char* const last = first + std::min<size_t>(digits, source_.size() - at_);
      if (last - first != digits || std::from_chars(first, last, code, 16).ptr != last || code > 0x10FFFF ||
          (code >= 0xD800 && code < 0xE000)) {
        return error(at_ - 2, "bad escape in a string: expected hexadecimal digits of a character");
      }
      append_code_point(code, text);
      at_ += digits;
    } else if (c >= '0' && c <= '7') {
      uint32_t code = c - '0';
      for (int i = 0; i < 2 && at_ < source_.size() && source_[at_] >= '0' && source_[at_] <= '7'; ++i) {
        code = code * 8 + (source_[at_++] - '0');
      }
      append_code_point(code, text);
    } else if (c != '\n') {
      text += '\\';
      text += c;
    }
  }
  if (at_ >= source_.size()) return error(start, "the string has no end");
  ++at_;
  add(TokenKind::kString, std::move(text), start);
  return absl::OkStatus();
}

}  // namespace

absl::Status template_error(Place place, std::string_view message) {
  return absl::InvalidArgumentError(
      str_cat("chat template, line ", place.line, ", column ", place.column, ": ", message));
}

absl::StatusOr<std::vector<Token>> tokenize(std::string_view source) {
  return Lexer(source).run();
}

}  // namespace moesaic::jinja
