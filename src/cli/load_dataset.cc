#include "cli/load_dataset.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/rng.h"
#include "model/file_map.h"
#include "plan/traffic.h"

namespace moesaic {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxFileBytes = 4ll << 30;
constexpr int64_t kMaxLength = 1 << 24;
constexpr int64_t kMooncakeBlock = 512;
constexpr int32_t kFirstId = 100;  // lower ids are often special tokens
constexpr const char* kWords[] = {"time",     "year",  "people", "way",    "day",   "man",     "thing",  "woman",
                                  "life",     "child", "world",  "school", "state", "family",  "group",  "country",
                                  "hand",     "part",  "place",  "case",   "week",  "company", "system", "program",
                                  "question", "work",  "night",  "point",  "home",  "water",   "room",   "mother"};

// Streams of random numbers that do not meet: one for each purpose and index.
Rng stream(uint64_t seed, uint64_t purpose, uint64_t index) {
  return Rng(Rng(seed ^ (purpose * 0x9e3779b97f4a7c15ull)).next_u64() ^ Rng(index).next_u64());
}
enum Purpose : uint64_t { kLengths = 1, kBody, kPrefix, kOrder, kBlock };

void append_ids(Rng rng, int64_t count, int64_t vocab_size, std::vector<int32_t>* ids) {
  const int64_t first = std::min<int64_t>(kFirstId, vocab_size - 1);
  for (int64_t i = 0; i < count; ++i) {
    ids->push_back(static_cast<int32_t>(first + static_cast<int64_t>(rng.below(vocab_size - first))));
  }
}

std::vector<LoadPrompt> random_prompts(const DatasetOptions& options) {
  std::vector<LoadPrompt> prompts(options.num_prompts);
  Rng lengths = stream(options.seed, kLengths, 0);
  for (int64_t i = 0; i < options.num_prompts; ++i) {
    const int64_t length = draw_length(lengths, options.random_input_len, options.random_range_ratio);
    append_ids(stream(options.seed, kBody, i), length, options.vocab_size, &prompts[i].ids);
    prompts[i].output_len = draw_length(lengths, options.random_output_len, options.random_range_ratio);
  }
  return prompts;
}

// Prompt i belongs to group i modulo the number of groups; then all are shuffled.
std::vector<LoadPrompt> shared_prefix_prompts(const DatasetOptions& options) {
  std::vector<LoadPrompt> prompts(options.num_prompts);
  for (int64_t i = 0; i < options.num_prompts; ++i) {
    const int64_t group = i % options.gsp_num_groups;
    append_ids(stream(options.seed, kPrefix, group), options.gsp_system_prompt_len, options.vocab_size,
               &prompts[i].ids);
    append_ids(stream(options.seed, kBody, i), options.gsp_question_len, options.vocab_size, &prompts[i].ids);
    prompts[i].output_len = options.gsp_output_len;
  }
  Rng order = stream(options.seed, kOrder, 0);
  for (int64_t i = options.num_prompts - 1; i > 0; --i) std::swap(prompts[i], prompts[order.below(i + 1)]);
  return prompts;
}

// Calls `take` with each line's object until it says no more; errors name the line.
absl::Status each_line(std::string_view lines, int64_t max_lines,
                       const std::function<absl::Status(const Json&)>& take) {
  int64_t number = 0, num_taken = 0;
  for (size_t begin = 0; begin < lines.size() && num_taken < max_lines;) {
    const size_t end = std::min(lines.find('\n', begin), lines.size());
    const std::string_view line = lines.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    const absl::Status status = json.is_object() ? take(json) : absl::InvalidArgumentError("expected a JSON object");
    if (!status.ok()) return annotate(status, str_cat("--dataset-path, line ", number));
    ++num_taken;
  }
  if (num_taken == 0) return absl::InvalidArgumentError("--dataset-path has no prompts");
  return absl::OkStatus();
}

absl::Status read_length(const Json& json, const char* name, int64_t* value) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_number_integer() || *found < 1 || *found > kMaxLength) {
    return absl::InvalidArgumentError(str_cat(name, " must be an integer from 1 to ", kMaxLength));
  }
  *value = found->get<int64_t>();
  return absl::OkStatus();
}

