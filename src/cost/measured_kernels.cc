#include "cost/measured_kernels.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>

namespace moesaic {
namespace {

using Json = nlohmann::json;

constexpr std::array<std::string_view, 5> kOps = {"gemm_dense", "gemm_contiguous", "gemm_masked", "mla_decode",
                                                  "mla_prefill"};

bool is_grouped(std::string_view op) {
  return op == "gemm_contiguous" || op == "gemm_masked";
}

absl::Status read_number(const Json& row, const char* field, const std::string& where, auto* value) {
  if (!row.contains(field)) return absl::OkStatus();
  if (!row[field].is_number() || !(row[field].get<double>() >= 0)) {
    return absl::InvalidArgumentError(
        str_cat(where, ": ", field, " expects a number of at least 0, found ", row[field].dump()));
  }
  *value = row[field].get<std::decay_t<decltype(*value)>>();
  return absl::OkStatus();
}

absl::Status require(bool present, const char* what, const std::string& where, const std::string& op) {
  if (present) return absl::OkStatus();
  return absl::InvalidArgumentError(str_cat(where, ": a row of ", op, " needs ", what, " above 0"));
}

absl::StatusOr<MeasuredKernel> read_row(const Json& json, const std::string& where) {
  if (!json.is_object()) return absl::InvalidArgumentError(str_cat(where, ": expects an object, found ", json.dump()));
  MeasuredKernel row;
  for (const auto& [field, text] : {std::pair{"op", &row.op}, std::pair{"dtype", &row.dtype}}) {
    if (!json.contains(field) || !json[field].is_string()) {
      return absl::InvalidArgumentError(str_cat(where, ": the text ", field, " is missing"));
    }
    *text = json[field].get<std::string>();
  }
  if (row.dtype == "e4m3") row.dtype = "fp8";
  MOESAIC_RETURN_IF_ERROR(read_number(json, "m", where, &row.m));
  MOESAIC_RETURN_IF_ERROR(read_number(json, "n", where, &row.n));
  MOESAIC_RETURN_IF_ERROR(read_number(json, "k", where, &row.k));
  MOESAIC_RETURN_IF_ERROR(read_number(json, "groups", where, &row.groups));
  if (row.groups == 0) row.groups = 1;  // an operation without groups
  MOESAIC_RETURN_IF_ERROR(read_number(json, "batch", where, &row.batch));
  MOESAIC_RETURN_IF_ERROR(read_number(json, "heads", where, &row.heads));
  MOESAIC_RETURN_IF_ERROR(read_number(json, "q_len", where, &row.q_len));
  MOESAIC_RETURN_IF_ERROR(read_number(json, "kv_len", where, &row.kv_len));
  MOESAIC_RETURN_IF_ERROR(read_number(json, "us", where, &row.us));
  MOESAIC_RETURN_IF_ERROR(require(row.us > 0, "us", where, row.op));
  if (row.op == "gemm_dense" || is_grouped(row.op)) {
    MOESAIC_RETURN_IF_ERROR(
        require(row.m > 0 && row.n > 0 && row.k > 0 && row.groups > 0, "m, n, k, groups", where, row.op));
  } else if (row.op == "mla_decode" || row.op == "mla_prefill") {
    MOESAIC_RETURN_IF_ERROR(require(row.batch > 0 && row.heads > 0 && row.q_len > 0 && row.kv_len > 0,
                                    "batch, heads, q_len, kv_len", where, row.op));
  }
  return row;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const MeasuredKernels>> MeasuredKernels::parse(std::string_view text,
                                                                              const std::string& source) {
  const Json json = Json::parse(text, nullptr, false);
  const Json* array = json.is_object() && json.contains("rows") ? &json["rows"] : &json;
  if (json.is_discarded() || !array->is_array()) {
    return absl::InvalidArgumentError(str_cat(source, ": expects a JSON array of rows, or an object with \"rows\""));
  }
  std::vector<MeasuredKernel> rows;
  for (size_t i = 0; i < array->size(); ++i) {
    MOESAIC_ASSIGN_OR_RETURN(MeasuredKernel row, read_row((*array)[i], str_cat(source, ": row ", i)));
    // Operations that the model does not use may stand in the same table.
    if (std::find(kOps.begin(), kOps.end(), row.op) != kOps.end()) rows.push_back(std::move(row));
  }
  std::string device;
  if (json.is_object() && json.contains("device") && json["device"].is_string()) device = json["device"];
  return std::make_shared<const MeasuredKernels>(std::move(rows), std::move(device));
}

absl::Status MeasuredKernels::check_device(const HardwareSpec& hardware, const std::string& source) const {
  const std::vector<std::string> known = hardware_names();
  if (device_.empty() || std::find(known.begin(), known.end(), hardware.name) == known.end()) return absl::OkStatus();
  const std::string name = hardware.name.substr(0, hardware.name.find('-'));
  std::string word;
  for (const char c : str_cat(device_, " ")) {
    if (std::isalnum(static_cast<unsigned char>(c))) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      continue;
    }
    if (word == name) return absl::OkStatus();
    word.clear();
  }
  return absl::InvalidArgumentError(str_cat(source, ": measured on ", device_, ", but --hardware says ", hardware.name,
                                            "; expected a table of that device, or a hardware file of one's own"));
}

std::vector<const MeasuredKernel*> MeasuredKernels::gemms(bool grouped, int64_t n, int64_t k,
                                                          Precision precision) const {
  std::vector<const MeasuredKernel*> found;
  for (const MeasuredKernel& row : rows_) {
    if ((grouped ? is_grouped(row.op) : row.op == "gemm_dense") && row.n == n && row.k == k &&
        (row.dtype == "fp8") == (precision == Precision::kFp8)) {
      found.push_back(&row);
    }
  }
  return found;
}

std::vector<const MeasuredKernel*> MeasuredKernels::attentions(std::string_view op, int64_t heads, bool fp8) const {
  std::vector<const MeasuredKernel*> found;
  for (const MeasuredKernel& row : rows_) {
    if (row.op == op && row.heads == heads && (row.dtype == "fp8") == fp8) found.push_back(&row);
  }
  return found;
}

}  // namespace moesaic
