#include "plan/simulator.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/bounded_queue.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"
#include "plan/sim_executor.h"

namespace moesaic {
namespace {

constexpr int64_t kOriginNs = 1'000'000'000;  // of virtual time: 0 means "not yet" in RequestTimes
constexpr int64_t kDonePollMs = 1'000;
constexpr int64_t kDrainMs = 60'000;

EngineOptions engine_options(const SimOptions& options, const StepTimer& timer) {
  EngineOptions engine = options.engine;
  engine.step_table = timer.table();
  engine.vocab_size = SimExecutor::kVocabSize;
  engine.eos_token_ids.clear();
  engine.hooks = {};
  return engine;
}

// One run. But for run(), everything happens on the engine thread: inside a step's execution or a sink.
class Simulation {
 public:
  Simulation(const SimOptions& options, std::span<const TrafficRequest> traffic, const StepTimer& timer)
      : options_(options), traffic_(traffic), done_(1) {
    clock_.advance_ns(kOriginNs);
    auto executor = std::make_unique<SimExecutor>(
        timer, options.engine.max_draft_depth,
        SimExecutor::Hooks{.advance = [this](int64_t duration_ns) { advance(duration_ns); },
                           .on_step = [this](const StepWork& work, int64_t ns) { record_step(work, ns); }});
    engine_ =
        std::make_unique<Engine>(engine_options(options, timer), std::move(executor), /*tokenizer=*/nullptr, clock_);
    // Measuring what steps take may have taken virtual time.
    start_ns_ = clock_.now_ns();
    result_.records.resize(traffic.size());
  }

  absl::StatusOr<SimResult> run() {
    if (options_.record_trace) MOESAIC_RETURN_IF_ERROR(engine_->start_profile());
    // The first request that is taken starts the engine thread, which takes over from here.
    bool started = false;
    while (!started && next_ < traffic_.size()) started = submit_next();
    if (started) MOESAIC_RETURN_IF_ERROR(wait_until_done());
    if (!started) result_.stats = engine_->stats();  // all were refused
    if (options_.record_trace) MOESAIC_RETURN_IF_ERROR(take_trace());
    engine_->drain(kDrainMs);  // the engine thread has left the last sink
    MOESAIC_RETURN_IF_ERROR(engine_->check_at_rest());
    result_.duration_s = static_cast<double>(last_end_ns_ - result_.records[0].start_ns) * 1e-9;
    return std::move(result_);
  }

 private:
  absl::Status wait_until_done() {
    while (!done_.pop_for(kDonePollMs)) {
      if (!engine_->healthy()) return absl::InternalError("the engine is dead; the log says why");
    }
    return absl::OkStatus();
  }

  // The last sink is called inside the last step. One more request makes sure that this step has ended and is in the
  // timeline; the timeline is closed as soon as the request's own step executes.
  absl::Status take_trace() {
    takes_trace_ = true;
    Request request;
    request.id = traffic_.size();
    request.prompt_ids = {0};
    request.max_tokens = 1;
    MOESAIC_RETURN_IF_ERROR(engine_->submit(std::move(request), [this](const RequestOutput&) { finish(); }));
    MOESAIC_RETURN_IF_ERROR(wait_until_done());
    return trace_status_;
  }

  void finish() {
    const bool pushed = done_.try_push(true);
    MOESAIC_CHECK(pushed);
  }

  int64_t now_ns() const { return clock_.now_ns() - start_ns_; }
  void set_now(int64_t ns) {
    if (ns > now_ns()) clock_.advance_ns(ns - now_ns());
  }
  bool may_submit() const {
    return next_ < traffic_.size() && (options_.max_concurrency == 0 || num_open_ < options_.max_concurrency);
  }

  void advance(int64_t duration_ns) {
    const int64_t end_ns = now_ns() + duration_ns;
    while (engine_ && may_submit() && traffic_[next_].due_ns <= end_ns) {
      set_now(traffic_[next_].due_ns);
      submit_next();
    }
    set_now(end_ns);
  }

  // False if the engine refuses it. After a success the engine thread may be at work: nothing is touched any more.
  bool submit_next() {
    const size_t index = next_++;
    const TrafficRequest& from = traffic_[index];
    set_now(from.due_ns);
    result_.records[index] = {.start_ns = now_ns(), .num_input = from.num_input};
    ++num_open_;
    Request request = sim_request(options_, from, index);
    request.arrival_ns = clock_.now_ns();
    const absl::Status status =
        engine_->submit(std::move(request), [this, index](const RequestOutput& output) { on_output(index, output); });
    if (status.ok()) return true;
    on_end(index, status);
    return false;
  }

