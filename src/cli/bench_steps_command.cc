#include <algorithm>
#include <fstream>

#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"
#include "base/thread.h"
#include "cli/command.h"
#include "cli/engine_run.h"
#include "cli/model_host.h"
#include "plan/step_table.h"
#include "sched/placement.h"

namespace moesaic {
namespace {

constexpr int32_t kShortKv = 16;    // cached rows of the sequences that decode in the table
constexpr int32_t kLongKv = 512;    // and where the time of attention is measured
constexpr int64_t kFewTokens = 64;  // prompt chunks that show what cached rows cost
constexpr int64_t kManyTokens = 512;
// Of a step that is not attention: on a busy machine the time of attention may come out as more than all.
constexpr double kLeastShare = 0.1;
constexpr int kHostPrompt = 16;
constexpr int kHostOutput = 64;

struct StepsConfig {
  ModelSettings model;
  int32_t repetitions = 5;
  std::string device;
  std::string out;
};

void declare(ConfigFields& fields, StepsConfig& config) {
  add_model_path(fields, &config.model.model_path);
  fields.add("repetitions", &config.repetitions).alias("r").range(1, 1000).doc("The median of so many steps counts");
  fields.add("device", &config.device).default_text("the CPU's model name").doc("What the table calls the machine");
  fields.add("out", &config.out)
      .default_text("standard output")
      .doc("File for the table, as simulate --steps reads it");
  add_layout_fields(fields, config.model);
  add_engine_fields(fields, config.model);
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "this machine";
}

// What the engine executes passes through; while it is idle, this thread may execute steps of its own.
class TimedExecutor final : public Executor {
 public:
  explicit TimedExecutor(std::unique_ptr<Executor> inner) : inner_(std::move(inner)) {}

  absl::Status execute(const StepPlan& plan, StepLogits* logits) override {
    const int64_t begin_ns = real_clock().now_ns();
    const absl::Status status = inner_->execute(plan, logits);
    int64_t rows = 0;
    for (const GroupPlan& group : plan.groups) {
      for (const PlannedChunk& chunk : group.chunks) rows += chunk.num_logit_rows();
    }
    calls_.push_back({begin_ns, real_clock().now_ns(), rows});
    return status;
  }

  struct Call {
    int64_t begin_ns, end_ns, logit_rows;
  };
  std::vector<Call>& calls() { return calls_; }

