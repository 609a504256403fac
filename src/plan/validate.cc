#include "plan/validate.h"

#include <charconv>
#include <cmath>
#include <sstream>

#include "cost/embedded_files.h"

namespace moesaic {
namespace {

constexpr std::string_view kHeader = "figure,set,quantity,published,args,note";
constexpr size_t kNumFields = 6;

std::vector<std::string> split(std::string_view text, char separator, size_t most) {
  std::vector<std::string> parts;
  while (parts.size() + 1 < most && text.find(separator) != std::string_view::npos) {
    const size_t at = text.find(separator);
    parts.emplace_back(text.substr(0, at));
    text.remove_prefix(at + 1);
  }
  parts.emplace_back(text);
  return parts;
}

absl::StatusOr<double> quantity_of(const Prediction& p, const std::string& name) {
  if (name == "tokens_per_s_per_node") return p.tokens_per_s_per_node;
  if (name == "tokens_per_s_per_gpu") return p.tokens_per_s_per_gpu;
  if (name == "tokens_per_s_per_user") return p.tokens_per_s_per_user;
  if (name == "layer_us") return p.step.moe_layer.seconds * 1e6;
  if (name == "step_ms") return p.step.seconds * 1e3;
  return absl::InvalidArgumentError(str_cat("unknown quantity ", name));
}

}  // namespace

absl::StatusOr<std::vector<ValidationRow>> parse_validation(std::string_view csv, const std::string& source) {
  std::istringstream lines{std::string(csv)};
  std::vector<ValidationRow> rows;
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (number == 1 && line != kHeader) {
      return absl::InvalidArgumentError(str_cat(source, ":1: expects the header ", kHeader, ", found ", line));
    }
    if (number == 1 || line.empty()) continue;
    const std::vector<std::string> fields = split(line, ',', kNumFields);
    if (fields.size() != kNumFields) {
      return absl::InvalidArgumentError(
          str_cat(source, ":", number, ": expects ", kNumFields, " fields, found ", fields.size()));
    }
    ValidationRow row{fields[0], fields[1], fields[2], 0, fields[4], fields[5]};
    const auto [end, error] = std::from_chars(fields[3].data(), fields[3].data() + fields[3].size(), row.published);
    if (error != std::errc() || *end != '\0' || !(row.published > 0)) {
      return absl::InvalidArgumentError(
          str_cat(source, ":", number, ": published expects a number above 0, found ", fields[3]));
    }
    if (row.set != "calibration" && row.set != "other") {
      return absl::InvalidArgumentError(
          str_cat(source, ":", number, ": set expects calibration or other, found ", row.set));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

absl::StatusOr<std::vector<ValidatedRow>> validate(const std::vector<ValidationRow>& rows) {
  std::vector<ValidatedRow> out;
  for (const ValidationRow& row : rows) {
    PredictSettings settings;
    ConfigFields fields("plan predict", "");
    add_predict_fields(fields, settings);
    const absl::Status parsed = fields.parse(split(row.args, ' ', row.args.size() + 2));
    if (!parsed.ok()) return annotate(parsed, row.note);
    const auto predicted = predict(settings);
    if (!predicted.ok()) return annotate(predicted.status(), row.note);
    const Prediction& prediction = predicted->prediction;
    MOESAIC_ASSIGN_OR_RETURN(const double value, quantity_of(prediction, row.quantity));
    out.push_back({row, prediction, value});
  }
  return out;
}

ErrorSummary summarise(const std::vector<ValidatedRow>& rows, std::string_view set, bool in_range_only) {
  ErrorSummary summary;
  for (const ValidatedRow& row : rows) {
    if (row.row.set != set || (in_range_only && !row.prediction.in_range)) continue;
    const double error = std::abs(row.error());
    ++summary.num_rows;
    summary.mean += error;
    summary.worst = std::max(summary.worst, error);
  }
  if (summary.num_rows > 0) summary.mean /= static_cast<double>(summary.num_rows);
  return summary;
}

absl::StatusOr<ErrorSummary> known_error(Phase phase) {
  MOESAIC_ASSIGN_OR_RETURN(const std::string_view text, embedded_text("validation.csv"));
  MOESAIC_ASSIGN_OR_RETURN(const std::vector<ValidationRow> rows, parse_validation(text, "validation.csv"));
  MOESAIC_ASSIGN_OR_RETURN(std::vector<ValidatedRow> validated, validate(rows));
  std::erase_if(validated, [&](const ValidatedRow& row) { return row.prediction.phase != phase; });
  return summarise(validated, "other", true);
}

}  // namespace moesaic