  void on_output(size_t index, const RequestOutput& output) {
    const int64_t at_ns = output.times.output_ns - start_ns_;
    const bool is_first = output.num_output_tokens > 0 && output.num_output_tokens == std::ssize(output.token_ids);
    if (is_first) result_.records[index].first_ns = at_ns;
    if (output.finish_reason == FinishReason::kNone) return;
    SimRecord& record = result_.records[index];
    record.last_ns = at_ns;
    record.num_output = output.num_output_tokens;
    record.num_cached = output.num_cached_tokens;
    on_end(index, output.error);
    // The next ones: those that waited for a place, and if nobody is left, whoever comes first.
    while (may_submit() && (traffic_[next_].due_ns <= now_ns() || num_open_ == 0)) submit_next();
    if (num_ended_ < traffic_.size()) return;
    result_.stats = engine_->stats();
    finish();
  }

  void on_end(size_t index, const absl::Status& error) {
    --num_open_;
    ++num_ended_;
    last_end_ns_ = std::max(last_end_ns_, now_ns());
    if (!error.ok()) {
      result_.records[index].num_output = 0;
      ++result_.errors[std::string(error.message().data(), error.message().size())];
    }
    if (options_.progress) options_.progress(static_cast<int64_t>(num_ended_), static_cast<int64_t>(traffic_.size()));
  }

  void record_step(const StepWork& work, int64_t duration_ns) {
    if (!engine_) return;  // the engine measures its steps
    if (takes_trace_) {
      absl::StatusOr<std::string> json = engine_->stop_profile();
      trace_status_ = json.status();
      if (json.ok()) result_.trace_json = *std::move(json);
      return;
    }
    SimTotals& totals = result_.totals;
    SimStep step{.begin_ns = now_ns(), .duration_ns = duration_ns};
    int64_t tokens = 0, most_tokens = 0, rows = 0, most_rows = 0;
    for (const GroupWork& group : work.groups) {
      step.num_running += static_cast<double>(group.num_decode_seqs + group.num_prefill_seqs);
      step.decode_tokens += static_cast<double>(group.num_decode_tokens);
      step.prefill_tokens += static_cast<double>(group.num_prefill_tokens);
      totals.decode_tokens += group.num_decode_tokens;
      totals.prefill_tokens += group.num_prefill_tokens;
      tokens += group.num_tokens();
      most_tokens = std::max(most_tokens, group.num_tokens());
      const int64_t group_rows = group.decode_kv_tokens + group.prefill_kv_tokens;
      rows += group_rows;
      most_rows = std::max(most_rows, group_rows);
    }
    const auto num_groups = static_cast<double>(work.groups.size());
    const EngineStats stats = engine_->stats();  // after the step before
    step.num_queued = stats.num_queued;
    step.kv_use = static_cast<double>(stats.kv_blocks_used) / stats.kv_blocks_total;
    step.token_balancedness = static_cast<double>(tokens) / (num_groups * static_cast<double>(most_tokens));
    result_.timeline.add(step);
    ++totals.num_steps;
    totals.busy_s += static_cast<double>(duration_ns) * 1e-9;
    totals.mean_step_tokens += static_cast<double>(tokens) / num_groups;
    totals.max_step_tokens += static_cast<double>(most_tokens);
    totals.mean_kv_rows += static_cast<double>(rows) / num_groups;
    totals.max_kv_rows += static_cast<double>(most_rows);
    totals.max_kv_use = std::max(totals.max_kv_use, step.kv_use);
    totals.max_queued = std::max(totals.max_queued, step.num_queued);
  }

  const SimOptions& options_;
  const std::span<const TrafficRequest> traffic_;
  ManualClock clock_;
  int64_t start_ns_ = 0;
  size_t next_ = 0;
  int64_t num_open_ = 0;
  size_t num_ended_ = 0;
  int64_t last_end_ns_ = 0;
  bool takes_trace_ = false;
  absl::Status trace_status_;
  SimResult result_;
  BoundedQueue<bool> done_;
  std::unique_ptr<Engine> engine_;  // last: its thread uses all of the above
};

}  // namespace

Request sim_request(const SimOptions& options, const TrafficRequest& from, size_t index) {
  Request request;
  request.id = index;
  request.prompt_ids = prompt_tokens(from, static_cast<int64_t>(index), options.seed, SimExecutor::kVocabSize);
  request.max_tokens = from.num_output;
  request.ignore_eos = true;
  request.sampling.temperature = 0.0f;
  request.sampling.seed = Rng(options.seed, index).next_u64();
  return request;
}

absl::StatusOr<SimResult> simulate(const SimOptions& options, std::span<const TrafficRequest> traffic,
                                   const StepTimer& timer) {
  if (traffic.empty()) return absl::InvalidArgumentError("there are no requests to simulate");
  if (options.engine.max_draft_depth > 0 && options.engine.synthetic_acceptance < 0) {
    return absl::InvalidArgumentError(
        "a simulation cannot know how many guesses are right: give --synthetic-acceptance (0 to 1), or "
        "--speculative-num-steps 0");
  }
  if (options.engine.max_draft_depth > 0 && timer.table() && !timer.table()->has_draft()) {
    return absl::InvalidArgumentError(
        "the table of step times has none of a draft module: measure it with one, or give --speculative-num-steps 0");
  }
  return Simulation(options, traffic, timer).run();
}

}  // namespace moesaic
