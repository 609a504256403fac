// ConfigFields: the settings of one program, each declared once, bound to a member of a struct. From the declaration
// come the command line, the config file, --help, the docs page and every error with its "did you mean". The file is
// read first, flags win over it. Used at start by one thread; the bound struct must outlive the fields.
//
//   ServeConfig config;
//   ConfigFields fields("moesaic serve", "Serves a model.");
//   fields.add("port", &config.port).alias("p").range(0, 65535).doc("TCP port; 0 takes any free one");
//   MOESAIC_RETURN_IF_ERROR(fields.parse(args));
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"

namespace moesaic {

// One setting. Names are written without dashes; "--name value" and "--name=value" are read, booleans are "--name",
// "--no-name" or "--name=true". Names of one or two letters are short forms and take one dash.
class ConfigField {
 public:
  using Target = std::variant<bool*, int32_t*, int64_t*, uint64_t*, float*, double*, std::string*>;
  ConfigField(std::string name, Target target);

  ConfigField& alias(std::string name);
  // Inclusive. Numbers only.
  ConfigField& range(double min, double max);
  // The legal texts. Strings only.
  ConfigField& choices(std::vector<std::string> values);
  ConfigField& unit(std::string text);
  ConfigField& doc(std::string text);
  // What help shows as the default where the value itself says too little ("all CPUs" for 0).
  ConfigField& default_text(std::string text);
  // Left out of help and docs, never suggested.
  ConfigField& hidden();
  // The argument without a dash. At most one field.
  ConfigField& positional();
  // Takes all arguments up to the next flag, joined by spaces. Strings only.
  ConfigField& list();
  // A value must be given. The default is not shown.
  ConfigField& required();

 private:
  friend class ConfigFields;
  bool is_bool() const { return std::holds_alternative<bool*>(target_); }
  bool answers_to(std::string_view name) const;
  // "an integer from 0 to 65535"
  std::string expectation() const;
  std::string range_text() const;
  std::string value_text() const;
  std::string names_text() const;
  std::string default_shown() const;
  absl::Status set(std::string_view text, std::string_view source);

  std::string name_;
  std::vector<std::string> aliases_;
  Target target_;
  bool has_range_ = false;
  double min_ = 0;
  double max_ = 0;
  std::vector<std::string> choices_;
  std::string unit_;
  std::string doc_;
  std::string default_text_;
  bool hidden_ = false;
  bool positional_ = false;
  bool list_ = false;
  bool required_ = false;
  bool given_ = false;    // on the command line
  bool in_file_ = false;  // in the config file
};

// One setting of a config file as text.
struct ConfigEntry {
  enum class Kind { kString, kInteger, kFloat, kBoolean };
  std::string name;
  Kind kind;
  std::string text;
  int64_t line = 0;
};

class ConfigFields {
 public:
  // program: "moesaic serve"; about: one or two sentences.
  ConfigFields(std::string program, std::string about);

  // The reference stays valid.
  ConfigField& add(std::string name, ConfigField::Target target);

  // Reads --config FILE if given, then the arguments (without the program's name). --help is not an error: see
  // help_wanted(). Errors are INVALID_ARGUMENT: unknown name with a suggestion, missing, malformed or out-of-range
  // value, given twice, missing required value, a file that cannot be read.
  absl::Status parse(const std::vector<std::string>& args);
  // Reads settings from the text of a config file; `source` stands before the line in errors. No flags, no "required".
  absl::Status parse_text(std::string_view text, const std::string& source);
  bool help_wanted() const { return help_wanted_; }
  // Given in the file or on the command line.
  bool is_given(std::string_view name) const;

  std::string help() const;
  // A section of the docs page: heading, sentence, table.
  std::string markdown() const;

 private:
  ConfigField* find(std::string_view name);
  absl::Status unknown(std::string_view source, std::string_view shown) const;
  absl::Status read_entries(const std::vector<ConfigEntry>& entries, const std::string& source);
  absl::Status parse_argument(const std::vector<std::string>& args, size_t* index);
  absl::Status parse_flag(const std::vector<std::string>& args, size_t* index);
  absl::Status set_once(ConfigField& field, std::string_view text, std::string_view source);

  std::string program_;
  std::string about_;
  std::deque<ConfigField> fields_;
  std::string config_path_;
  bool help_wanted_ = false;
};

// "port" -> "--port", "tp" -> "-tp".
std::string dashed_name(std::string_view name);

// The settings of a TOML file, in its order. Tables, arrays and dates are refused: settings are flat.
absl::StatusOr<std::vector<ConfigEntry>> read_config_file(const std::string& path);
// The same from a text; `source` names it in errors.
absl::StatusOr<std::vector<ConfigEntry>> parse_config_text(std::string_view text, const std::string& source);

}  // namespace moesaic
