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
#include "base/thread.h"
#include "engine/inbox.h"
#include "engine/open_request.h"
#include "engine/request_check.h"
#include "engine/sampler.h"
#include "engine/speculator.h"
#include "engine/step_measure.h"
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

// start() has put it there. Looking up the id would cost two cache misses a token.
OpenRequest& open_request_of(const Sequence& sequence) {
  return *static_cast<OpenRequest*>(sequence.request.context);
}

// Written by the engine thread once a step, read by anyone.
struct SharedStats {
  std::atomic<int> num_running{0};
  std::atomic<int> num_queued{0};
  std::atomic<int> kv_blocks_free{0};
  std::atomic<int> kv_blocks_cached{0};
  std::atomic<int64_t> prompt_tokens{0};
  std::atomic<int64_t> output_tokens{0};
  std::atomic<int64_t> requests_finished{0};
  std::atomic<int64_t> preemptions{0};
  std::atomic<int64_t> steps{0};
  std::atomic<int64_t> drafts{0};
  std::atomic<int64_t> draft_tokens{0};
  std::atomic<int64_t> accepted_draft_tokens{0};
};

}  // namespace

struct Engine::Impl {
  Impl(EngineOptions options_in, std::unique_ptr<Executor> executor_in, const Tokenizer* tokenizer_in,
       const Clock& clock_in)
      : options(std::move(options_in)),
        executor(std::move(executor_in)),
        tokenizer(tokenizer_in),
        clock(clock_in),
        inbox(options.max_queued_requests),
        trace(clock),
        scheduler(scheduler_options(options)),
        sampler(options.eos_token_ids, options.hooks.script) {
    if (options.hooks.faults.any()) {
      executor = std::make_unique<FaultyExecutor>(std::move(executor), options.hooks.faults);
    }
    if (tokenizer != nullptr) matchers.emplace(*tokenizer, options.vocab_size);
    prepared = prepare_speculation();
    publish();
    thread = Thread("engine", [this] { run(); });
  }

  // Before the engine's thread, which then owns the executor.
  absl::Status prepare_speculation();
  // Engine thread.
  void run();
  void start(Inbox::Submission submission);
  void end(RequestId id, FinishReason reason, const absl::Status& error);
  void end_all(FinishReason reason, const absl::Status& error);
  absl::Status step();
  void take_group(int group, const GroupPlan& plan, std::span<float> logits);
  std::span<const int32_t> take_chunk(const Sequence& sequence, const PlannedChunk& chunk, std::span<float> rows);
  int32_t sample_row(const Sequence& sequence, OpenRequest& open_request, std::span<const int32_t> accepted,
                     std::span<float> row);
  bool is_right(const Request& request, int32_t draft, int32_t position, int32_t* id) const;
  void collect_prompt_logprobs(const PlannedChunk& chunk, std::span<float> rows, const Request& request,
                               OpenRequest* open_request);
  void deliver();
  void die(const absl::Status& error);
  void publish(int num_ending = 0);

  const EngineOptions options;
  std::unique_ptr<Executor> executor;
  const Tokenizer* const tokenizer;
  const Clock& clock;
  Inbox inbox;
  StepTrace trace;
  SharedStats shared;
  std::atomic<bool> healthy{true};

