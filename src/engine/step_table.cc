#include "engine/step_table.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "model/json_fields.h"

namespace moesaic {
namespace {

using Json = nlohmann::json;

// The interval that a value lies in, or the outermost one, and where: 0 at its begin, 1 at its end.
struct Place {
  size_t begin = 0, end = 0;
  double share = 0.0;
};
Place find_place(const std::vector<int64_t>& points, int64_t value) {
  if (points.size() < 2) return {};
  size_t end = 1;
  while (end + 1 < points.size() && points[end] <= value) ++end;
  const auto width = static_cast<double>(points[end] - points[end - 1]);
  return {end - 1, end, static_cast<double>(value - points[end - 1]) / width};
}

std::vector<int64_t> read_axis(JsonFields& fields, const char* name) {
  const Json* found = fields.find(name);
  if (found != nullptr && found->is_array() && found->size() >= 2 &&
      std::all_of(found->begin(), found->end(), [](const Json& n) { return n.is_number_integer(); })) {
    const auto points = found->get<std::vector<int64_t>>();
    const bool ascends = std::adjacent_find(points.begin(), points.end(), std::greater_equal<>()) == points.end();
    if (points.front() == 0 && ascends) return points;
  }
  fields.fail(str_cat("field '", name, "': expected two or more ascending integers from 0 on"));
  return {};
}

std::vector<double> read_times(JsonFields& fields, const char* name, size_t count) {
  const Json* found = fields.find(name);
  if (found != nullptr && found->is_array() && found->size() == count &&
      std::all_of(found->begin(), found->end(), [](const Json& n) { return n.is_number() && n >= 0.0; })) {
    return found->get<std::vector<double>>();
  }
  fields.fail(str_cat("field '", name, "': expected ", count, " numbers from 0 on"));
  return {};
}

constexpr double kMostSeconds = std::numeric_limits<double>::max();

Json to_json(const StepTimes& times) {
  return {{"base_s", times.base_s},
          {"decode_pair_s", times.decode_pair_s},
          {"decode_reuse", times.decode_reuse},
          {"prefill_pair_s", times.prefill_pair_s},
          {"prefill_cached_s", times.prefill_cached_s}};
}

absl::Status read_step_times(const StepTable& table, const char* name, const Json& json, StepTimes* times) {
  if (!json.is_object()) return absl::InvalidArgumentError(str_cat("field '", name, "': expected an object"));
  JsonFields fields(json, name);
  times->base_s = read_times(fields, "base_s", table.decode_tokens.size() * table.prefill_tokens.size());
  times->decode_pair_s = read_times(fields, "decode_pair_s", table.decode_tokens.size());
  times->decode_reuse = fields.number("decode_reuse", 0.0, 1.0);
  times->prefill_pair_s = fields.number("prefill_pair_s", 0.0, kMostSeconds);
  times->prefill_cached_s = fields.number("prefill_cached_s", 0.0, kMostSeconds);
  return fields.status();
}

}  // namespace

StepTable StepTable::linear(const Linear& s) {
  StepTable table{.device = "given: linear in the tokens", .decode_tokens = {0, 1}, .prefill_tokens = {0, 1}};
  table.step = {
      .base_s = {s.step, s.step + s.prefill_token, s.step + s.decode_token, s.step + s.decode_token + s.prefill_token},
      .decode_pair_s = {s.decode_kv_token, s.decode_kv_token},
      .decode_reuse = 1.0};
  const double one = s.draft_level + s.draft_token;
  table.draft = {.base_s = {s.draft_level, s.draft_level, one, one}, .decode_pair_s = {0.0, 0.0}};
  return table;
}

double StepTable::seconds(const StepTimes& times, const GroupWork& group) const {
  if (group.num_tokens() == 0) return 0.0;
  const Place d = find_place(decode_tokens, group.num_decode_tokens);
  const Place p = find_place(prefill_tokens, group.num_prefill_tokens);
  const auto with_decode = [&](size_t index) {
    const double* row = times.base_s.data() + index * prefill_tokens.size();
    return std::lerp(row[p.begin], row[p.end], p.share);
  };
  const double pair_s = std::lerp(times.decode_pair_s[d.begin], times.decode_pair_s[d.end], std::min(d.share, 1.0));
  const double pairs = std::lerp(group.decode_pairs, static_cast<double>(group.decode_kv_tokens), times.decode_reuse);
  const auto cached = static_cast<double>(group.prefill_kv_tokens - group.num_prefill_tokens);
  return std::lerp(with_decode(d.begin), with_decode(d.end), d.share) + pair_s * pairs +
         times.prefill_pair_s * group.prefill_pairs + times.prefill_cached_s * cached;
}

std::string StepTable::to_json() const {
  nlohmann::ordered_json json = {{"device", device},
                                 {"model", model},
                                 {"layout", layout},
                                 {"num_threads", num_threads},
                                 {"decode_tokens", decode_tokens},
                                 {"prefill_tokens", prefill_tokens},
                                 {"step", moesaic::to_json(step)}};
  if (has_draft()) json["draft"] = moesaic::to_json(draft);
  json["host_step_s"] = host_step_s;
  json["host_logit_row_s"] = host_logit_row_s;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<StepTable> StepTable::parse(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError("expected a JSON object, as bench steps writes it");
  JsonFields fields(json, "step table");
  StepTable table;
  table.device = fields.text("device");
  table.model = fields.text("model");
  table.layout = fields.text("layout");
  table.num_threads = static_cast<int>(fields.integer("num_threads", 1, 1 << 20));
  table.decode_tokens = read_axis(fields, "decode_tokens");
  table.prefill_tokens = read_axis(fields, "prefill_tokens");
  table.host_step_s = fields.number("host_step_s", 0.0, kMostSeconds);
  table.host_logit_row_s = fields.number("host_logit_row_s", 0.0, kMostSeconds);
  MOESAIC_RETURN_IF_ERROR(fields.status());
  const Json* step = fields.find("step");
  MOESAIC_RETURN_IF_ERROR(read_step_times(table, "step", step != nullptr ? *step : Json(), &table.step));
  const Json* draft = fields.find("draft");
  if (draft != nullptr) MOESAIC_RETURN_IF_ERROR(read_step_times(table, "draft", *draft, &table.draft));
  return table;
}

}  // namespace moesaic
