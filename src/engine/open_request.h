// OpenRequest: the output side of a request that is being served: turns tokens into text, finds what ends it, collects
// what its sink gets next. Owned by the engine thread. The input side is the scheduler's Sequence.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/stop_matcher.h"
#include "text/detokenizer.h"
#include "text/grammar_matcher.h"

namespace moesaic {

class OpenRequest {
 public:
  // What is given by pointer or span outlives the object. Both pointers may be null; `matchers` not with
  // request.grammar, which is started by the first allowed_tokens().
  OpenRequest(const Request& request, OutputSink sink, const Tokenizer* tokenizer,
              std::span<const int32_t> eos_token_ids, int64_t queued_ns, GrammarMatchers* matchers = nullptr);

  // What the next token may be, as Sampler::sample wants it: what the grammar allows, and end and stop tokens where the
  // text is complete. Empty without a grammar.
  std::span<const uint64_t> allowed_tokens(const Request& request);
  // Why there was no token to sample.
  absl::Status no_token_error() const;

  // The next output token, with `request` as given to the constructor. Not kNone if it is the last one.
  FinishReason add_token(const Request& request, int32_t id);
  // Ends the request: releases held text. Called once.
  void finish(FinishReason reason, absl::Status error = absl::OkStatus());
  // Room for the logprob of the token just added, or of the next prompt position.
  TokenLogprob* new_logprob() { return &output_.logprobs.emplace_back(); }
  TokenLogprob* new_prompt_logprob() { return &output_.prompt_logprobs.emplace_back(); }
  // Prompt positions 1 .. this have their logprobs (held until the first output).
  int32_t num_prompt_logprobs() const { return static_cast<int32_t>(output_.prompt_logprobs.size()); }

  // The step that has its next chunk was planned at this time. True, and kept, the first time.
  bool admit(int64_t now_ns) {
    if (output_.times.admitted_ns != 0) return false;
    output_.times.admitted_ns = now_ns;
    return true;
  }
  // Its prompt is computed, and the first token is there if it wants one; the first time counts.
  void complete_prompt() { prompt_done_ = true; }
  // The time of the output that comes next.
  void stamp(int64_t now_ns);
  // Hands what has gathered to the sink.
  void deliver();
  RequestId id() const { return output_.id; }
  int32_t num_prompt_tokens() const { return output_.num_prompt_tokens; }
  void set_num_cached_tokens(int32_t count) { output_.num_cached_tokens = count; }
  // Rows of the sequence in the draft module's cache (Speculator).
  int32_t* draft_rows() { return &draft_rows_; }
  const RequestTimes& times() const { return output_.times; }
  int32_t num_output_tokens() const { return output_.num_output_tokens; }
  FinishReason finish_reason() const { return output_.finish_reason; }
  bool finished() const { return output_.finish_reason != FinishReason::kNone; }

 private:
  void add_text(const Request& request, std::string_view text);

  RequestOutput output_;
  OutputSink sink_;
  std::optional<Detokenizer> detokenizer_;
  StopMatcher matcher_;
  GrammarMatchers* matchers_;
  std::unique_ptr<GrammarMatcher> grammar_;
  std::vector<uint64_t> mask_;
  std::span<const int32_t> eos_token_ids_;
  bool include_stop_ = false;
  int32_t draft_rows_ = 0;
  bool prompt_done_ = false;
};

}  // namespace moesaic
