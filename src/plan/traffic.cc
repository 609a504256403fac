#include "plan/traffic.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/rng.h"

namespace moesaic {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxLength = 1 << 24;
constexpr int64_t kMaxPrefixId = int64_t{1} << 53;  // exact in every JSON reader
constexpr double kMaxTime = 1e9;                    // seconds: 30 years, far from the end of an int64 of nanoseconds
constexpr double kNsPerSecond = 1e9;

// Streams of random numbers that do not meet: one for each purpose and index.
enum Purpose : uint64_t { kLengths = 1, kBody, kPrefix };
Rng stream(uint64_t seed, Purpose purpose, uint64_t index) {
  return Rng(Rng(seed ^ (purpose * 0x9e3779b97f4a7c15ull)).next_u64() ^ Rng(index).next_u64());
}

absl::Status bad_field(const char* name, const std::string& expected, const Json& json) {
  const auto found = json.find(name);
  return absl::InvalidArgumentError(str_cat(
      "field \"", name, "\": expected ", expected, ", found ",
      found == json.end() ? std::string("nothing") : found->dump(-1, ' ', true, Json::error_handler_t::replace)));
}

absl::Status read_integer(const Json& json, const char* name, int64_t least, int64_t most, int64_t* value) {
  const auto found = json.find(name);
  const bool good = found != json.end() && found->is_number_integer() && *found >= least && *found <= most;
  if (!good) return bad_field(name, str_cat("an integer from ", least, " to ", most), json);
  *value = found->get<int64_t>();
  return absl::OkStatus();
}

absl::Status check_names(const Json& json) {
  const std::vector<std::string> known = {"time", "input", "output", "prefix", "prefix_tokens"};
  for (const auto& [name, value] : json.items()) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    return absl::InvalidArgumentError(str_cat("unknown field \"", name, "\"; known are ", str_join(known, ", ")));
  }
  return absl::OkStatus();
}

absl::Status read_request(const Json& json, TrafficRequest* request) {
  if (!json.is_object()) return absl::InvalidArgumentError("expected a JSON object");
  MOESAIC_RETURN_IF_ERROR(check_names(json));
  const auto time = json.find("time");
  if (time == json.end() || !time->is_number() || !(*time >= 0.0) || !(*time <= kMaxTime)) {
    return bad_field("time", str_cat("seconds from 0 to ", kMaxTime), json);
  }
  request->due_ns = std::llround(time->get<double>() * kNsPerSecond);
  int64_t input = 0, output = 0;
  MOESAIC_RETURN_IF_ERROR(read_integer(json, "input", 1, kMaxLength, &input));
  MOESAIC_RETURN_IF_ERROR(read_integer(json, "output", 1, kMaxLength, &output));
  request->num_input = static_cast<int32_t>(input);
  request->num_output = static_cast<int32_t>(output);
  if (!json.contains("prefix")) {
    if (json.contains("prefix_tokens")) return bad_field("prefix", "an id, as there are \"prefix_tokens\"", json);
    return absl::OkStatus();
  }
  int64_t num_prefix = input;
  MOESAIC_RETURN_IF_ERROR(read_integer(json, "prefix", 0, kMaxPrefixId, &request->prefix_id));
  if (json.contains("prefix_tokens")) {
    MOESAIC_RETURN_IF_ERROR(read_integer(json, "prefix_tokens", 1, input, &num_prefix));
  }
  request->num_prefix = static_cast<int32_t>(num_prefix);
  return absl::OkStatus();
}

void append_tokens(Rng rng, int64_t count, uint64_t vocab_size, std::vector<int32_t>* ids) {
  for (int64_t i = 0; i < count; ++i) ids->push_back(static_cast<int32_t>(rng.below(vocab_size)));
}

}  // namespace

int64_t draw_length(Rng& rng, int64_t length, double ratio) {
  const auto low = static_cast<int64_t>(std::floor(static_cast<double>(length) * (1.0 - ratio)));
  const auto high = static_cast<int64_t>(std::ceil(static_cast<double>(length) * (1.0 + ratio)));
  return std::max<int64_t>(low + static_cast<int64_t>(rng.below(high - low + 1)), 1);
}

std::vector<TrafficRequest> make_traffic(const TrafficOptions& options) {
  const std::vector<double> times = arrival_times(options.arrivals, options.num_prompts);
  Rng rng = stream(options.arrivals.seed, kLengths, 0);
  std::vector<TrafficRequest> requests(options.num_prompts);
  for (int64_t i = 0; i < options.num_prompts; ++i) {
    TrafficRequest& request = requests[i];
    request.due_ns = std::llround(times[i] * kNsPerSecond);
    request.num_input = static_cast<int32_t>(draw_length(rng, options.input_len, options.range_ratio));
    request.num_output = static_cast<int32_t>(draw_length(rng, options.output_len, options.range_ratio));
    if (options.num_prefixes == 0 || options.prefix_len == 0) continue;
    request.prefix_id = static_cast<int64_t>(rng.below(options.num_prefixes));
    request.num_prefix = static_cast<int32_t>(options.prefix_len);
    request.num_input += request.num_prefix;
  }
  return requests;
}

absl::StatusOr<std::vector<TrafficRequest>> parse_trace(std::string_view lines, int64_t max_requests) {
  std::vector<TrafficRequest> requests;
  int64_t number = 0;
  for (size_t begin = 0; begin < lines.size() && std::ssize(requests) < max_requests;) {
    const size_t end = std::min(lines.find('\n', begin), lines.size());
    const std::string_view line = lines.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    TrafficRequest request;
    absl::Status status = read_request(Json::parse(line, nullptr, /*allow_exceptions=*/false), &request);
    if (status.ok() && !requests.empty() && request.due_ns < requests.back().due_ns) {
      status = absl::InvalidArgumentError(
          str_cat("field \"time\": ", static_cast<double>(request.due_ns) / kNsPerSecond, " is before the line above, ",
                  static_cast<double>(requests.back().due_ns) / kNsPerSecond));
    }
    if (!status.ok()) return annotate(status, str_cat("line ", number));
    requests.push_back(request);
  }
  if (requests.empty()) return absl::InvalidArgumentError("the trace has no requests");
  return requests;
}

std::string trace_line(const TrafficRequest& request) {
  std::string line = str_cat("{\"time\": ", static_cast<double>(request.due_ns) / kNsPerSecond,
                             ", \"input\": ", request.num_input, ", \"output\": ", request.num_output);
  if (request.prefix_id >= 0) {
    line += str_cat(", \"prefix\": ", request.prefix_id, ", \"prefix_tokens\": ", request.num_prefix);
  }
  return line + "}\n";
}

std::vector<int32_t> prompt_tokens(const TrafficRequest& request, int64_t index, uint64_t seed, int64_t vocab_size) {
  MOESAIC_CHECK_GE(vocab_size, 2);
  std::vector<int32_t> ids;
  ids.reserve(request.num_input);
  if (request.prefix_id >= 0)
    append_tokens(stream(seed, kPrefix, request.prefix_id), request.num_prefix, vocab_size, &ids);
  append_tokens(stream(seed, kBody, index), request.num_input - std::ssize(ids), vocab_size, &ids);
  return ids;
}

}  // namespace moesaic
