#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/command.h"
#include "cli/load_dataset.h"
#include "cli/load_report.h"
#include "cli/load_run.h"
#include "plan/arrivals.h"

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kProgressNs = 200'000'000;
constexpr int kBarWidth = 30;

struct BenchServeConfig {
  std::string base_url = "http://127.0.0.1:30000";
  std::string endpoint = "/v1/completions";
  std::string model;
  SseClientOptions client;
  DatasetOptions dataset;
  ArrivalOptions arrivals;
  int64_t max_concurrency = 0;
  int64_t num_warmups = 1;
  bool ignore_eos = true;
  double temperature = 0.0;
  std::string goodput;
  std::string percentiles = "90,95,99";
  bool json = false;
  bool save_result = false;
  bool save_detailed = false;
  std::string output_file;
  bool disable_progress = false;
};

void declare_target(ConfigFields& fields, BenchServeConfig& config) {
  fields.add("base-url", &config.base_url).doc("Server, http://HOST[:PORT][/PREFIX]");
  fields.add("endpoint", &config.endpoint).doc("Path; one that holds \"chat\" takes messages, others a prompt");
  fields.add("model", &config.model).default_text("the server's first").doc("Model to ask for");
  fields.add("api-key", &config.client.api_key).doc("Sent as \"Authorization: Bearer KEY\"");
  fields.add("request-timeout-ms", &config.client.request_timeout_ms)
      .range(1, 1e12)
      .unit("ms")
      .doc("Longest life of a request; then it counts as failed");
}

void declare_dataset(ConfigFields& fields, DatasetOptions& dataset) {
  const auto length = [&](const char* name, int64_t* value, const char* doc) {
    fields.add(name, value).range(1, 1 << 24).unit("tokens").doc(doc);
  };
  fields.add("dataset-name", &dataset.name)
      .choices({"random", "generated-shared-prefix", "custom", "mooncake", "trace"})
      .doc("Where prompts come from; the last two read --dataset-path");
  fields.add("dataset-path", &dataset.path)
      .doc(
          "trace: what simulate --trace reads; custom: JSON lines {\"prompt\", \"output_tokens\"}; mooncake: JSON "
          "lines {\"timestamp\", "
          "\"input_length\", \"output_length\", \"hash_ids\"}, sent at their times");
  fields.add("num-prompts", &dataset.num_prompts).range(1, 1e7).doc("Requests; of a file, at most so many");
  fields.add("seed", &dataset.seed).doc("Same seed, same prompts and arrivals");
  fields.add("vocab-size", &dataset.vocab_size).range(2, 1 << 24).doc("Random token ids are drawn below this");
  length("random-input-len", &dataset.random_input_len, "Prompt of data set random");
  length("random-output-len", &dataset.random_output_len, "Output of data set random");
  fields.add("random-range-ratio", &dataset.random_range_ratio)
      .range(0, 1)
      .doc("Lengths are uniform in [len x (1 - ratio), len x (1 + ratio)]");
  fields.add("gsp-num-groups", &dataset.gsp_num_groups).range(1, 1e7).doc("Shared prefixes");
  length("gsp-system-prompt-len", &dataset.gsp_system_prompt_len, "Shared prefix");
  length("gsp-question-len", &dataset.gsp_question_len, "What follows the shared prefix");
  length("gsp-output-len", &dataset.gsp_output_len, "Output with shared prefixes");
  length("custom-output-len", &dataset.custom_output_len, "Output of lines without output_tokens");
  fields.add("mooncake-slowdown-factor", &dataset.mooncake_slowdown_factor)
      .range(0, 1e6)
      .doc("Stretches the times of a trace");
}

void declare_load(ConfigFields& fields, BenchServeConfig& config) {
  add_arrival_fields(fields, &config.arrivals);
  fields.add("max-concurrency", &config.max_concurrency)
      .range(0, 1e6)
      .default_text("no limit")
      .doc("Requests open at once: with an infinite rate a closed loop");
  fields.add("num-warmups", &config.num_warmups)
      .alias("warmup-requests")
      .range(0, 1e4)
      .doc("Requests before the measurement");
  fields.add("ignore-eos", &config.ignore_eos).doc("Asks for outputs of full length");
  fields.add("temperature", &config.temperature).range(0, 100).doc("0 is greedy");
}

void declare_report(ConfigFields& fields, BenchServeConfig& config) {
  add_slo_fields(fields, &config.goodput, &config.percentiles);
  fields.add("json", &config.json).doc("One JSON line with vLLM's names instead of the table");
  fields.add("output-file", &config.output_file).alias("result-filename").doc("Appends the JSON line to this file");
  fields.add("save-result", &config.save_result).doc("As --output-file, with a name made as vllm bench serve does");
  fields.add("save-detailed", &config.save_detailed).doc("The JSON also holds every request's times");
  fields.add("disable-tqdm", &config.disable_progress).doc("No progress on standard error");
}

