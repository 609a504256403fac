// SequenceScorer: whole sequences through the model, one at a time, in chunks; the logits of every token come back
// chunk by chunk. No engine, no sampling: what `eval --ids` and `eval --text` stand on. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cli/model_settings.h"
#include "model/rank_group.h"

namespace moesaic {

// Rows [first_row, first_row + num_rows) of a sequence's logits: rows[i * vocab + id]. Valid during the call.
using LogitsSink = std::function<void(int64_t first_row, int64_t num_rows, const float* rows)>;

class SequenceScorer {
 public:
  // For sequences of at most max_tokens.
  static absl::StatusOr<std::unique_ptr<SequenceScorer>> load(const ModelSettings& settings, int64_t max_tokens,
                                                              bool load_mtp);
  // `on_mtp` may be empty; else it gets n - 1 rows: the MTP module's logits for the hidden state of token i and the
  // embedding of token i + 1. Errors: an empty or too long sequence, an id that the vocabulary does not have.
  absl::Status score(std::span<const int32_t> ids, const LogitsSink& on_logits, const LogitsSink& on_mtp);

  const ModelConfig& config() const { return group_->config(); }

 private:
  SequenceScorer() = default;
  absl::Status check(std::span<const int32_t> ids) const;
  absl::Status score_chunk(std::span<const int32_t> ids, int64_t begin, const LogitsSink& on_logits,
                           const LogitsSink& on_mtp);

  ModelOptions options_;
  std::unique_ptr<RankGroup> group_;
  std::vector<int32_t> block_table_;
  std::vector<int32_t> rows_;  // 0, 1, 2, ...
};

// -log softmax(logits)[id].
double negative_log_likelihood(std::span<const float> logits, int32_t id);

}  // namespace moesaic