absl::Status read_prompt(const Json& json, LoadPrompt* prompt) {
  const auto found = json.find("prompt");
  if (found != json.end() && found->is_string() && !found->get_ref<const std::string&>().empty()) {
    prompt->text = found->get<std::string>();
    return absl::OkStatus();
  }
  const bool is_list = found != json.end() && found->is_array() && !found->empty();
  if (!is_list || !std::all_of(found->begin(), found->end(), [](const Json& id) { return id.is_number_unsigned(); })) {
    return absl::InvalidArgumentError("prompt must be a text or a list of token ids, not empty");
  }
  prompt->ids = found->get<std::vector<int32_t>>();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<LoadPrompt>> parse_custom(std::string_view lines, const DatasetOptions& options) {
  std::vector<LoadPrompt> prompts;
  MOESAIC_RETURN_IF_ERROR(each_line(lines, options.num_prompts, [&](const Json& json) -> absl::Status {
    LoadPrompt prompt{.output_len = options.custom_output_len};
    MOESAIC_RETURN_IF_ERROR(read_prompt(json, &prompt));
    if (json.contains("output_tokens")) MOESAIC_RETURN_IF_ERROR(read_length(json, "output_tokens", &prompt.output_len));
    prompts.push_back(std::move(prompt));
    return absl::OkStatus();
  }));
  return prompts;
}

absl::StatusOr<std::vector<LoadPrompt>> parse_mooncake(std::string_view lines, const DatasetOptions& options) {
  std::vector<LoadPrompt> prompts;
  double first_ms = 0.0;
  MOESAIC_RETURN_IF_ERROR(each_line(lines, options.num_prompts, [&](const Json& json) -> absl::Status {
    LoadPrompt prompt;
    int64_t input_len = 0;
    MOESAIC_RETURN_IF_ERROR(read_length(json, "input_length", &input_len));
    MOESAIC_RETURN_IF_ERROR(read_length(json, "output_length", &prompt.output_len));
    if (!json.contains("timestamp") || !json["timestamp"].is_number()) {
      return absl::InvalidArgumentError("timestamp must be a number of milliseconds");
    }
    const double ms = json["timestamp"].get<double>();
    if (prompts.empty()) first_ms = ms;
    prompt.due_s = std::max((ms - first_ms) * 1e-3 * options.mooncake_slowdown_factor, 0.0);
    const Json hash_ids = json.value("hash_ids", Json::array());
    for (int64_t begin = 0, block = 0; begin < input_len; begin += kMooncakeBlock, ++block) {
      const bool has_hash = hash_ids.is_array() && block < static_cast<int64_t>(hash_ids.size());
      if (has_hash && !hash_ids[block].is_number_integer()) {
        return absl::InvalidArgumentError("hash_ids must be integers");
      }
      // Blocks without a hash are this request's own.
      const Rng rng = has_hash ? stream(options.seed, kBlock, hash_ids[block].get<uint64_t>())
                               : stream(options.seed, kBody, prompts.size() << 20 | block);
      append_ids(rng, std::min(kMooncakeBlock, input_len - begin), options.vocab_size, &prompt.ids);
    }
    prompts.push_back(std::move(prompt));
    return absl::OkStatus();
  }));
  return prompts;
}

namespace {

// A trace of `simulate`, with the same prompts but for the vocabulary. The first request is due at once.
absl::StatusOr<std::vector<LoadPrompt>> load_trace(std::string_view lines, const DatasetOptions& options) {
  const absl::StatusOr<std::vector<TrafficRequest>> traffic = parse_trace(lines, options.num_prompts);
  if (!traffic.ok()) return annotate(traffic.status(), "--dataset-path");
  std::vector<LoadPrompt> prompts;
  for (const TrafficRequest& request : *traffic) {
    prompts.push_back({.ids = prompt_tokens(request, std::ssize(prompts), options.seed, options.vocab_size),
                       .output_len = request.num_output,
                       .due_s = static_cast<double>(request.due_ns - traffic->front().due_ns) * 1e-9});
  }
  return prompts;
}

}  // namespace

absl::StatusOr<std::vector<LoadPrompt>> load_dataset(const DatasetOptions& options) {
  if (options.name == "random") return random_prompts(options);
  if (options.name == "generated-shared-prefix") return shared_prefix_prompts(options);
  if (options.path.empty()) {
    return absl::InvalidArgumentError(str_cat("--dataset-name ", options.name, " needs --dataset-path"));
  }
  MOESAIC_ASSIGN_OR_RETURN(const std::string lines, read_text_file(options.path, kMaxFileBytes));
  if (options.name == "custom") return parse_custom(lines, options);
  return options.name == "trace" ? load_trace(lines, options) : parse_mooncake(lines, options);
}

std::string words_of(const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) {
    if (!text.empty()) text += ' ';
    text += kWords[static_cast<size_t>(id) % std::size(kWords)];
  }
  return text;
}

}  // namespace moesaic