void declare(ConfigFields& fields, BenchServeConfig& config) {
  declare_target(fields, config);
  declare_dataset(fields, config.dataset);
  declare_load(fields, config);
  declare_report(fields, config);
}

bool is_chat(const BenchServeConfig& config) {
  return config.endpoint.find("chat") != std::string::npos;
}

// One message for all that can be wrong with a single exchange; OK for 200.
absl::Status check(const HttpResult& result, const BenchServeConfig& config, std::string_view what) {
  const std::string where = str_cat(what, " ", config.base_url);
  if (!result.transport.ok()) return annotate(result.transport, where);
  if (result.status == 200) return absl::OkStatus();
  return absl::UnavailableError(str_cat(where, ": HTTP ", result.status, ": ", result.body.substr(0, 300)));
}

absl::Status find_model(SseClient& client, BenchServeConfig& config) {
  if (!config.model.empty()) return absl::OkStatus();
  const HttpResult result = client.get("/v1/models");
  MOESAIC_RETURN_IF_ERROR(check(result, config, "asking for the models of"));
  const Json models = Json::parse(result.body, nullptr, /*allow_exceptions=*/false);
  const bool has_list = models.is_object() && models.contains("data") && models["data"].is_array();
  if (!has_list || models["data"].empty() || !models["data"][0].is_object() || !models["data"][0].contains("id") ||
      !models["data"][0]["id"].is_string()) {
    return absl::UnavailableError("/v1/models lists no model; name one with --model");
  }
  config.model = models["data"][0]["id"].get<std::string>();
  return absl::OkStatus();
}

std::string body_of(const BenchServeConfig& config, const LoadPrompt& prompt) {
  Json body = {{"model", config.model}};
  if (is_chat(config)) {
    body["messages"] = Json::array({{{"role", "user"}, {"content", prompt.text}}});
  } else if (prompt.ids.empty()) {
    body["prompt"] = prompt.text;
  } else {
    body["prompt"] = prompt.ids;
  }
  body["max_tokens"] = prompt.output_len;
  body["temperature"] = config.temperature;
  if (config.ignore_eos) body["ignore_eos"] = true;
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Chats and servers that take no token ids get words instead.
absl::Status choose_prompt_form(SseClient& client, const BenchServeConfig& config, std::vector<LoadPrompt>* prompts) {
  const auto has_ids = [](const LoadPrompt& prompt) { return !prompt.ids.empty(); };
  if (std::none_of(prompts->begin(), prompts->end(), has_ids)) return absl::OkStatus();
  if (!is_chat(config)) {
    const LoadPrompt probe{.ids = {1, 2, 3}, .output_len = 1};
    const HttpResult result = client.post_and_wait(config.endpoint, body_of(config, probe));
    if (result.status != 400 && result.status != 422) return check(result, config, "the first request to");
    log_warn(str_cat("the server takes no token ids; words are sent, one for each token wanted: ",
                     result.body.substr(0, 200)));
  }
  for (LoadPrompt& prompt : *prompts) {
    if (prompt.ids.empty()) continue;
    prompt.text = words_of(prompt.ids);
    prompt.ids.clear();
  }
  return absl::OkStatus();
}

std::vector<LoadRequest> make_requests(const BenchServeConfig& config, const std::vector<LoadPrompt>& prompts) {
  const std::vector<double> times = arrival_times(config.arrivals, static_cast<int64_t>(prompts.size()));
  std::vector<LoadRequest> requests;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const double due_s = prompts[i].due_s >= 0 ? prompts[i].due_s : times[i];
    requests.push_back({.body = body_of(config, prompts[i]), .due_s = due_s});
  }
  std::stable_sort(requests.begin(), requests.end(),
                   [](const LoadRequest& a, const LoadRequest& b) { return a.due_s < b.due_s; });
  return requests;
}

absl::Status warm_up(SseClient& client, const BenchServeConfig& config, const LoadRequest& request) {
  const std::vector<LoadRequest> requests(config.num_warmups, {.body = request.body});
  const LoadResult result = run_load(client, requests, {.endpoint = config.endpoint, .max_concurrency = 1});
  for (const RequestRecord& record : result.records) {
    if (record.ok()) continue;
    return absl::UnavailableError(str_cat("the first request to ", config.base_url, config.endpoint,
                                          " failed: ", record.error_kind, ": ", record.error_message));
  }
  return absl::OkStatus();
}

// One stream is one socket. What the hard limit does not allow shows as failed connections.
void allow_open_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Redraws one line on a terminal; elsewhere prints every tenth.
class Progress {
 public:
  Progress(int64_t total, bool disabled)
      : total_(total), disabled_(disabled), is_terminal_(isatty(STDERR_FILENO) == 1) {}

