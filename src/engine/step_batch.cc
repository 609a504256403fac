#include "engine/step_batch.h"

#include <algorithm>

namespace moesaic {

void StepBatch::assign(const GroupPlan& plan) {
  token_ids_.clear();
  chunks_.clear();
  logit_rows_.clear();
  for (const PlannedChunk& chunk : plan.chunks) add_chunk(chunk);
}

void StepBatch::add_chunk(const PlannedChunk& chunk) {
  const auto begin = static_cast<int32_t>(token_ids_.size());
  const int32_t piece = chunk.is_prefill ? chunk.num_tokens() : kMaxDecodeTokens;
  for (int32_t at = 0; at < chunk.num_tokens(); at += piece) {
    chunks_.push_back({.token_begin = begin + at,
                       .num_tokens = std::min(piece, chunk.num_tokens() - at),
                       .kv_begin = chunk.kv_begin + at,
                       .is_prefill = chunk.is_prefill,
                       .block_table = chunk.block_table.data()});
  }
  token_ids_.insert(token_ids_.end(), chunk.token_ids.begin(), chunk.token_ids.end());
  const auto end = static_cast<int32_t>(token_ids_.size());
  for (int32_t row = end - chunk.num_logit_rows(); row < end; ++row) logit_rows_.push_back(row);
}

ForwardBatch StepBatch::forward_batch() const {
  ForwardBatch batch;
  batch.token_ids = token_ids_;
  batch.chunks = chunks_;
  batch.logit_rows = logit_rows_;
  return batch;
}

}  // namespace moesaic