  // The engine thread's own.
  Scheduler scheduler;
  Sampler sampler;
  std::optional<GrammarMatchers> matchers;  // with a tokenizer
  std::unordered_map<RequestId, OpenRequest> open_requests;
  std::vector<OpenRequest*> to_deliver;
  std::vector<SampledTokens> sampled;
  std::vector<int32_t> sampled_ids;  // what `sampled` points to
  std::vector<int32_t> output_ids;   // of a sequence with what its chunk has accepted so far
  std::optional<Speculator> speculator;
  absl::Status prepared;
  Inbox::Batch batch;
  StepLogits logits;
  int64_t step_begin_ns = 0;
  int64_t num_output_tokens = 0;
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

absl::Status Engine::Impl::prepare_speculation() {
  const int max_depth = std::min(options.max_draft_depth, executor->max_draft_depth());
  if (max_depth == 0) return absl::OkStatus();
  std::shared_ptr<const StepTable> table;
  if (options.adaptive_draft_depth) table = options.step_table;
  if (options.adaptive_draft_depth && !table) {
    MOESAIC_ASSIGN_OR_RETURN(StepTable measured, measure_steps(*executor, options, StepMeasureOptions(), clock));
    log_debug(str_cat("steps and drafts take: ", measured.to_json()));
    table = std::make_shared<const StepTable>(std::move(measured));
  }
  speculator.emplace(max_depth, options.dp_size, options.kv_block_tokens, options.context_length, std::move(table));
  return absl::OkStatus();
}

void Engine::Impl::start(Inbox::Submission submission) {
  const RequestId id = submission.request.id;
  std::unique_ptr<GrammarMatcher> grammar;
  if (submission.request.grammar) grammar = matchers->start(submission.request.grammar);
  const auto opened =
      open_requests.try_emplace(id, submission.request, std::move(submission.sink), tokenizer, options.eos_token_ids,
                                submission.queued_ns, std::move(grammar), options.vocab_size);
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
  step_begin_ns = clock.now_ns();
  trace.begin_step(step_begin_ns);
  const StepPlan& plan = scheduler.plan(step_begin_ns);
  trace.end_phase(StepTrace::Phase::kPlan);
  for (const FailedRequest& failed : scheduler.failures()) end(failed.request_id, FinishReason::kError, failed.error);
  if (!plan.empty()) {
    const absl::Status status = executor->execute(plan, &logits);
    if (!status.ok()) {
      scheduler.cancel_step();
      return annotate(status, str_cat("step ", plan.step_id, " failed"));
    }
    trace.end_phase(StepTrace::Phase::kForward);
    MOESAIC_CHECK_EQ(logits.groups.size(), plan.groups.size());
    MOESAIC_CHECK_EQ(logits.vocab_size, options.vocab_size);
    sampled.clear();
    sampled_ids.clear();
    size_t num_logit_rows = 0;
    for (const GroupPlan& group : plan.groups) {
      for (const PlannedChunk& chunk : group.chunks) num_logit_rows += chunk.num_logit_rows();
    }
    sampled_ids.reserve(num_logit_rows);  // the spans in `sampled` stay valid
    if (speculator) speculator->begin(plan);
    for (size_t group = 0; group < plan.groups.size(); ++group) {
      take_group(static_cast<int>(group), plan.groups[group], logits.groups[group]);
    }
    trace.end_phase(StepTrace::Phase::kSample);
    const absl::Status drafted = speculator ? speculator->draft(plan, *executor) : absl::OkStatus();
    trace.end_phase(StepTrace::Phase::kDraft);
    scheduler.apply(sampled);
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

void Engine::Impl::take_group(int group, const GroupPlan& plan, std::span<float> logits) {
  size_t begin = 0;
  for (size_t i = 0; i < plan.chunks.size(); ++i) {
    if (i + 2 * kPrefetchDistance < plan.chunks.size()) {
      prefetch(&scheduler.planned(group, i + 2 * kPrefetchDistance).request);
      prefetch(scheduler.planned(group, i + kPrefetchDistance).request.context, sizeof(OpenRequest));
    }
    const PlannedChunk& chunk = plan.chunks[i];
    const size_t count = static_cast<size_t>(chunk.num_logit_rows()) * options.vocab_size;
    MOESAIC_CHECK_LE(begin + count, logits.size());
    const Sequence& sequence = scheduler.planned(group, i);
    const std::span<const int32_t> accepted = take_chunk(sequence, chunk, logits.subspan(begin, count));
    begin += count;
    if (!speculator) continue;
    OpenRequest& open_request = open_request_of(sequence);
    speculator->add(group, static_cast<int32_t>(i), chunk, sequence, accepted, open_request.finished(),
                    open_request.draft_rows());
  }
}

// The tokens that the chunk adds to its sequence: its right drafts and one more; none if it does not reach the end.
std::span<const int32_t> Engine::Impl::take_chunk(const Sequence& sequence, const PlannedChunk& chunk,
                                                  std::span<float> rows) {
  const Request& request = sequence.request;
  OpenRequest& open_request = open_request_of(sequence);
  open_request.set_num_cached_tokens(sequence.num_cached_tokens);
  if (open_request.admit(step_begin_ns)) trace.admitted(open_request.id(), open_request.times());
  if (chunk.all_logits) collect_prompt_logprobs(chunk, rows, request, &open_request);
  if (chunk.kv_end() - chunk.num_draft < chunk.num_total) return {};
  to_deliver.push_back(&open_request);
  open_request.complete_prompt();
  const size_t first = sampled_ids.size();
  const auto accepted = [&] { return std::span<const int32_t>(sampled_ids).subspan(first); };
  if (!chunk.samples) open_request.finish(FinishReason::kLength);
  for (int32_t draft = 0; draft <= chunk.num_draft && !open_request.finished(); ++draft) {
    const std::span<float> row =
        rows.last((chunk.num_draft + 1 - draft) * options.vocab_size).first(options.vocab_size);
    int32_t id = sample_row(sequence, open_request, accepted(), row);
    if (id < 0) {
      open_request.finish(FinishReason::kError, open_request.no_token_error());
      break;
    }
    const bool is_last = draft == chunk.num_draft;
    const int32_t guess = is_last ? -1 : chunk.token_ids[chunk.num_tokens() - chunk.num_draft + draft];
    const bool goes_on = !is_last && is_right(request, guess, chunk.num_total + draft, &id);
    if (request.num_logprobs >= 0) fill_logprob(row, id, request.num_logprobs, open_request.new_logprob());
    open_request.add_token(request, id);
    ++num_output_tokens;
    sampled_ids.push_back(id);
    if (!goes_on) break;
  }
  sampled.push_back({request.id, accepted(), open_request.finished()});
  return accepted();
}

// The token that follows the output and `accepted`: the same that would be sampled without drafts, so a guess is right
// with the probability that the model gives it, and the output's distribution is the model's.
int32_t Engine::Impl::sample_row(const Sequence& sequence, OpenRequest& open_request, std::span<const int32_t> accepted,
                                 std::span<float> row) {
  const Request& request = sequence.request;
  const std::span<const uint64_t> allowed = open_request.allowed_tokens(request);
  if (accepted.empty()) return sampler.sample(request, sequence.output_ids, allowed, row);
  // One token more than in the call before.
  if (accepted.size() == 1) output_ids.assign(sequence.output_ids.begin(), sequence.output_ids.end());
  output_ids.push_back(accepted.back());
  return sampler.sample(request, output_ids, allowed, row);
}

bool Engine::Impl::is_right(const Request& request, int32_t draft, int32_t position, int32_t* id) const {
  if (options.synthetic_acceptance < 0 || request.grammar) return *id == draft;
  Rng rng(request.sampling.seed ^ (uint64_t{0x9e3779b97f4a7c15} * (position + 1)));
  const bool right = rng.uniform() < options.synthetic_acceptance;
  if (right) *id = draft;
  return right;
}

// Row i of the chunk says what follows position kv_begin + i. The last prompt position is followed by the output.
void Engine::Impl::collect_prompt_logprobs(const PlannedChunk& chunk, std::span<float> rows, const Request& request,
                                           OpenRequest* open_request) {
  const auto num_prompt = static_cast<int32_t>(request.prompt_ids.size());
  for (int32_t i = 0; i < chunk.num_tokens(); ++i) {
    const int32_t next = chunk.kv_begin + i + 1;
    if (next >= num_prompt) return;
    MOESAIC_CHECK_EQ(next, open_request->num_prompt_logprobs() + 1);
    fill_logprob(rows.subspan(i * options.vocab_size, options.vocab_size), request.prompt_ids[next],
                 request.num_logprobs, open_request->new_prompt_logprob());
  }
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
  inbox.take(/*wait=*/false, &batch);
  for (Inbox::Submission& submission : batch.submissions) start(std::move(submission));
  end_all(FinishReason::kError, error);
}

// num_ending: open requests that are finished, and whose sinks will be told so.
void Engine::Impl::publish(int num_ending) {
  int num_free = 0;
  int num_cached = 0;
  for (int group = 0; group < options.dp_size; ++group) {
    num_free += scheduler.pool(group).num_free();
    num_cached += scheduler.pool(group).num_cached();
  }
  const int num_running = scheduler.num_running();
  shared.num_running.store(num_running);
  shared.num_queued.store(scheduler.num_waiting());
  shared.kv_blocks_free.store(num_free);
  shared.kv_blocks_cached.store(num_cached);
  shared.prompt_tokens.store(num_prompt_tokens);
  shared.output_tokens.store(num_output_tokens);
  shared.requests_finished.store(num_finished);
  shared.preemptions.store(scheduler.num_preemptions());
  shared.steps.store(scheduler.num_steps());
  if (speculator) {
    const SpeculationStats& speculated = speculator->stats();
    shared.drafts.store(speculated.drafts_total);
    shared.draft_tokens.store(speculated.draft_tokens_total);
    shared.accepted_draft_tokens.store(speculated.accepted_tokens_total);
  }
  inbox.set_num_past_queue(num_running + num_ending);
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
  const SharedStats& shared = impl_->shared;
  EngineStats stats;
  stats.num_running = shared.num_running.load();
  stats.num_queued = shared.num_queued.load();
  stats.kv_blocks_total = impl_->options.num_kv_blocks * impl_->options.dp_size;
  stats.kv_blocks_free = shared.kv_blocks_free.load();
  stats.kv_blocks_cached = shared.kv_blocks_cached.load();
  stats.kv_blocks_used = stats.kv_blocks_total - stats.kv_blocks_free - stats.kv_blocks_cached;
  stats.prompt_tokens_total = shared.prompt_tokens.load();
  stats.output_tokens_total = shared.output_tokens.load();
  stats.requests_finished_total = shared.requests_finished.load();
  stats.preemptions_total = shared.preemptions.load();
  stats.steps_total = shared.steps.load();
  if (impl_->options.max_draft_depth > 0) {
    stats.speculation = {.drafts_total = shared.drafts.load(),
                         .draft_tokens_total = shared.draft_tokens.load(),
                         .accepted_tokens_total = shared.accepted_draft_tokens.load()};
  }
  return stats;
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
