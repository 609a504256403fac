#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/rng.h"
#include "cli/command.h"
#include "cli/engine_run.h"
#include "cli/model_host.h"
#include "cli/task_file.h"
#include "cost/model_size.h"
#include "kernels/ops_bench.h"
#include "model/file_map.h"

namespace moesaic {
namespace {

constexpr int64_t kMaxBaselineBytes = 16 << 20;
constexpr double kPeakSeconds = 0.05;

struct BenchConfig {
  ModelSettings model;
  int32_t repetitions = 3;
  bool small = false;
  bool json = false;
  std::string baseline;
  std::string filter;
  std::string tasks;
};

void declare(ConfigFields& fields, BenchConfig& config) {
  add_model_path(fields, &config.model.model_path).required();
  fields.add("repetitions", &config.repetitions).alias("r").range(1, 1000).doc("The best of so many runs counts");
  fields.add("small", &config.small).doc("A few tokens, one run: shows that it works");
  fields.add("tasks", &config.tasks)
      .doc("Task file as for eval: also measures its greedy answers, one stream, without the time of the prompts");
  fields.add("filter", &config.filter).doc("Only figures whose name holds this text");
  fields.add("json", &config.json).doc("One JSON line a figure");
  fields.add("baseline", &config.baseline)
      .doc("JSON lines with the same figures of a peer (name ending like ours): ratio is ours over theirs");
  add_layout_fields(fields, config.model);
  add_engine_fields(fields, config.model);
}

struct Scenario {
  const char* name;
  int num_streams;
  int num_prompt;
  int num_output;  // 1: the prompt is what is measured
};

struct Figure {
  double tokens_per_s = 0.0;
  uint64_t hash = 0;
  SpeculationStats speculation;  // of all repetitions
  double gflops = 0.0;           // counted work a second; 0 where it is not counted
  double fma_peak_gflops = 0.0;  // of all threads, by f32 FMA
};

// Counted floating-point operations of a token: two for each weight that it meets, and attention, absorbed in decode
// and expanded in prefill (half of the prompt on average). A prompt's head is one row and left out.
double flops_per_token(const ModelConfig& config, const Scenario& scenario) {
  const ModelSize size(config);
  const bool is_prefill = scenario.num_output == 1;
  const double moe_layer =
      static_cast<double>(size.moe_layer_without_experts() + config.num_experts_per_tok * size.expert);
  const double dense_layer = static_cast<double>(size.attention + size.layer_norms + size.dense_ffn);
  const double head = is_prefill ? 0.0 : static_cast<double>(config.vocab_size * config.hidden_size);
  const double weights = static_cast<double>(size.num_moe_layers) * moe_layer +
                         static_cast<double>(size.num_dense_layers) * dense_layer + head;
  const double keys = is_prefill ? 0.5 * scenario.num_prompt : scenario.num_prompt + 0.5 * scenario.num_output;
  const int64_t key_width =
      is_prefill ? config.qk_head_dim() + config.v_head_dim : config.latent_dim() + config.kv_lora_rank;
  const auto head_layers = static_cast<double>(config.num_attention_heads * config.num_hidden_layers);
  return 2.0 * (weights + head_layers * keys * static_cast<double>(key_width));
}

// Of a figure's repetitions: how many guesses were right, and how many tokens a sequence got in a step with guesses.
double acceptance(const SpeculationStats& stats) {
  return static_cast<double>(stats.accepted_tokens_total) / static_cast<double>(stats.draft_tokens_total);
}
double accept_length(const SpeculationStats& stats) {
  return 1.0 + static_cast<double>(stats.accepted_tokens_total) / static_cast<double>(stats.drafts_total);
}
SpeculationStats since(const Engine& engine, const SpeculationStats& before) {
  const SpeculationStats now = engine.stats().speculation.value_or(SpeculationStats());
  return {.drafts_total = now.drafts_total - before.drafts_total,
          .draft_tokens_total = now.draft_tokens_total - before.draft_tokens_total,
          .accepted_tokens_total = now.accepted_tokens_total - before.accepted_tokens_total};
}

std::vector<Request> make_requests(const Scenario& scenario, int64_t vocab_size) {
  std::vector<Request> requests(scenario.num_streams);
  for (int stream = 0; stream < scenario.num_streams; ++stream) {
    Rng rng(/*seed=*/1 + stream);
    for (int i = 0; i < scenario.num_prompt; ++i) {
      requests[stream].prompt_ids.push_back(static_cast<int32_t>(rng.below(vocab_size)));
    }
    requests[stream].max_tokens = scenario.num_output;
    requests[stream].ignore_eos = true;
    requests[stream].use_prefix_cache = false;  // every repetition computes its prompt
    requests[stream].sampling.temperature = 0.0f;
  }
  return requests;
}

constexpr uint64_t kFirstHash = 0xcbf29ce484222325ull;  // FNV-1a
void add_to_hash(int32_t id, uint64_t* hash) {
  *hash = (*hash ^ static_cast<uint32_t>(id)) * 0x100000001b3ull;
}

// Prompt tokens a second until the first token; or output tokens after each stream's first a second, from the earliest
// of those on. By the engine's times: with as many threads as CPUs, this one may see tokens late.
absl::StatusOr<Figure> run_once(Engine& engine, const Scenario& scenario, int64_t vocab_size) {
  std::vector<std::vector<int32_t>> outputs(scenario.num_streams);
  int64_t arrival_ns = INT64_MAX, first_ns = INT64_MAX, last_ns = 0, num_after = 0;
  MOESAIC_RETURN_IF_ERROR(run_requests(engine, make_requests(scenario, vocab_size),
                                       {.max_open = scenario.num_streams, .stop_wanted = {}},
                                       [&](size_t index, const RequestOutput& output) {
                                         outputs[index] = output.token_ids;
                                         arrival_ns = std::min(arrival_ns, output.times.arrival_ns);
                                         first_ns = std::min(first_ns, output.times.prompt_done_ns);
                                         last_ns = std::max(last_ns, output.times.output_ns);
                                         num_after += output.num_output_tokens - 1;
                                       }));
  Figure figure{.tokens_per_s = 0.0, .hash = kFirstHash};
  const bool is_prefill = scenario.num_output == 1;
  const int64_t num_prompt = int64_t{scenario.num_streams} * scenario.num_prompt;
  const int64_t ns = is_prefill ? first_ns - arrival_ns : last_ns - first_ns;
  figure.tokens_per_s = static_cast<double>(is_prefill ? num_prompt : num_after) / (static_cast<double>(ns) * 1e-9);
  for (const std::vector<int32_t>& ids : outputs) {
    for (const int32_t id : ids) add_to_hash(id, &figure.hash);
  }
  return figure;
}

// Output tokens after the first of each answer, over their time.
absl::StatusOr<Figure> run_tasks(Engine& engine, const std::vector<Task>& tasks) {
  std::vector<Request> requests = task_requests(tasks, /*max_tokens=*/256);
  for (Request& request : requests) request.use_prefix_cache = false;
  Figure figure{.tokens_per_s = 0.0, .hash = kFirstHash};
  int64_t num_tokens = 0, decode_ns = 0;
  MOESAIC_RETURN_IF_ERROR(run_requests(engine, std::move(requests), {.max_open = 1, .stop_wanted = {}},
                                       [&](size_t, const RequestOutput& output) {
                                         for (const int32_t id : output.token_ids) add_to_hash(id, &figure.hash);
                                         num_tokens += output.num_output_tokens - 1;
                                         decode_ns += output.times.output_ns - output.times.prompt_done_ns;
                                       }));
  figure.tokens_per_s = static_cast<double>(num_tokens) / (static_cast<double>(decode_ns) * 1e-9);
  return figure;
}

struct Baseline {
  std::string name;
  double value = 0.0;
};

// The line whose name ends in ".<name>".
absl::StatusOr<Baseline> find_baseline(const std::string& path, const std::string& name) {
  if (path.empty()) return Baseline();
  MOESAIC_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxBaselineBytes));
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const auto line = nlohmann::json::parse(text.substr(begin, end - begin), nullptr, /*allow_exceptions=*/false);
    begin = end + 1;
    if (!line.is_object() || !line.contains("name") || !line["name"].is_string()) continue;
    const std::string found = line["name"].get<std::string>();
    const bool ends = found.size() > name.size() && found.substr(found.size() - name.size() - 1) == "." + name;
    if (ends && line.contains("value") && line["value"].is_number())
      return Baseline{found, line["value"].get<double>()};
  }
  return absl::NotFoundError(str_cat("--baseline: ", path, " has no line for ", name));
}