 private:
  std::unique_ptr<Executor> inner_;
  std::vector<Call> calls_;
};

double median(std::vector<double> values) {
  MOESAIC_CHECK(!values.empty());
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

class Measurement {
 public:
  Measurement(const StepsConfig& config, ModelHost& host, TimedExecutor& executor)
      : config_(config), host_(host), executor_(executor), options_(host.engine().options()) {}

  absl::StatusOr<StepTable> run() {
    StepTable table{.device = config_.device.empty() ? cpu_name() : config_.device,
                    .model = config_.model.model_path.substr(config_.model.model_path.find_last_of('/') + 1),
                    .layout = host_.plan().model.layout.to_string(),
                    .num_threads = config_.model.num_threads > 0 ? config_.model.num_threads : num_cpus()};
    table.decode_tokens = {0};
    for (int64_t n = 1; n < options_.max_running_requests; n *= 2) table.decode_tokens.push_back(n);
    table.decode_tokens.push_back(options_.max_running_requests);
    table.prefill_tokens = {0};
    // A full step has room for so many prompt tokens beside those that decode.
    const int64_t room = std::max<int64_t>(options_.max_tokens_per_step - options_.max_running_requests, 1);
    const int64_t most = std::min(room, options_.context_length - 1);
    for (int64_t n = 16; n < most; n *= 4) table.prefill_tokens.push_back(n);
    table.prefill_tokens.push_back(most);
    MOESAIC_RETURN_IF_ERROR(measure_attention(&table));
    for (size_t d = 0; d < table.decode_tokens.size(); ++d) {
      for (const int64_t prefill : table.prefill_tokens) {
        const int64_t decode = table.decode_tokens[d];
        double seconds = 0.0;
        MOESAIC_RETURN_IF_ERROR(time_step(decode, kShortKv, prefill, 0, &seconds));
        const double attention = table.decode_pair_s[d] * static_cast<double>(decode * (kShortKv + 1)) +
                                 table.prefill_pair_s * static_cast<double>(attention_pairs(0, prefill));
        table.step_s.push_back(std::max(seconds - attention, kLeastShare * seconds));
      }
    }
    MOESAIC_RETURN_IF_ERROR(measure_host(&table));
    return table;
  }

 private:
  // Median seconds of a step in which every group decodes `decode` sequences with `decode_kv` rows and computes a chunk
  // of `prefill` tokens behind `prefill_kv` rows. What the rows hold does not matter; tokens are random, so that all
  // experts have work.
  absl::Status time_step(int64_t decode, int32_t decode_kv, int64_t prefill, int32_t prefill_kv, double* seconds) {
    *seconds = 0.0;
    if (decode + prefill == 0) return absl::OkStatus();
    std::vector<double> times;
    for (int i = 0; i <= config_.repetitions; ++i) {
      fill(decode, decode_kv, prefill, prefill_kv);
      const int64_t begin_ns = real_clock().now_ns();
      MOESAIC_RETURN_IF_ERROR(executor_.execute(plan_, &logits_));
      if (i > 0) times.push_back(static_cast<double>(real_clock().now_ns() - begin_ns) * 1e-9);  // the first warms up
    }
    executor_.calls().clear();
    *seconds = median(std::move(times));
    return absl::OkStatus();
  }

  void fill(int64_t decode, int32_t decode_kv, int64_t prefill, int32_t prefill_kv) {
    plan_.step_id = --step_id_;  // no step of the scheduler
    plan_.groups.assign(options_.dp_size, {});
    for (GroupPlan& group : plan_.groups) {
      next_block_ = 0;
      for (int64_t i = 0; i < decode; ++i) add_chunk(1, decode_kv, false, &group);
      if (prefill > 0) add_chunk(prefill, prefill_kv, true, &group);
      group.num_decode_tokens = static_cast<int32_t>(decode);
      group.num_prefill_tokens = static_cast<int32_t>(prefill);
    }
  }

  void add_chunk(int64_t count, int32_t kv_begin, bool is_prefill, GroupPlan* group) {
    PlannedChunk& chunk = group->chunks.emplace_back();
    const int64_t vocab = host_.config().vocab_size;
    for (int64_t i = 0; i < count; ++i) chunk.token_ids.push_back(static_cast<int32_t>(rng_.below(vocab)));
    chunk.kv_begin = kv_begin;
    chunk.num_total = chunk.kv_end();
    chunk.is_prefill = is_prefill;
    chunk.samples = true;
    for (int32_t row = 0; row < chunk.kv_end(); row += options_.kv_block_tokens) {
      chunk.block_table.push_back(next_block_++ % options_.num_kv_blocks);
    }
  }

  // Rows of the cache cost time in proportion to the queries that meet them, and in prompts once more for each row.
  absl::Status measure_attention(StepTable* table) {
    const auto long_kv = static_cast<int32_t>(std::min<int64_t>(kLongKv, options_.context_length / 2));
    double near = 0.0, far = 0.0;
    table->decode_pair_s = {0.0};
    for (size_t i = 1; i < table->decode_tokens.size(); ++i) {
      const int64_t rows = table->decode_tokens[i];
      MOESAIC_RETURN_IF_ERROR(time_step(rows, kShortKv, 0, 0, &near));
      MOESAIC_RETURN_IF_ERROR(time_step(rows, long_kv, 0, 0, &far));
      table->decode_pair_s.push_back(std::max(0.0, (far - near) / static_cast<double>(rows * (long_kv - kShortKv))));
    }
    table->decode_pair_s[0] = table->decode_pair_s[1];
    // extra(n) = n * kv * pair + kv * cached, at two n.
    const int64_t many = std::min({kManyTokens, options_.max_tokens_per_step, options_.context_length - long_kv});
    const int64_t few = std::min(kFewTokens, many / 2);
    double extra[2];
    for (const int i : {0, 1}) {
      const int64_t count = i == 0 ? few : many;
      MOESAIC_RETURN_IF_ERROR(time_step(0, 0, count, 0, &near));
      MOESAIC_RETURN_IF_ERROR(time_step(0, 0, count, long_kv, &far));
      extra[i] = (far - near) / long_kv;
    }
    table->prefill_pair_s = std::max(0.0, (extra[1] - extra[0]) / static_cast<double>(many - few));
    table->prefill_cached_s = std::max(0.0, extra[0] - table->prefill_pair_s * static_cast<double>(few));
    return absl::OkStatus();
  }

  // Between two executions of steps that decode: at one and at many sequences.
  absl::Status measure_host(StepTable* table) {
    const int most = std::min(16, options_.max_running_requests);
    double gaps[2];
    for (const int i : {0, 1}) {
      const int num_streams = i == 0 ? 1 : most;
      std::vector<Request> requests(num_streams);
      for (Request& request : requests) {
        for (int token = 0; token < kHostPrompt; ++token) {
          request.prompt_ids.push_back(static_cast<int32_t>(rng_.below(host_.tokenizer().size())));
        }
        request.max_tokens = kHostOutput;
        request.ignore_eos = true;
        request.use_prefix_cache = false;
        request.sampling.temperature = 0.0f;
      }
      MOESAIC_RETURN_IF_ERROR(run_requests(host_.engine(), std::move(requests),
                                           {.max_open = num_streams, .stop_wanted = {}},
                                           [](size_t, const RequestOutput&) {}));
      std::vector<double> times;
      const std::vector<TimedExecutor::Call>& calls = executor_.calls();
      for (size_t call = 1; call < calls.size(); ++call) {
        if (calls[call].logit_rows != num_streams || calls[call - 1].logit_rows != num_streams) continue;
        times.push_back(static_cast<double>(calls[call].begin_ns - calls[call - 1].end_ns) * 1e-9);
      }
      executor_.calls().clear();
      if (times.empty()) return absl::InternalError("no two steps in a row had all streams");
      gaps[i] = median(std::move(times));
    }
    if (most > 1) table->host_logit_row_s = std::max(0.0, (gaps[1] - gaps[0]) / (most - 1));
    table->host_step_s = std::max(0.0, gaps[0] - table->host_logit_row_s);
    return absl::OkStatus();
  }

  const StepsConfig& config_;
  ModelHost& host_;
  TimedExecutor& executor_;
  const EngineOptions& options_;
  Rng rng_{1};
  int64_t step_id_ = 0;
  int32_t next_block_ = 0;
  StepPlan plan_;
  StepLogits logits_;
};

absl::Status run(StepsConfig& config) {
  config.model.speculative_num_steps = 0;
  TimedExecutor* executor = nullptr;
  const WrapExecutor wrap = [&](std::unique_ptr<Executor> inner) {
    auto timed = std::make_unique<TimedExecutor>(std::move(inner));
    executor = timed.get();
    return timed;
  };
  MOESAIC_ASSIGN_OR_RETURN(const std::unique_ptr<ModelHost> host, ModelHost::load(config.model, {}, wrap));
  MOESAIC_ASSIGN_OR_RETURN(const StepTable table, Measurement(config, *host, *executor).run());
  const std::string json = table.to_json();
  if (config.out.empty()) {
    std::fputs(json.c_str(), stdout);
    return absl::OkStatus();
  }
  std::ofstream file(config.out, std::ios::binary);
  file << json;
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError(str_cat("cannot write ", config.out));
}

}  // namespace

Command bench_steps_command() {
  return make_command<StepsConfig, declare, run>(
      "bench steps", "Measures how long a model's steps take on this machine: a table for simulate --steps.");
}

}  // namespace moesaic
