#include <fmt/format.h>

#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/rng.h"
#include "cli/command.h"
#include "cli/engine_run.h"
#include "cli/generation_defaults.h"
#include "cli/model_host.h"
#include "cli/signals.h"
#include "text/messages.h"

namespace moesaic {
namespace {

constexpr size_t kMaxPromptBytes = 64 << 20;

struct GenerateConfig {
  ModelSettings model{.max_running_requests = 1, .disable_radix_cache = true};
  std::string prompt = "-";
  bool raw = false;
  bool thinking = false;
  int32_t max_tokens = 0;
  float temperature = -1.0f;
  float top_p = -1.0f;
  int32_t top_k = -1;
  int64_t seed = -1;
  bool ignore_eos = false;
};

void declare(ConfigFields& fields, GenerateConfig& config) {
  add_model_path(fields, &config.model.model_path).required();
  fields.add("prompt", &config.prompt).doc("What the user says; - reads it from standard input");
  fields.add("raw", &config.raw).doc("Continues the prompt as it is (after BOS) instead of as a chat message");
  fields.add("thinking", &config.thinking).doc("Asks the chat template for reasoning first");
  fields.add("max-tokens", &config.max_tokens)
      .alias("n")
      .range(0, 1 << 30)
      .unit("tokens")
      .default_text("what the context holds")
      .doc("Longest output");
  fields.add("temperature", &config.temperature)
      .range(0, 100)
      .default_text("generation_config.json's")
      .doc("0 is greedy");
  fields.add("top-p", &config.top_p).range(0, 1).default_text("generation_config.json's").doc("Nucleus");
  fields.add("top-k", &config.top_k).range(0, 1e9).default_text("generation_config.json's").doc("0 is all");
  fields.add("seed", &config.seed).range(0, 9e18).default_text("random").doc("Same seed, same text");
  fields.add("ignore-eos", &config.ignore_eos).doc("Goes on after the end-of-text token");
  add_layout_fields(fields, config.model);
  add_sequence_fields(fields, config.model);
}

absl::StatusOr<std::string> read_prompt(const GenerateConfig& config) {
  if (config.prompt != "-") return config.prompt;
  std::string text;
  for (char byte; text.size() <= kMaxPromptBytes && std::cin.get(byte);) text += byte;
  if (text.size() > kMaxPromptBytes) {
    return absl::InvalidArgumentError(str_cat("prompt: at most ", kMaxPromptBytes, " bytes"));
  }
  return text;
}

absl::StatusOr<std::vector<int32_t>> prompt_ids(const GenerateConfig& config, const ModelHost& host) {
  MOESAIC_ASSIGN_OR_RETURN(const std::string text, read_prompt(config));
  const Tokenizer& tokenizer = host.tokenizer();
  if (!config.raw && host.chat_template() != nullptr) {
    nlohmann::ordered_json variables = {
        {"messages", nlohmann::ordered_json::array({{{"role", "user"}, {"content", text}}})},
        {"add_generation_prompt", true},
        {"thinking", config.thinking}};
    MOESAIC_ASSIGN_OR_RETURN(const std::string rendered, render_messages(*host.chat_template(), std::move(variables)));
    return tokenizer.encode(rendered);
  }
  std::vector<int32_t> ids = tokenizer.encode(text);
  if (tokenizer.bos_id() >= 0) ids.insert(ids.begin(), tokenizer.bos_id());
  return ids;
}

Request make_request(const GenerateConfig& config, const SamplingDefaults& defaults, std::vector<int32_t> ids,
                     int64_t context_length) {
  Request request;
  const int64_t room = std::max<int64_t>(context_length - static_cast<int64_t>(ids.size()), 1);
  request.max_tokens = config.max_tokens > 0 ? config.max_tokens : static_cast<int32_t>(room);
  request.prompt_ids = std::move(ids);
  request.sampling.temperature = config.temperature >= 0 ? config.temperature : defaults.temperature;
  request.sampling.top_p = config.top_p >= 0 ? config.top_p : defaults.top_p;
  request.sampling.top_k = config.top_k >= 0 ? config.top_k : defaults.top_k;
  request.sampling.min_p = defaults.min_p;
  request.sampling.repetition_penalty = defaults.repetition_penalty;
  request.sampling.seed = config.seed >= 0 ? static_cast<uint64_t>(config.seed) : entropy_seed();
  request.ignore_eos = config.ignore_eos;
  request.arrival_ns = real_clock().now_ns();
  return request;
}

// Prefill: prompt tokens until the first token is there. Decode: the tokens after the first.
void print_speed(int32_t num_prompt, int32_t num_output, int64_t begin_ns, int64_t first_ns, int64_t end_ns,
                 const EngineStats& stats) {
  const double prefill_s = static_cast<double>(first_ns - begin_ns) * 1e-9;
  const double decode_s = static_cast<double>(end_ns - first_ns) * 1e-9;
  std::string line = fmt::format("\nprefill {} tokens, {:.1f} tokens/s", num_prompt, num_prompt / prefill_s);
  if (num_output > 1 && decode_s > 0) {
    line += fmt::format("; decode {} tokens, {:.1f} tokens/s", num_output, (num_output - 1) / decode_s);
  }
  if (stats.speculation && stats.speculation->draft_tokens_total > 0) {
    line += fmt::format("; {} of {} guessed tokens were right", stats.speculation->accepted_tokens_total,
                        stats.speculation->draft_tokens_total);
  }
  std::fputs((line + "\n").c_str(), stderr);
}

absl::Status run(GenerateConfig& config) {
  StopSignals signals;
  MOESAIC_ASSIGN_OR_RETURN(const SamplingDefaults defaults, load_sampling_defaults(config.model.model_path));
  MOESAIC_ASSIGN_OR_RETURN(const std::unique_ptr<ModelHost> host, ModelHost::load(config.model, {}));
  MOESAIC_ASSIGN_OR_RETURN(std::vector<int32_t> ids, prompt_ids(config, *host));
  std::vector<Request> requests;
  requests.push_back(make_request(config, defaults, std::move(ids), host->plan().context_length));
  signals.expect_drain();
  const Clock& clock = real_clock();
  const int64_t begin_ns = clock.now_ns();
  int64_t first_ns = 0;
  RequestOutput last;
  MOESAIC_RETURN_IF_ERROR(run_requests(host->engine(), std::move(requests),
                                       {.stop_wanted = [&] { return signals.stop_wanted(); }, .streams = true},
                                       [&](size_t, const RequestOutput& output) {
                                         if (first_ns == 0) first_ns = clock.now_ns();
                                         std::fputs(output.text.c_str(), stdout);
                                         std::fflush(stdout);
                                         last = output;
                                       }));
  std::fputs("\n", stdout);
  if (last.num_output_tokens > 0) {
    print_speed(last.num_prompt_tokens, last.num_output_tokens, begin_ns, first_ns, clock.now_ns(),
                host->engine().stats());
  }
  return absl::OkStatus();
}

}  // namespace

Command generate_command() {
  return make_command<GenerateConfig, declare, run>("generate", "Continues one prompt and streams the text.");
}

}  // namespace moesaic
