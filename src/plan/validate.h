// validate: what the cost model predicts beside what was published (data/validation.csv). Rows of the set `calibration`
// were used to choose the model's constants; the others were not.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plan/predict_settings.h"

namespace moesaic {

struct ValidationRow {
  std::string figure;    // id in data/published_figures.csv, or the source
  std::string set;       // "calibration" or "other"
  std::string quantity;  // of the JSON of `plan predict`: "tokens_per_s_per_node", "layer_us", ...
  double published = 0;
  std::string args;  // flags of `moesaic plan predict`
  std::string note;
};

struct ValidatedRow {
  ValidationRow row;
  Prediction prediction;
  double predicted = 0;
  double error() const { return predicted / row.published - 1; }
};

// Lines of a table with the header of data/validation.csv. Errors name the line and the field.
absl::StatusOr<std::vector<ValidationRow>> parse_validation(std::string_view csv, const std::string& source);
absl::StatusOr<std::vector<ValidatedRow>> validate(const std::vector<ValidationRow>& rows);

struct ErrorSummary {
  int64_t num_rows = 0;
  double mean = 0;   // of absolute errors
  double worst = 0;  // the largest absolute error
};
ErrorSummary summarise(const std::vector<ValidatedRow>& rows, std::string_view set, bool in_range_only);
// Of the built-in table: rows in the range, of this phase, that no constant was fitted to. What an answer in the range
// may be off by.
absl::StatusOr<ErrorSummary> known_error(Phase phase);

}  // namespace moesaic
