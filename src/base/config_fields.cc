#include "base/config_fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"

namespace moesaic {
namespace {

bool parse_value(std::string_view text, bool* value) {
  *value = text == "true" || text == "1" || text == "yes" || text == "on";
  return *value || text == "false" || text == "0" || text == "no" || text == "off";
}

bool parse_value(std::string_view text, std::string* value) {
  *value = text;
  return true;
}

template <typename T>
bool parse_value(std::string_view text, T* value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *value);
  return error == std::errc() && stop == end;
}

std::string replace_underscores(std::string_view name) {
  std::string out(name);
  std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

bool looks_like_flag(std::string_view arg) {
  return arg.size() > 1 && arg[0] == '-' && !(arg[1] >= '0' && arg[1] <= '9') && arg[1] != '.';
}

}  // namespace

std::string dashed_name(std::string_view name) {
  return str_cat(name.size() <= 2 ? "-" : "--", name);
}

ConfigField::ConfigField(std::string name, Target target) : name_(std::move(name)), target_(target) {}

ConfigField& ConfigField::alias(std::string name) {
  aliases_.push_back(std::move(name));
  return *this;
}

ConfigField& ConfigField::range(double min, double max) {
  has_range_ = true;
  min_ = min;
  max_ = max;
  return *this;
}

ConfigField& ConfigField::choices(std::vector<std::string> values) {
  MOESAIC_CHECK(std::holds_alternative<std::string*>(target_));
  choices_ = std::move(values);
  return *this;
}

ConfigField& ConfigField::unit(std::string text) {
  unit_ = std::move(text);
  return *this;
}

ConfigField& ConfigField::doc(std::string text) {
  doc_ = std::move(text);
  return *this;
}

ConfigField& ConfigField::default_text(std::string text) {
  default_text_ = std::move(text);
  return *this;
}

ConfigField& ConfigField::hidden() {
  hidden_ = true;
  return *this;
}

ConfigField& ConfigField::positional() {
  positional_ = true;
  return *this;
}

ConfigField& ConfigField::list() {
  MOESAIC_CHECK(std::holds_alternative<std::string*>(target_));
  list_ = true;
  return *this;
}

ConfigField& ConfigField::required() {
  required_ = true;
  return *this;
}

bool ConfigField::answers_to(std::string_view name) const {
  return name == name_ || std::find(aliases_.begin(), aliases_.end(), name) != aliases_.end();
}

std::string ConfigField::range_text() const {
  if (!choices_.empty()) return str_join(choices_, " | ");
  if (!has_range_) return "";
  if (max_ >= static_cast<double>(std::numeric_limits<int32_t>::max())) return str_cat("at least ", min_);
  return str_cat("from ", min_, " to ", max_);
}

std::string ConfigField::expectation() const {
  if (is_bool()) return "true or false";
  if (!choices_.empty()) return str_cat("one of ", str_join(choices_, ", "));
  if (std::holds_alternative<std::string*>(target_)) return "a text";
  const bool real = std::holds_alternative<float*>(target_) || std::holds_alternative<double*>(target_);
  const std::string range = range_text();
  return str_cat(real ? "a number" : "an integer", range.empty() ? "" : " ", range);
}

absl::Status ConfigField::set(std::string_view text, std::string_view source) {
  const auto wrong = [&] {
    return absl::InvalidArgumentError(str_cat(source, " expects ", expectation(), ", found \"", text, "\""));
  };
  if (!choices_.empty() && std::find(choices_.begin(), choices_.end(), text) == choices_.end()) return wrong();
  const bool set = std::visit(
      [&](auto* target) {
        std::remove_pointer_t<decltype(target)> value{};
        if (!parse_value(text, &value)) return false;
        if constexpr (std::is_arithmetic_v<decltype(value)> && !std::is_same_v<decltype(value), bool>) {
          const double number = static_cast<double>(value);
          if (std::isnan(number) || (has_range_ && (number < min_ || number > max_))) return false;
        }
        *target = std::move(value);
        return true;
      },
      target_);
  return set ? absl::OkStatus() : wrong();
}

ConfigFields::ConfigFields(std::string program, std::string about)
    : program_(std::move(program)), about_(std::move(about)) {
  add("config", &config_path_).doc("TOML file with any of these settings by name; flags win over it");
}

ConfigField& ConfigFields::add(std::string name, ConfigField::Target target) {
  MOESAIC_CHECK(find(name) == nullptr);
  return fields_.emplace_back(std::move(name), target);
}

ConfigField* ConfigFields::find(std::string_view name) {
  const std::string wanted = replace_underscores(name);
  for (ConfigField& field : fields_) {
    if (field.answers_to(wanted)) return &field;
  }
  return nullptr;
}

bool ConfigFields::is_given(std::string_view name) const {
  for (const ConfigField& field : fields_) {
    if (field.name_ == name) return field.given_ || field.in_file_;
  }
  return false;
}

absl::Status ConfigFields::unknown(std::string_view source, std::string_view shown) const {
  std::vector<std::string> names = {"help"};
  for (const ConfigField& field : fields_) {
    if (field.hidden_) continue;
    names.push_back(field.name_);
    names.insert(names.end(), field.aliases_.begin(), field.aliases_.end());
  }
  std::string_view bare = shown;
  while (!bare.empty() && bare.front() == '-') bare.remove_prefix(1);
  const std::string match = closest_match(replace_underscores(bare), names);
  const std::string hint =
      match.empty() ? str_cat("see ", program_, " --help") : str_cat("did you mean ", dashed_name(match), "?");
  return absl::InvalidArgumentError(str_cat(source, "unknown setting ", shown, "; ", hint));
}

absl::Status ConfigFields::set_once(ConfigField& field, std::string_view text, std::string_view source) {
  if (field.given_) {
    return absl::InvalidArgumentError(
        str_cat(source, " is given twice (", dashed_name(field.name_), " was set already); keep one"));
  }
  field.given_ = true;
  return field.set(text, source);
}

absl::Status ConfigFields::parse_text(std::string_view text, const std::string& source) {
  MOESAIC_ASSIGN_OR_RETURN(const std::vector<ConfigEntry> entries, parse_config_text(text, source));
  return read_entries(entries, source);
}

absl::Status ConfigFields::read_entries(const std::vector<ConfigEntry>& entries, const std::string& path) {
  using Kind = ConfigEntry::Kind;
  for (const ConfigEntry& entry : entries) {
    const std::string where = str_cat(path, ":", entry.line, ": ");
    ConfigField* field = find(entry.name);
    if (field == nullptr || field->name_ == "config") return unknown(where, entry.name);
    const std::string source = str_cat(where, entry.name);
    const bool wants_text = std::holds_alternative<std::string*>(field->target_);
    const bool fits = entry.kind == Kind::kString    ? wants_text
                      : entry.kind == Kind::kBoolean ? field->is_bool()
                                                     : !wants_text && !field->is_bool();
    if (!fits) {
      const char* found = entry.kind == Kind::kString ? " in quotes" : "";
      return absl::InvalidArgumentError(
          str_cat(source, " expects ", field->expectation(), ", found ", entry.text, found));
    }
    MOESAIC_RETURN_IF_ERROR(set_once(*field, entry.text, source));
  }
  return absl::OkStatus();
}

absl::Status ConfigFields::parse_flag(const std::vector<std::string>& args, size_t* index) {
  const std::string& arg = args[*index];
  const size_t equals = arg.find('=');
  const std::string shown = arg.substr(0, equals);
  const bool two_dashes = shown.rfind("--", 0) == 0;
  const std::string name = shown.substr(two_dashes ? 2 : 1);
  ConfigField* field = find(name);
  if (field == nullptr && two_dashes && name.rfind("no-", 0) == 0 && equals == std::string::npos) {
    field = find(name.substr(3));
    if (field != nullptr && field->is_bool()) return set_once(*field, "false", shown);
    field = nullptr;
  }
  if (field == nullptr) return unknown("", shown);
  if (equals != std::string::npos) return set_once(*field, std::string_view(arg).substr(equals + 1), shown);
  if (field->is_bool()) return set_once(*field, "true", shown);
  if (*index + 1 >= args.size() || looks_like_flag(args[*index + 1])) {
    return absl::InvalidArgumentError(str_cat(shown, " needs a value: ", field->expectation()));
  }
  std::string value = args[++*index];
  while (field->list_ && *index + 1 < args.size() && !looks_like_flag(args[*index + 1])) {
    value += str_cat(" ", args[++*index]);
  }
  return set_once(*field, value, shown);
}

absl::Status ConfigFields::parse_argument(const std::vector<std::string>& args, size_t* index) {
  const std::string& arg = args[*index];
  if (looks_like_flag(arg)) return parse_flag(args, index);
  for (ConfigField& field : fields_) {
    if (field.positional_ && !field.given_) return set_once(field, arg, arg);
  }
  const std::string_view hint =
      arg == "true" || arg == "false" ? "a switch is written --name or --name=false" : "settings are --name value";
  return absl::InvalidArgumentError(
      str_cat("unexpected argument \"", arg, "\"; ", hint, ", see ", program_, " --help"));
}

absl::Status ConfigFields::parse(const std::vector<std::string>& args) {
  std::string config_path;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--help" || args[i] == "-h") help_wanted_ = true;
    if (args[i] == "--config" && i + 1 < args.size()) config_path = args[i + 1];
    if (args[i].rfind("--config=", 0) == 0) config_path = args[i].substr(9);
  }
  if (help_wanted_) return absl::OkStatus();
  if (!config_path.empty()) {
    MOESAIC_ASSIGN_OR_RETURN(const std::vector<ConfigEntry> entries, read_config_file(config_path));
    MOESAIC_RETURN_IF_ERROR(read_entries(entries, config_path));
    for (ConfigField& field : fields_) field.in_file_ = std::exchange(field.given_, false);
  }
  for (size_t i = 0; i < args.size(); ++i) MOESAIC_RETURN_IF_ERROR(parse_argument(args, &i));
  for (const ConfigField& field : fields_) {
    if (field.required_ && !field.given_ && !field.in_file_) {
      return absl::InvalidArgumentError(
          str_cat(dashed_name(field.name_), " is missing; ", program_, " --help explains it"));
    }
  }
  return absl::OkStatus();
}

}  // namespace moesaic
