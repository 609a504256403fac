#include "plan/step_table.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;

// The interval that a value lies in, or the outermost one, and where: 0 at its begin, 1 at its end.
struct Place {
  size_t begin = 0;
  double share = 0.0;
};
Place find_place(const std::vector<int64_t>& points, int64_t value) {
  size_t begin = 0;
  while (begin + 2 < points.size() && points[begin + 1] <= value) ++begin;
  const auto width = static_cast<double>(points[begin + 1] - points[begin]);
  return {begin, static_cast<double>(value - points[begin]) / width};
}

absl::Status read_number(const Json& json, const char* name, double* value) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_number() || !(*found >= 0.0)) {
    return absl::InvalidArgumentError(str_cat("field \"", name, "\": expected a number from 0 on"));
  }
  *value = found->get<double>();
  return absl::OkStatus();
}

absl::Status read_text(const Json& json, const char* name, std::string* value) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_string()) {
    return absl::InvalidArgumentError(str_cat("field \"", name, "\": expected a text"));
  }
  *value = found->get<std::string>();
  return absl::OkStatus();
}

absl::Status read_axis(const Json& json, const char* name, std::vector<int64_t>* points) {
  const auto found = json.find(name);
  const bool good = found != json.end() && found->is_array() && found->size() >= 2 &&
                    std::all_of(found->begin(), found->end(), [](const Json& n) { return n.is_number_integer(); });
  if (good) *points = found->get<std::vector<int64_t>>();
  const auto falls = [&] { return std::adjacent_find(points->begin(), points->end(), std::greater_equal<>()); };
  if (good && points->front() == 0 && falls() == points->end()) return absl::OkStatus();
  return absl::InvalidArgumentError(str_cat("field \"", name, "\": expected two or more ascending integers from 0 on"));
}

absl::Status read_times(const Json& json, const char* name, size_t count, std::vector<double>* times) {
  const auto found = json.find(name);
  const auto is_time = [](const Json& n) { return n.is_number() && n >= 0.0; };
  if (found == json.end() || !found->is_array() || found->size() != count ||
      !std::all_of(found->begin(), found->end(), is_time)) {
    return absl::InvalidArgumentError(str_cat("field \"", name, "\": expected ", count, " numbers from 0 on"));
  }
  *times = found->get<std::vector<double>>();
  return absl::OkStatus();
}

}  // namespace

double StepTable::step_seconds(const StepWork& work) const {
  double most = 0.0;
  for (size_t g = 0; g < work.groups.size(); ++g) {
    const GroupWork& group = work.groups[g];
    if (group.num_tokens() == 0) continue;
    const Place d = find_place(decode_tokens, group.num_decode_tokens);
    const Place p = find_place(prefill_tokens, group.num_prefill_tokens);
    const double* corner = step_s.data() + d.begin * prefill_tokens.size() + p.begin;
    const double* next = corner + prefill_tokens.size();
    const double base = (1 - d.share) * ((1 - p.share) * corner[0] + p.share * corner[1]) +
                        d.share * ((1 - p.share) * next[0] + p.share * next[1]);
    const double pair_s = std::lerp(decode_pair_s[d.begin], decode_pair_s[d.begin + 1], std::min(d.share, 1.0));
    const auto cached = static_cast<double>(group.prefill_kv_tokens - group.num_prefill_tokens);
    most = std::max(
        most, base + pair_s * group.decode_pairs + prefill_pair_s * group.prefill_pairs + prefill_cached_s * cached);
  }
  double logit_rows = 0.0;  // the engine samples those of all groups
  for (const int64_t rows : work.logit_rows) logit_rows += static_cast<double>(rows);
  return most + host_step_s + host_logit_row_s * logit_rows;
}

std::string StepTable::to_json() const {
  const Json json = {{"device", device},
                     {"model", model},
                     {"layout", layout},
                     {"num_threads", num_threads},
                     {"decode_tokens", decode_tokens},
                     {"prefill_tokens", prefill_tokens},
                     {"step_s", step_s},
                     {"decode_pair_s", decode_pair_s},
                     {"prefill_pair_s", prefill_pair_s},
                     {"prefill_cached_s", prefill_cached_s},
                     {"host_step_s", host_step_s},
                     {"host_logit_row_s", host_logit_row_s}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::StatusOr<StepTable> StepTable::parse(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError("expected a JSON object, as bench steps writes it");
  StepTable table;
  MOESAIC_RETURN_IF_ERROR(read_text(json, "device", &table.device));
  MOESAIC_RETURN_IF_ERROR(read_text(json, "model", &table.model));
  MOESAIC_RETURN_IF_ERROR(read_text(json, "layout", &table.layout));
  double num_threads = 0.0;
  MOESAIC_RETURN_IF_ERROR(read_number(json, "num_threads", &num_threads));
  table.num_threads = static_cast<int>(std::min(num_threads, 1e6));
  MOESAIC_RETURN_IF_ERROR(read_axis(json, "decode_tokens", &table.decode_tokens));
  MOESAIC_RETURN_IF_ERROR(read_axis(json, "prefill_tokens", &table.prefill_tokens));
  const size_t count = table.decode_tokens.size() * table.prefill_tokens.size();
  MOESAIC_RETURN_IF_ERROR(read_times(json, "step_s", count, &table.step_s));
  MOESAIC_RETURN_IF_ERROR(read_times(json, "decode_pair_s", table.decode_tokens.size(), &table.decode_pair_s));
  for (const auto& [name, value] :
       std::vector<std::pair<const char*, double*>>{{"prefill_pair_s", &table.prefill_pair_s},
                                                    {"prefill_cached_s", &table.prefill_cached_s},
                                                    {"host_step_s", &table.host_step_s},
                                                    {"host_logit_row_s", &table.host_logit_row_s}}) {
    MOESAIC_RETURN_IF_ERROR(read_number(json, name, value));
  }
  return table;
}

std::string TableStepTimer::source() const {
  return str_cat("measured: ", table_.model, " on ", table_.device, ", ", table_.layout, ", ", table_.num_threads,
                 table_.num_threads == 1 ? " thread" : " threads");
}

}  // namespace moesaic
