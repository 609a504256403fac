#include <algorithm>

#include "base/config_fields.h"

namespace moesaic {
namespace {

constexpr size_t kHelpColumns = 100;
constexpr size_t kDocIndent = 8;

// `text` broken at spaces into lines of at most kHelpColumns, each indented.
std::string wrap(std::string_view text, size_t indent) {
  std::string out(indent, ' ');
  size_t column = indent;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    if (column > indent && column + 1 + end > kHelpColumns) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out += text.substr(0, end);
    column += end;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out + "\n";
}

std::string escape_bars(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, "\\");
  return text;
}

}  // namespace

// The present value: what the bound struct was made with, as long as nothing was parsed.
std::string ConfigField::value_text() const {
  return std::visit([](const auto* target) { return str_cat(*target); }, target_);
}

std::string ConfigField::names_text() const {
  std::string out = dashed_name(name_);
  for (const std::string& alias : aliases_) out += str_cat(", ", dashed_name(alias));
  return out;
}

std::string ConfigField::default_shown() const {
  if (required_) return "required";
  if (!default_text_.empty()) return default_text_;
  const std::string value = value_text();
  if (value.empty()) return "none";
  return unit_.empty() || is_bool() ? value : str_cat(value, " ", unit_);
}

std::string ConfigFields::help() const {
  std::string usage = str_cat("usage: ", program_);
  for (const ConfigField& field : fields_) {
    if (field.positional_) usage += str_cat(" [", field.name_, "]");
  }
  std::string out = str_cat(usage, " [settings]\n\n", wrap(about_, 0), "\n");
  for (const ConfigField& field : fields_) {
    if (field.hidden_) continue;
    const std::string range = field.range_text();
    const char* value = std::holds_alternative<std::string*>(field.target_) ? " TEXT" : " N";
    out += str_cat("  ", field.names_text(), field.is_bool() ? "" : value, "\n");
    out += wrap(
        str_cat(field.doc_, " (", range.empty() ? "" : str_cat(range, "; "), "default: ", field.default_shown(), ")"),
        kDocIndent);
  }
  return out + "  --help, -h\n" + wrap("This text", kDocIndent);
}

std::string ConfigFields::markdown() const {
  std::string out = str_cat("## ", program_, "\n\n", about_, "\n\n");
  out += "| setting | default | range | meaning |\n|---|---|---|---|\n";
  for (const ConfigField& field : fields_) {
    if (field.hidden_) continue;
    std::string names = str_cat("`", dashed_name(field.name_), "`");
    for (const std::string& alias : field.aliases_) names += str_cat(" `", dashed_name(alias), "`");
    out += str_cat("| ", names, " | ", escape_bars(field.default_shown()), " | ", escape_bars(field.range_text()),
                   " | ", escape_bars(field.doc_), " |\n");
  }
  return out;
}

}  // namespace moesaic