  void update(int64_t num_done, int64_t num_failed) {
    const int64_t now_ns = real_clock().now_ns();
    const bool last = num_done == total_;
    const int64_t tenth = num_done * 10 / total_;
    if (disabled_ || (is_terminal_ ? !last && now_ns < next_ns_ : tenth == tenth_)) return;
    next_ns_ = now_ns + kProgressNs;
    tenth_ = tenth;
    const auto filled = static_cast<int>(num_done * kBarWidth / total_);
    const double seconds = static_cast<double>(now_ns - begin_ns_) * 1e-9;
    std::string line =
        fmt::format("{:3}% |{:<{}}| {}/{} {:.0f} s, {:.2f} req/s", num_done * 100 / total_, std::string(filled, '#'),
                    kBarWidth, num_done, total_, seconds, seconds > 0 ? static_cast<double>(num_done) / seconds : 0.0);
    if (num_failed > 0) line += fmt::format(", {} failed", num_failed);
    std::fputs((is_terminal_ ? "\r" + line + (last ? "\n" : "") : line + "\n").c_str(), stderr);
  }

 private:
  const int64_t total_;
  const bool disabled_;
  const bool is_terminal_;
  const int64_t begin_ns_ = real_clock().now_ns();
  int64_t next_ns_ = 0;
  int64_t tenth_ = 0;
};

std::string result_file(const BenchServeConfig& config, const LoadSettings& settings) {
  if (!config.output_file.empty() || !config.save_result) return config.output_file;
  const std::string model = settings.model.substr(settings.model.rfind('/') + 1);
  const std::string limit = config.max_concurrency > 0 ? fmt::format("-concurrency{}", config.max_concurrency) : "";
  return fmt::format("{}-{}qps{}-{}-{:%Y%m%d-%H%M%S}.json", settings.backend, settings.request_rate, limit, model,
                     fmt::gmtime(static_cast<std::time_t>(settings.date_unix_s)));
}

absl::Status append_line(const std::string& path, const std::string& line) {
  std::FILE* file = std::fopen(path.c_str(), "a");
  const bool written = file != nullptr && std::fputs((line + "\n").c_str(), file) >= 0;
  const bool closed = file != nullptr && std::fclose(file) == 0;
  return written && closed ? absl::OkStatus() : absl::PermissionDeniedError(str_cat("cannot write ", path));
}

absl::Status run(BenchServeConfig& config) {
  MOESAIC_ASSIGN_OR_RETURN(const Slo slo, parse_slo(config.goodput));
  MOESAIC_ASSIGN_OR_RETURN(const std::vector<double> percents, parse_percents(config.percentiles));
  MOESAIC_ASSIGN_OR_RETURN(std::vector<LoadPrompt> prompts, load_dataset(config.dataset));
  config.arrivals.seed = config.dataset.seed;
  config.client.idle_timeout_ms = config.client.request_timeout_ms;
  allow_open_files();
  MOESAIC_ASSIGN_OR_RETURN(const auto client, SseClient::connect(config.base_url, config.client));
  MOESAIC_RETURN_IF_ERROR(find_model(*client, config));
  MOESAIC_RETURN_IF_ERROR(choose_prompt_form(*client, config, &prompts));
  const std::vector<LoadRequest> requests = make_requests(config, prompts);
  prompts.clear();
  MOESAIC_RETURN_IF_ERROR(warm_up(*client, config, requests.front()));
  Progress progress(static_cast<int64_t>(requests.size()), config.disable_progress);
  const LoadResult result =
      run_load(*client, requests,
               {.endpoint = config.endpoint,
                .max_concurrency = config.max_concurrency,
                .progress = [&](int64_t num_done, int64_t num_failed) { progress.update(num_done, num_failed); }});
  const LoadSettings settings = {.backend = is_chat(config) ? "openai-chat" : "openai",
                                 .model = config.model,
                                 .request_rate = config.arrivals.request_rate,
                                 .burstiness = config.arrivals.burstiness,
                                 .max_concurrency = config.max_concurrency,
                                 .slo = slo,
                                 .percents = percents,
                                 .date_unix_s = real_clock().unix_s()};
  const LoadReport report = make_report(settings, result.records, result.duration_s);
  const std::span<const RequestRecord> details =
      config.save_detailed ? std::span<const RequestRecord>(result.records) : std::span<const RequestRecord>();
  const std::string json = report_json(report, details);
  std::fputs((config.json ? json + "\n" : report_table(report)).c_str(), stdout);
  if (const std::string path = result_file(config, settings); !path.empty()) {
    MOESAIC_RETURN_IF_ERROR(append_line(path, json));
  }
  if (report.completed > 0) return absl::OkStatus();
  const auto& [kind, errors] = *report.errors.begin();
  return absl::UnavailableError(str_cat("every request failed; the first: ", kind, ": ", errors.first));
}

}  // namespace

Command bench_serve_command() {
  return make_command<BenchServeConfig, declare, run>(
      "bench serve", "Measures an OpenAI-compatible server under load: latencies, throughput, goodput.");
}

}  // namespace moesaic
