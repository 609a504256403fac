// Engine: one deployment of a model. Its thread owns Scheduler and BlockPools, plans steps, runs them through the
// Executor, samples, detokenises, finds stop strings, and reports through each request's sink. submit() and abort() may
// be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/executor.h"
#include "engine/faulty_executor.h"
#include "engine/step_table.h"
#include "sched/request.h"
#include "text/tokenizer.h"

namespace moesaic {

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0.0f;  // natural logarithm, of the untempered distribution after penalties, bias and mask
  std::vector<std::pair<int32_t, float>> top;  // best first
};

// When things happened to a request, Clock::now_ns; 0: not yet. A preempted request keeps its first times.
struct RequestTimes {
  int64_t arrival_ns = 0;      // Request::arrival_ns; if that is 0, when submit() took it
  int64_t queued_ns = 0;       // submit() took it
  int64_t admitted_ns = 0;     // the step that has its first chunk was planned
  int64_t prompt_done_ns = 0;  // the prompt was computed and, unless max_tokens is 0, the first token sampled
  int64_t output_ns = 0;       // what this output holds was sampled; in the last one: the request ended
};

// What happened to a request since its last output. `text` is valid UTF-8; stop strings never appear in it (unless
// asked for).
struct RequestOutput {
  RequestId id = 0;
  std::string text;                           // new text
  std::vector<int32_t> token_ids;             // new tokens (their text may still be held back)
  std::vector<TokenLogprob> logprobs;         // one per new token if asked for
  std::vector<TokenLogprob> prompt_logprobs;  // once, with the first output: entries for prompt tokens 1 .. n-1
  FinishReason finish_reason = FinishReason::kNone;
  absl::Status error;          // set with kError
  int32_t stop_token_id = -1;  // with kStop: the EOS or stop token that ended the text (the last of token_ids) ...
  std::string stop_string;     // ... or the stop string
  int32_t num_prompt_tokens = 0;
  int32_t num_output_tokens = 0;  // so far
  int32_t num_cached_tokens = 0;  // prompt tokens that the prefix cache had when the request started
  RequestTimes times;
};

// Called on the engine thread; must not block, nor call drain(). The last call has a finish_reason; none follows it,
// and the blocks of the request are free when it comes. The output may be moved from; what is left keeps its memory for
// the next one.
using OutputSink = std::function<void(RequestOutput&&)>;

// For tests; `serve` has hidden flags for them.
struct TestHooks {
  std::vector<int32_t> script;  // every request's output tokens; then the first EOS token
  FaultOptions faults;
};

struct EngineOptions {
  int dp_size = 1;
  int64_t context_length = 0;  // prompt + output
  int64_t vocab_size = 0;
  std::vector<int32_t> eos_token_ids;
  int num_kv_blocks = 0;  // of each DP group
  int kv_block_tokens = 64;
  int max_running_requests = 64;  // of each DP group
  int max_queued_requests = 5000;
  int64_t max_prompt_tokens = 64 << 20;  // of all open requests together: 256 MB of ids; one alone always fits
  int64_t max_tokens_per_step = 2048;    // of each DP group: the token budget
  int64_t max_logit_rows_per_step = 0;   // of each DP group: bounds prompt logprobs' memory; 0 = no bound
  bool prefix_cache = true;              // share the blocks of equal prompt beginnings
  bool mixed_steps = true;               // prompts and decode tokens in the same steps; else they alternate
  int prefill_delay_steps = 0;           // how long a prompt may wait for prompts of the other groups while some decode
  int64_t priority_aging_steps = 1000;   // waiting that makes up for one level of priority
  int64_t queue_timeout_ms = 0;          // longest wait for the start of a request; 0 = no bound
  int max_draft_depth = 0;               // tokens that the draft module may guess in a step; 0 = no speculation
  bool adaptive_draft_depth = true;      // the depth that pays, from 0 to max; else always max
  // What steps and drafts take, for the depth that pays; null: measured at the start.
  std::shared_ptr<const StepTable> step_table;
  // Benchmarks: a guess counts as right with this probability, whatever the model says; the text is not the model's.
  // -1 = off.
  double synthetic_acceptance = -1.0;
  TestHooks hooks;
};

struct SpeculationStats {
  int64_t drafts_total = 0;  // sequences x steps that had draft tokens to verify
  int64_t draft_tokens_total = 0;
  int64_t accepted_tokens_total = 0;  // draft tokens that were kept
};

struct EngineStats {
  int num_running = 0;
  int num_queued = 0;
  int kv_blocks_total = 0;
  int kv_blocks_free = 0;
  int kv_blocks_used = 0;
  int kv_blocks_cached = 0;  // hold reusable prefixes, nobody's now
  int64_t prompt_tokens_total = 0;
  int64_t output_tokens_total = 0;
  int64_t requests_finished_total = 0;
  int64_t preemptions_total = 0;
  int64_t steps_total = 0;
  std::optional<SpeculationStats> speculation;  // where the engine speculates
};

class Engine {
 public:
  // With adaptive drafts and no step_table, measures what steps take first: up to a second or so.
  Engine(EngineOptions options, std::unique_ptr<Executor> executor,
         const Tokenizer* tokenizer /* may be null: no text, no stop strings */, const Clock& clock);
  ~Engine();  // stops; open requests end with kAbort

  // Checks the request (ids in range, context, pool size) and queues it. prompt + max_tokens above the context is
  // refused, never clamped. Errors: INVALID_ARGUMENT with both numbers, ALREADY_EXISTS for an id that is open,
  // RESOURCE_EXHAUSTED when the queue is full, UNAVAILABLE when draining or dead. On error the sink is never called.
  absl::Status submit(Request request, OutputSink sink);
  // Ends a request with kAbort; unknown and finished ids are ignored; its blocks return within a step.
  void abort(RequestId id);
  // No new requests; returns when all have ended, or aborts what is left after timeout_ms.
  void drain(int64_t timeout_ms);
  EngineStats stats() const;
  // Records every step and request until stop_profile(), which gives the JSON that ui.perfetto.dev and chrome://tracing
  // read. The buffer is bounded; what no longer fits is left out and counted. FAILED_PRECONDITION for a second start or
  // a stop without one.
  absl::Status start_profile();
  absl::StatusOr<std::string> stop_profile();
  // With no open request: free + cached = total and nothing runs or waits. For tests and debugging.
  absl::Status check_at_rest() const;
  bool healthy() const;  // false after a fatal executor error
  const EngineOptions& options() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace moesaic
