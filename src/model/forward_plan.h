// ForwardPlan: the positions, cache rows and attention spans of a step, in vectors sized once; and the workspace
// arithmetic. Private to model/; one rank's thread.
#pragma once

#include <vector>

#include "model/layer_ops.h"

namespace moesaic {

// Bytes of one rank's arena, enough for the largest step that the options allow. What follows one another in a step
// shares memory.
struct ForwardWorkspace {
  int64_t residual = 0;   // the residual stream, through all layers
  int64_t normed = 0;     // through a layer
  int64_t attention = 0;  // queries, outputs, what a slice of tokens takes on the way
  int64_t ffn = 0;        // outputs, routing, what a slice of rows takes in a hidden layer
  int64_t logits = 0;
  int64_t mtp_input = 0;
  int64_t total() const;  // max(normed + max(attention, ffn), logits, mtp_input) behind the residual stream
};
ForwardWorkspace forward_workspace(const ModelConfig& config, const ModelOptions& options);

// Errors name the option and its limit.
absl::Status validate_options(const ModelConfig& config, const ModelOptions& options);

class ForwardPlan {
 public:
  ForwardPlan(const ModelOptions& options, int tp_rank);
  // The result's spans point into this object and are valid until the next build(). Chunks may come in any order.
  MicroBatch build(const ForwardBatch& batch);

 private:
  void add_tokens(const SequenceChunk& chunk);
  AttentionRun& run_for(bool is_absorbed, int64_t begin, int64_t num_queries);
  void add_spans(const SequenceChunk& chunk);

  const ModelOptions options_;
  const int tp_rank_;
  std::vector<int32_t> positions_;
  std::vector<int32_t> slots_;
  std::vector<AttentionSpan> spans_;
  std::vector<AttentionRun> runs_;
};

}  // namespace moesaic
