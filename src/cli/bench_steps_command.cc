#include <algorithm>
#include <fstream>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "base/rng.h"
#include "base/thread.h"
#include "cli/command.h"
#include "cli/engine_run.h"
#include "cli/model_host.h"
#include "cli/report_file.h"
#include "engine/step_measure.h"

namespace moesaic {
namespace {

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

// What the engine executes passes through; it sees no draft module. While it is idle, this thread may use inner().
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
  Executor& inner() { return *inner_; }

 private:
  std::unique_ptr<Executor> inner_;
  std::vector<Call> calls_;
};

// Seconds between two executions of steps in which `num_streams` sequences decode.
absl::StatusOr<double> host_seconds(ModelHost& host, TimedExecutor& executor, int num_streams) {
  Rng rng(1);
  std::vector<Request> requests(num_streams);
  for (Request& request : requests) {
    for (int token = 0; token < kHostPrompt; ++token) {
      request.prompt_ids.push_back(static_cast<int32_t>(rng.below(host.tokenizer().size())));
    }
    request.max_tokens = kHostOutput;
    request.ignore_eos = true;
    request.use_prefix_cache = false;
    request.sampling.temperature = 0.0f;
  }
  MOESAIC_RETURN_IF_ERROR(run_requests(host.engine(), std::move(requests), {.max_open = num_streams, .stop_wanted = {}},
                                       [](size_t, const RequestOutput&) {}));
  std::vector<double> times;
  const std::vector<TimedExecutor::Call> calls = std::exchange(executor.calls(), {});
  for (size_t call = 1; call < calls.size(); ++call) {
    if (calls[call].logit_rows != num_streams || calls[call - 1].logit_rows != num_streams) continue;
    times.push_back(static_cast<double>(calls[call].begin_ns - calls[call - 1].end_ns) * 1e-9);
  }
  if (times.empty()) return absl::InternalError("no two steps in a row had all streams");
  std::nth_element(times.begin(), times.begin() + std::ssize(times) / 2, times.end());
  return times[times.size() / 2];
}

absl::StatusOr<StepTable> measure(const StepsConfig& config, ModelHost& host, TimedExecutor& executor) {
  const EngineOptions& engine = host.engine().options();
  constexpr int64_t kNoBound = std::numeric_limits<int64_t>::max();
  const StepMeasureOptions options{
      .prompts = true, .max_decode_tokens = kNoBound, .repetitions = config.repetitions, .budget_ns = kNoBound};
  MOESAIC_ASSIGN_OR_RETURN(StepTable table, measure_steps(executor.inner(), engine, options, real_clock()));
  table.device = config.device.empty() ? cpu_name() : config.device;
  table.model = config.model.model_path.substr(config.model.model_path.find_last_of('/') + 1);
  table.layout = host.plan().model.layout.to_string();
  table.num_threads = config.model.num_threads > 0 ? config.model.num_threads : num_cpus();
  const int most = std::min(16, engine.max_running_requests);
  MOESAIC_ASSIGN_OR_RETURN(const double of_one, host_seconds(host, executor, 1));
  MOESAIC_ASSIGN_OR_RETURN(const double of_most, host_seconds(host, executor, most));
  if (most > 1) table.host_logit_row_s = std::max(0.0, (of_most - of_one) / (most - 1));
  table.host_step_s = std::max(0.0, of_one - table.host_logit_row_s);
  return table;
}

absl::Status run(StepsConfig& config) {
  TimedExecutor* executor = nullptr;
  const WrapExecutor wrap = [&](std::unique_ptr<Executor> inner) {
    auto timed = std::make_unique<TimedExecutor>(std::move(inner));
    executor = timed.get();
    return timed;
  };
  MOESAIC_ASSIGN_OR_RETURN(const std::unique_ptr<ModelHost> host, ModelHost::load(config.model, {}, wrap));
  MOESAIC_ASSIGN_OR_RETURN(const StepTable table, measure(config, *host, *executor));
  const std::string json = table.to_json() + "\n";
  if (config.out.empty()) std::fputs(json.c_str(), stdout);
  return write_text(json, config.out);
}

}  // namespace

Command bench_steps_command() {
  return make_command<StepsConfig, declare, run>(
      "bench steps", "Measures how long a model's steps take on this machine: a table for simulate --steps.");
}

}  // namespace moesaic
