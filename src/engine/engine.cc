#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/prefetch.h"
#include "base/rng.h"
#include "base/seqlock.h"
#include "base/thread.h"
#include "engine/inbox.h"
#include "engine/open_request.h"
#include "engine/request_check.h"
#include "engine/speculator.h"
#include "engine/step_sampler.h"
#include "engine/step_trace.h"
#include "sched/scheduler.h"

namespace moesaic {
namespace {

SchedulerOptions scheduler_options(const EngineOptions& options) {
  return {.dp_size = options.dp_size,
          .num_kv_blocks = options.num_kv_blocks,
          .kv_block_tokens = options.kv_block_tokens,
          .max_running_requests = options.max_running_requests,
          .max_tokens_per_step = options.max_tokens_per_step,
          .max_logit_rows_per_step = options.max_logit_rows_per_step,
          .prefix_cache = options.prefix_cache,
          .prefix_index = {.hash_seed = entropy_seed()},
          .mixed_steps = options.mixed_steps,
          .prefill_delay_steps = options.prefill_delay_steps,
          .priority_aging_steps = options.priority_aging_steps};
}

}  // namespace

struct Engine::Impl {
  Impl(EngineOptions options_in, std::unique_ptr<Executor> executor_in, const Tokenizer* tokenizer_in,
       const Clock& clock_in)
      : options(std::move(options_in)),
        executor(std::move(executor_in)),
        tokenizer(tokenizer_in),
        clock(clock_in),
        inbox(options.max_queued_requests, options.max_prompt_tokens),
        trace(clock),
        scheduler(scheduler_options(options)),
        sampler(options, scheduler, trace) {
    if (options.hooks.faults.any()) {
      executor = std::make_unique<FaultyExecutor>(std::move(executor), options.hooks.faults);
    }
    if (tokenizer != nullptr) matchers.emplace(*tokenizer, options.vocab_size);
    prepared = make_speculator(options, *executor, clock, &speculator);  // before the thread that owns the executor
    publish();
    thread = Thread("engine", [this] { run(); });
  }

  // Engine thread.
  void run();
  void start(Inbox::Submission submission);
  void end(RequestId id, FinishReason reason, const absl::Status& error);
  void end_all(FinishReason reason, const absl::Status& error);
  absl::Status step();
  void deliver();
  void die(const absl::Status& error);
  void publish(int num_ending = 0);

  const EngineOptions options;
  std::unique_ptr<Executor> executor;
  const Tokenizer* const tokenizer;
  const Clock& clock;
  Inbox inbox;
  StepTrace trace;
  std::atomic<bool> healthy{true};
  SeqLock<EngineStats> stats;  // written by each step

  // The engine thread's own.
  Scheduler scheduler;
  StepSampler sampler;
  std::optional<GrammarMatchers> matchers;  // with a tokenizer
  std::unordered_map<RequestId, OpenRequest> open_requests;
  std::vector<OpenRequest*> to_deliver;
  std::optional<Speculator> speculator;
  absl::Status prepared;
  Inbox::Batch batch;
  StepLogits logits;
  int64_t num_prompt_tokens = 0;
  int64_t num_finished = 0;

