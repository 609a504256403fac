// parse_expert_counts: recorded counts as JSON lines.
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "plan/expert_load.h"

namespace moesaic {
namespace {

using Json = nlohmann::json;

absl::Status bad_line(const std::string& source, int64_t line, std::string_view what) {
  return absl::InvalidArgumentError(str_cat(source, ":", line, ": ", what));
}

absl::Status check_header(const Json& header, const CountsShape& shape, const std::string& source, int64_t line) {
  const auto check = [&](const char* name, int expected) -> absl::Status {
    const auto found = header.find(name);
    if (found == header.end() || (found->is_number_integer() && *found == expected)) return absl::OkStatus();
    return bad_line(source, line,
                    str_cat("recorded of another model: ", name, " is ", found->dump(), "; expected ", expected));
  };
  MOESAIC_RETURN_IF_ERROR(check("num_hidden_layers", shape.num_hidden_layers));
  MOESAIC_RETURN_IF_ERROR(check("first_k_dense_replace", shape.first_k_dense_replace));
  return check("n_routed_experts", shape.n_routed_experts);
}

absl::StatusOr<double> read_layer(const Json& row, const CountsShape& shape, std::span<double> out,
                                  std::string_view where) {
  if (!row.is_array() || static_cast<int>(row.size()) != shape.n_routed_experts) {
    return absl::InvalidArgumentError(str_cat(where, " has ", row.is_array() ? row.size() : 0,
                                              " experts: another model's; expected ", shape.n_routed_experts));
  }
  for (size_t e = 0; e < row.size(); ++e) {
    const double count = row[e].is_number() ? row[e].get<double>() : -1;
    if (!(count >= 0 && count <= 1e18)) {
      return absl::InvalidArgumentError(
          str_cat(where, ", expert ", e, " is ", row[e].dump(), "; expected a count of tokens"));
    }
    out[e] = count;
  }
  return std::accumulate(out.begin(), out.end(), 0.0);
}

absl::StatusOr<ExpertLoads> read_record(const Json& counts, const CountsShape& shape) {
  const int num_rows = counts.is_array() ? static_cast<int>(counts.size()) : 0;
  const bool with_dense = num_rows == shape.num_hidden_layers;
  if (!with_dense && num_rows != shape.num_moe_layers()) {
    return absl::InvalidArgumentError(str_cat("logical_count has ", num_rows, " layers: another model's; expected ",
                                              shape.num_hidden_layers, " layers or its ", shape.num_moe_layers(),
                                              " MoE layers"));
  }
  const int num_dense = with_dense ? shape.first_k_dense_replace : 0;
  ExpertLoads out{shape.num_moe_layers(), shape.n_routed_experts, {}};
  out.values.resize(static_cast<size_t>(out.num_layers) * out.num_experts);
  std::vector<double> dense(shape.n_routed_experts);
  for (int row = 0; row < num_rows; ++row) {
    const bool is_dense = row < num_dense;
    const std::span<double> layer = is_dense ? std::span(dense) : out.layer(row - num_dense);
    MOESAIC_ASSIGN_OR_RETURN(const double total, read_layer(counts[row], shape, layer, str_cat("layer ", row)));
    if (is_dense && total > 0) {
      return absl::InvalidArgumentError(
          str_cat("layer ", row, " has ", total, " tokens and is dense in this model: recorded of another model"));
    }
    if (!is_dense && total <= 0) return absl::InvalidArgumentError(str_cat("layer ", row, " has no tokens"));
  }
  return out;
}

}  // namespace

absl::StatusOr<std::vector<ExpertLoads>> parse_expert_counts(std::string_view text, const std::string& source,
                                                             const CountsShape& shape) {
  std::vector<ExpertLoads> records;
  int64_t line = 0, num_expected = -1;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view content = text.substr(0, end);
    const bool is_last = end == std::string_view::npos;
    text.remove_prefix(is_last ? text.size() : end + 1);
    ++line;
    if (content.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const Json object = Json::parse(content, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) {
      return bad_line(source, line, is_last ? "no JSON object: the file was cut short" : "no JSON object");
    }
    MOESAIC_RETURN_IF_ERROR(check_header(object, shape, source, line));
    const auto counts = object.find("logical_count");
    if (counts == object.end()) {
      if (!records.empty() || num_expected >= 0) return bad_line(source, line, "logical_count is missing");
      const auto wanted = object.find("num_records");
      if (wanted != object.end() && !wanted->is_number_unsigned()) {
        return bad_line(source, line, str_cat("num_records is ", wanted->dump(), "; expected a number"));
      }
      num_expected = wanted == object.end() ? 0 : wanted->get<int64_t>();
      continue;
    }
    absl::StatusOr<ExpertLoads> record = read_record(*counts, shape);
    if (!record.ok()) return bad_line(source, line, str_cat(record.status().message()));
    records.push_back(*std::move(record));
  }
  const auto num_records = static_cast<int64_t>(records.size());
  if (records.empty() || (num_expected > 0 && num_records != num_expected)) {
    return bad_line(source, line,
                    str_cat("the file was cut short: ", num_records, " records; expected ",
                            num_expected > 0 ? str_cat(num_expected) : "at least 1"));
  }
  return records;
}

}  // namespace moesaic
