#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/plan_command.h"
#include "cli/report_file.h"
#include "cost/embedded_files.h"
#include "plan/validate.h"

namespace moesaic {
namespace {

constexpr char kTable[] = "validation.csv";

struct ValidateConfig {
  std::string command_line;
  std::string table;
  bool json = false;
  std::string report;
};

void declare(ConfigFields& fields, ValidateConfig& config) {
  fields.add("table", &config.table)
      .default_text("the built-in one")
      .doc("CSV with the columns of data/validation.csv: figures to compare with");
  fields.add("json", &config.json).doc("Prints one JSON object");
  fields.add("report", &config.report).doc("Writes an HTML page, or its JSON if the name ends in .json");
}

nlohmann::ordered_json summary_json(const ErrorSummary& s) {
  return {{"rows", s.num_rows}, {"mean_abs_error", s.mean}, {"worst_abs_error", s.worst}};
}

std::string table_text(const std::vector<ValidatedRow>& rows) {
  std::string out;
  for (const char* set : {"calibration", "other"}) {
    out += fmt::format("{}\n  {:<44}{:<24}{:>10}{:>10}{:>8}\n", set, "system", "quantity", "published", "predicted",
                       "error");
    for (const ValidatedRow& row : rows) {
      if (row.row.set != set) continue;
      out += fmt::format("  {:<44}{:<24}{:>10.6g}{:>10.6g}{:>+7.1f} %{}\n", row.row.note, row.row.quantity,
                         row.row.published, row.predicted, row.error() * 100,
                         row.prediction.in_range ? "" : "  outside the range");
    }
    for (const bool in_range : {true, false}) {
      const ErrorSummary s = summarise(rows, set, in_range);
      out += fmt::format("  {} {} rows: mean error {:.1f} %, worst {:.1f} %\n",
                         in_range ? "in range:" : "all:", s.num_rows, s.mean * 100, s.worst * 100);
    }
  }
  return out;
}

std::string table_json(const std::vector<ValidatedRow>& rows) {
  nlohmann::ordered_json out;
  for (const char* set : {"calibration", "other"}) {
    out[set] = {{"in_range", summary_json(summarise(rows, set, true))},
                {"all", summary_json(summarise(rows, set, false))}};
    for (const ValidatedRow& row : rows) {
      if (row.row.set != set) continue;
      out[set]["rows"].push_back({{"figure", row.row.figure},
                                  {"system", row.row.note},
                                  {"quantity", row.row.quantity},
                                  {"published", row.row.published},
                                  {"predicted", row.predicted},
                                  {"error", row.error()},
                                  {"in_range", row.prediction.in_range},
                                  {"args", row.row.args}});
    }
  }
  return out.dump(2) + "\n";
}

Section set_section(const std::vector<ValidatedRow>& rows, const char* set) {
  Table errors{.title = "Predictions",
               .source = Source::kPredicted,
               .columns = {{"system"}, {"quantity"}, {"published"}, {"predicted"}, {"error", "%"}, {"range"}}};
  for (const ValidatedRow& row : rows) {
    if (row.row.set != set) continue;
    errors.rows.push_back({row.row.note, row.row.quantity, row.row.published, row.predicted, row.error() * 100,
                           row.prediction.in_range ? "inside" : "outside"});
  }
  Table summary{.title = "Errors", .columns = {{"rows"}, {"number"}, {"mean of absolute errors", "%"}, {"worst", "%"}}};
  for (const bool in_range : {true, false}) {
    const ErrorSummary s = summarise(rows, set, in_range);
    summary.rows.push_back(
        {in_range ? "in range" : "all", static_cast<double>(s.num_rows), s.mean * 100, s.worst * 100});
  }
  return {.title = set, .tables = {std::move(summary), std::move(errors)}};
}

Report error_report(const std::vector<ValidatedRow>& rows, const std::string& command) {
  return {.title = "Predictions beside published figures",
          .summary =
              "Constants were fitted to the calibration rows alone; the others were known when mechanisms were chosen.",
          .command = command,
          .assumptions = {"the range is that of the systems compared: docs/planning.md"},
          .sections = {set_section(rows, "calibration"), set_section(rows, "other")}};
}

absl::Status run(ValidateConfig& config) {
  std::string text;
  if (config.table.empty()) {
    MOESAIC_ASSIGN_OR_RETURN(text, embedded_text(kTable));
  } else {
    MOESAIC_ASSIGN_OR_RETURN(text, read_text_file(config.table));
  }
  MOESAIC_ASSIGN_OR_RETURN(const std::vector<ValidationRow> rows,
                           parse_validation(text, config.table.empty() ? kTable : config.table));
  MOESAIC_ASSIGN_OR_RETURN(const std::vector<ValidatedRow> validated, validate(rows));
  std::fputs((config.json ? table_json(validated) : table_text(validated)).c_str(), stdout);
  return write_report(error_report(validated, config.command_line), config.report);
}

}  // namespace

Command plan_validate_command() {
  return make_command<ValidateConfig, declare, run>(
      "plan validate", "Compares predictions with published figures: those used for calibration and others apart.");
}

}  // namespace moesaic
