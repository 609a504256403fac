// Sampler: from one row of logits to one token. The order is penalties, logit_bias, the ban of end tokens before
// min_tokens, the mask of a constrained output, then temperature, top_k, top_p, min_p. The random number of output
// position i depends on (seed, i) alone, so the same seed gives the same text in any batch and after a preemption.
// Owned by the engine thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sched/request.h"

namespace moesaic {

struct TokenLogprob;

class Sampler {
 public:
  // With a script (tests only) the tokens of every request are the script's, then the first EOS token; logprobs stay
  // those of the model.
  Sampler(std::vector<int32_t> eos_token_ids, std::vector<int32_t> script)
      : eos_token_ids_(std::move(eos_token_ids)), script_(std::move(script)) {}

  // The token at output position output_ids.size(); -1 if no logit is a number or no token may come. Changes the row in
  // place: afterwards it holds the untempered logits from which logprobs are read. Bit i of word i / 64 of `allowed`
  // says whether token i may come (the others become -inf); empty = all may.
  int32_t sample(const Request& request, std::span<const int32_t> output_ids, std::span<const uint64_t> allowed,
                 std::span<float> logits) const;

 private:
  void adjust(const Request& request, std::span<const int32_t> output_ids, std::span<float> logits) const;

  std::vector<int32_t> eos_token_ids_;
  std::vector<int32_t> script_;
};

// Makes the logits of tokens whose bit is not set -inf.
void apply_mask(std::span<const uint64_t> allowed, std::span<float> logits);

// log softmax(logits)[id] and the num_top best, best first, the lower id on ties; banned tokens (-inf) are not listed.
void fill_logprob(std::span<const float> logits, int32_t id, int32_t num_top, TokenLogprob* logprob);

}  // namespace moesaic