  Thread thread;
};

void Engine::Impl::run() {
  absl::Status status = prepared;
  while (status.ok()) {
    inbox.take(/*wait=*/!scheduler.has_work(), &batch);
    for (Inbox::Submission& submission : batch.submissions) start(std::move(submission));
    if (batch.stop) break;
    for (const RequestId id : batch.aborts) end(id, FinishReason::kAbort, absl::OkStatus());
    deliver();
    if (scheduler.has_work()) status = step();
  }
  if (!status.ok()) return die(status);
  end_all(FinishReason::kAbort, absl::OkStatus());
}

void Engine::Impl::start(Inbox::Submission submission) {
  const RequestId id = submission.request.id;
  const auto opened =
      open_requests.try_emplace(id, submission.request, std::move(submission.sink), tokenizer, options.eos_token_ids,
                                submission.queued_ns, matchers ? &*matchers : nullptr);
  submission.request.context = &opened.first->second;
  scheduler.add(std::move(submission.request));
}

void Engine::Impl::end(RequestId id, FinishReason reason, const absl::Status& error) {
  const auto found = open_requests.find(id);
  if (found == open_requests.end()) return;
  scheduler.finish(id);
  found->second.finish(reason, error);
  to_deliver.push_back(&found->second);
}

void Engine::Impl::end_all(FinishReason reason, const absl::Status& error) {
  for (auto& [id, open_request] : open_requests) end(id, reason, error);
  deliver();
}

absl::Status Engine::Impl::step() {
  const int64_t begin_ns = clock.now_ns();
  trace.begin_step(begin_ns);
  const StepPlan& plan = scheduler.plan(begin_ns);
  trace.end_phase(StepTrace::Phase::kPlan);
  for (const FailedRequest& failed : scheduler.failures()) end(failed.request_id, FinishReason::kError, failed.error);
  if (!plan.empty()) {
    const absl::Status status = executor->execute(plan, &logits);
    if (!status.ok()) {
      scheduler.cancel_step();
      return annotate(status, str_cat("step ", plan.step_id, " failed"));
    }
    trace.end_phase(StepTrace::Phase::kForward);
    sampler.sample(plan, logits, begin_ns, speculator ? &*speculator : nullptr, &to_deliver);
    trace.end_phase(StepTrace::Phase::kSample);
    const absl::Status drafted = speculator ? speculator->draft(plan, *executor) : absl::OkStatus();
    trace.end_phase(StepTrace::Phase::kDraft);
    scheduler.apply(sampler.sampled());
    if (!drafted.ok()) return annotate(drafted, str_cat("step ", plan.step_id, " failed"));
    if (speculator) speculator->hand_over(scheduler);
  }
  deliver();
  if (!plan.empty()) {
    trace.end_phase(StepTrace::Phase::kDeliver);
    trace.end_step(plan);
  }
  return absl::OkStatus();
}

// Reports to the sinks, after the scheduler's state and the figures are those that the sinks may look at.
void Engine::Impl::deliver() {
  int num_ending = 0;
  for (const OpenRequest* open_request : to_deliver) {
    if (!open_request->finished()) continue;
    ++num_ending;
    num_prompt_tokens += open_request->num_prompt_tokens();
  }
  num_finished += num_ending;
  publish(num_ending);
  if (to_deliver.empty()) return;
  const int64_t now_ns = clock.now_ns();
  for (size_t i = 0; i < to_deliver.size(); ++i) {
    if (i + kPrefetchDistance < to_deliver.size()) prefetch(to_deliver[i + kPrefetchDistance], sizeof(OpenRequest));
    OpenRequest* open_request = to_deliver[i];
    const RequestId id = open_request->id();
    const bool finished = open_request->finished();
    open_request->stamp(now_ns);
    // Before the sink: whoever it wakes may ask for the trace.
    if (open_request->times().prompt_done_ns == now_ns) trace.first_token(id, open_request->times());
    if (finished) {
      trace.ended(id, open_request->times(), open_request->num_output_tokens(), open_request->finish_reason());
    }
    open_request->deliver();
    if (!finished) continue;
    open_requests.erase(id);
    inbox.ended(id);
  }
  to_deliver.clear();
}

void Engine::Impl::die(const absl::Status& error) {
  log_error(str_cat("the engine stops: ", error.message()));
  healthy.store(false);
  inbox.close(absl::UnavailableError(str_cat("the engine has stopped: ", error.message())));
  deliver();  // what the failed step has brought
  inbox.take(/*wait=*/false, &batch);
  for (Inbox::Submission& submission : batch.submissions) start(std::move(submission));
  end_all(FinishReason::kError, error);
}

// num_ending: open requests that are finished, and whose sinks will be told so.
void Engine::Impl::publish(int num_ending) {
  EngineStats now{.num_running = scheduler.num_running(),
                  .num_queued = scheduler.num_waiting(),
                  .kv_blocks_total = options.num_kv_blocks * options.dp_size,
                  .prompt_tokens_total = num_prompt_tokens,
                  .output_tokens_total = sampler.num_output_tokens(),
                  .requests_finished_total = num_finished,
                  .preemptions_total = scheduler.num_preemptions(),
                  .steps_total = scheduler.num_steps()};
  for (int group = 0; group < options.dp_size; ++group) {
    now.kv_blocks_free += scheduler.pool(group).num_free();
    now.kv_blocks_cached += scheduler.pool(group).num_cached();
  }
  now.kv_blocks_used = now.kv_blocks_total - now.kv_blocks_free - now.kv_blocks_cached;
  if (options.max_draft_depth > 0) now.speculation = speculator ? speculator->stats() : SpeculationStats();
  stats.store(now);
  inbox.set_num_past_queue(now.num_running + num_ending);
}

Engine::Engine(EngineOptions options, std::unique_ptr<Executor> executor, const Tokenizer* tokenizer,
               const Clock& clock)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(executor), tokenizer, clock)) {}

Engine::~Engine() {
  impl_->inbox.close(absl::UnavailableError("the engine is stopping"));
  impl_->inbox.stop();
  impl_->thread.join();
}

absl::Status Engine::submit(Request request, OutputSink sink) {
  MOESAIC_RETURN_IF_ERROR(check_request(request, impl_->options, impl_->tokenizer != nullptr));
  const int64_t now_ns = impl_->clock.now_ns();
  if (request.arrival_ns == 0) request.arrival_ns = now_ns;
  if (impl_->options.queue_timeout_ms > 0) {
    request.queue_deadline_ns =
        std::min(request.queue_deadline_ns, request.arrival_ns + impl_->options.queue_timeout_ms * 1'000'000);
  }
  return impl_->inbox.submit(std::move(request), std::move(sink), now_ns);
}

void Engine::abort(RequestId id) {
  impl_->inbox.abort(id);
}

void Engine::drain(int64_t timeout_ms) {
  impl_->inbox.close(absl::UnavailableError("the engine is draining and takes no new requests"));
  if (impl_->inbox.wait_until_empty(timeout_ms)) return;
  impl_->inbox.abort_all();
  constexpr int64_t kAbortTimeoutMs = 60'000;  // above any deadline inside a step
  if (!impl_->inbox.wait_until_empty(kAbortTimeoutMs)) log_warn("a step did not end while the engine was draining");
}

absl::Status Engine::start_profile() {
  return impl_->trace.start();
}

absl::StatusOr<std::string> Engine::stop_profile() {
  return impl_->trace.stop();
}

EngineStats Engine::stats() const {
  return impl_->stats.load();
}

absl::Status Engine::check_at_rest() const {
  const int num_open = impl_->inbox.num_open();
  const EngineStats now = stats();
  if (num_open == 0 && now.num_running == 0 && now.num_queued == 0 &&
      now.kv_blocks_free + now.kv_blocks_cached == now.kv_blocks_total) {
    return absl::OkStatus();
  }
  return absl::InternalError(str_cat("not at rest: ", num_open, " open requests, ", now.num_running, " running, ",
                                     now.num_queued, " queued; KV blocks: ", now.kv_blocks_free, " free + ",
                                     now.kv_blocks_cached, " cached of ", now.kv_blocks_total));
}

bool Engine::healthy() const {
  return impl_->healthy.load();
}

const EngineOptions& Engine::options() const {
  return impl_->options;
}

}  // namespace moesaic
