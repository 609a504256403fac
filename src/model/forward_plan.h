// ForwardPlan: the positions, cache rows and attention spans of a step, in vectors sized once; and the workspace
// arithmetic. Private to model/; one rank's thread.
#pragma once

#include <vector>

#include "model/layer_ops.h"

namespace moesaic {

// Bytes of the arena of one rank: enough for the largest step that the options allow.
int64_t forward_arena_bytes(const ModelConfig& config, const ModelOptions& options);

// Errors name the option and its limit.
absl::Status validate_options(const ModelConfig& config, const ModelOptions& options);

class ForwardPlan {
 public:
  ForwardPlan(const ModelOptions& options, int tp_rank);
  // The result's spans point into this object and are valid until the next build(). Chunks may come in any order.
  MicroBatch build(const ForwardBatch& batch);

 private:
  void add_tokens(const SequenceChunk& chunk);
  void add_spans(const SequenceChunk& chunk, MicroBatch& micro);

  const ModelOptions options_;
  const int tp_rank_;
  std::vector<int32_t> positions_;
  std::vector<int32_t> slots_;
  std::vector<AttentionSpan> spans_;
  std::vector<AttentionRun> runs_;
};

}  // namespace moesaic
