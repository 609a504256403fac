// StepSampler: the tokens of a step. Samples every sequence that the step brought to its end, verifies what was guessed
// for it, adds tokens and logprobs to its OpenRequest, and tells the Speculator what became of each chunk. Owned by the
// engine and called by its thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/open_request.h"
#include "engine/sampler.h"
#include "engine/speculator.h"
#include "engine/step_trace.h"
#include "sched/scheduler.h"

namespace moesaic {

class StepSampler {
 public:
  // All are the engine's and outlive the sampler.
  StepSampler(const EngineOptions& options, const Scheduler& scheduler, StepTrace& trace)
      : options_(options),
        scheduler_(scheduler),
        trace_(trace),
        sampler_(options.eos_token_ids, options.hooks.script) {}

  // Between Scheduler::plan, at begin_ns, and apply; Request::context is the OpenRequest. Changes the logits in place.
  // Appends the requests that have something to deliver to `touched`. `speculator` may be null.
  void sample(const StepPlan& plan, const StepLogits& logits, int64_t begin_ns, Speculator* speculator,
              std::vector<OpenRequest*>* touched);
  // For Scheduler::apply; valid until the next sample().
  std::span<const SampledTokens> sampled() const { return sampled_; }
  int64_t num_output_tokens() const { return num_output_tokens_; }  // of all steps

 private:
  void take_group(int group, const GroupPlan& plan, std::span<float> logits);
  std::span<const int32_t> take_chunk(const Sequence& sequence, const PlannedChunk& chunk, std::span<float> rows);
  int32_t sample_row(const Sequence& sequence, OpenRequest& open_request, std::span<const int32_t> accepted,
                     std::span<float> row);
  bool is_right(const Request& request, int32_t draft, int32_t position, int32_t* id) const;
  void collect_prompt_logprobs(const PlannedChunk& chunk, std::span<float> rows, const Request& request,
                               OpenRequest* open_request);

  const EngineOptions& options_;
  const Scheduler& scheduler_;
  StepTrace& trace_;
  const Sampler sampler_;
  int64_t begin_ns_ = 0;
  Speculator* speculator_ = nullptr;
  std::vector<OpenRequest*>* touched_ = nullptr;
  std::vector<SampledTokens> sampled_;
  std::vector<int32_t> sampled_ids_;  // what sampled_ points to
  std::vector<int32_t> output_ids_;   // of a sequence with what its chunk has accepted so far
  int64_t num_output_tokens_ = 0;
};

}  // namespace moesaic