void print_figure(const BenchConfig& config, const std::string& name, const Figure& figure, const Baseline& baseline,
                  const std::string& command) {
  const double ratio = baseline.value > 0 ? figure.tokens_per_s / baseline.value : 0.0;
  std::string line;
  if (config.json) {
    nlohmann::ordered_json json = {{"name", name}, {"value", figure.tokens_per_s}, {"unit", "tok/s"}};
    json["ratio"] = ratio > 0 ? nlohmann::ordered_json(ratio) : nlohmann::ordered_json(nullptr);
    json["baseline"] = ratio > 0 ? nlohmann::ordered_json(baseline.name) : nlohmann::ordered_json(nullptr);
    if (figure.speculation.drafts_total > 0) {
      json["acceptance"] = acceptance(figure.speculation);
      json["accept_length"] = accept_length(figure.speculation);
    }
    if (figure.gflops > 0) {
      json["gflops"] = figure.gflops;
      json["of_fma_peak"] = figure.gflops / figure.fma_peak_gflops;
    }
    json["hash"] = fmt::format("{:016x}", figure.hash);
    json["command"] = command;
    line = json.dump();
  } else {
    line = fmt::format("{:<24}{:>10.1f} tok/s  hash {:016x}", name, figure.tokens_per_s, figure.hash);
    if (figure.gflops > 0) {
      line += fmt::format("  {:.0f} GFLOP/s, {:.0f} % of the FMA peak", figure.gflops,
                          100 * figure.gflops / figure.fma_peak_gflops);
    }
    if (ratio > 0) line += fmt::format("  {:.2f} x {}", ratio, baseline.name);
    if (figure.speculation.drafts_total > 0) {
      line += fmt::format("  guesses: {:.0f} % right, {:.2f} tokens a step", 100 * acceptance(figure.speculation),
                          accept_length(figure.speculation));
    }
  }
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

absl::Status run(BenchConfig& config) {
  if (config.model.max_total_tokens == 0) config.model.max_total_tokens = config.small ? 1024 : 4096;
  if (config.model.context_length == 0) config.model.context_length = config.small ? 512 : 2048;
  MOESAIC_ASSIGN_OR_RETURN(const std::unique_ptr<ModelHost> host, ModelHost::load(config.model, {}));
  const int64_t vocab_size = std::min<int64_t>(host->tokenizer().size(), host->config().vocab_size);
  const std::vector<Scenario> full = {{"decode_short", 1, 16, 128},
                                      {"decode_1800", 1, 1800, 64},
                                      {"prefill_1800", 1, 1800, 1},
                                      {"streams_8", 8, 16, 128},
                                      {"streams_16", 16, 16, 128}};
  const std::vector<Scenario> small = {{"decode_short", 1, 16, 8}, {"prefill_128", 1, 128, 1}, {"streams_8", 8, 16, 8}};
  const int num_threads = config.model.num_threads > 0 ? config.model.num_threads : num_cpus();
  const std::string command = str_cat(
      "moesaic bench generate --model ", config.model.model_path, " --threads ", num_threads, " --ep ",
      host->plan().model.layout.ep_size(), " -r ", config.repetitions, config.small ? " --small" : "",
      config.model.speculative_num_steps >= 0 ? str_cat(" --speculative-num-steps ", config.model.speculative_num_steps)
                                              : "",
      config.tasks.empty() ? "" : str_cat(" --tasks ", config.tasks));
  const double peak_gflops = num_threads * measure_fma_peak_gflops(kPeakSeconds);
  const auto measure = [&](const std::string& name, double flops_per_token,
                           const std::function<absl::StatusOr<Figure>()>& run_once) -> absl::Status {
    if (name.find(config.filter) == std::string::npos) return absl::OkStatus();
    MOESAIC_ASSIGN_OR_RETURN(const Baseline baseline, find_baseline(config.baseline, name));
    Figure best;
    const SpeculationStats before = since(host->engine(), {});
    for (int run = 0; run < (config.small ? 1 : config.repetitions); ++run) {
      MOESAIC_ASSIGN_OR_RETURN(const Figure figure, run_once());
      if (best.hash != 0 && best.hash != figure.hash) {
        return absl::InternalError(str_cat(name, ": two runs of the same requests gave different tokens"));
      }
      best = {.tokens_per_s = std::max(best.tokens_per_s, figure.tokens_per_s), .hash = figure.hash, .speculation = {}};
    }
    best.speculation = since(host->engine(), before);
    best.gflops = best.tokens_per_s * flops_per_token * 1e-9;
    best.fma_peak_gflops = peak_gflops;
    print_figure(config, name, best, baseline, command);
    return absl::OkStatus();
  };
  for (const Scenario& scenario : config.small ? small : full) {
    MOESAIC_RETURN_IF_ERROR(measure(str_cat("generate.", scenario.name), flops_per_token(host->config(), scenario),
                                    [&] { return run_once(host->engine(), scenario, vocab_size); }));
  }
  if (config.tasks.empty()) return absl::OkStatus();
  MOESAIC_ASSIGN_OR_RETURN(const TaskFile file, read_tasks(config.tasks, *host, /*fp8_activations=*/false));
  return measure("generate.tasks", /*flops_per_token=*/0.0, [&] { return run_tasks(host->engine(), file.tasks); });
}

}  // namespace

Command bench_generate_command() {
  return make_command<BenchConfig, declare, run>(
      "bench generate", "Measures decode, prefill and parallel streams through the engine, in tokens a second.");
}

}  // namespace moesaic
