#include "engine/draft_batch.h"

#include <algorithm>

#include "base/check.h"
#include "engine/step_batch.h"

namespace moesaic {

void DraftBatch::Level::clear() {
  hidden_rows.clear();
  guess_rows.clear();
  chunks.clear();
  logit_rows.clear();
  guess_chunks.clear();
}

void DraftBatch::assign(const GroupPlan& plan, const GroupDraft& draft, int depth) {
  MOESAIC_CHECK_LE(depth, static_cast<int>(levels_.size()));
  for (Level& level : levels_) level.clear();
  next_ids_.assign(draft.next_ids.begin(), draft.next_ids.end());
  num_prefill_rows_ = 0;
  size_t next_chunk = 0;
  int32_t step_row = 0;
  for (size_t i = 0; i < draft.chunks.size(); ++i) {
    const DraftChunk& drafted = draft.chunks[i];
    for (; static_cast<int32_t>(next_chunk) < drafted.chunk; ++next_chunk)
      step_row += plan.chunks[next_chunk].num_tokens();
    const PlannedChunk& chunk = plan.chunks[drafted.chunk];
    MOESAIC_CHECK(drafted.num_rows >= 1 && drafted.num_rows <= chunk.num_tokens());
    MOESAIC_CHECK_LE(drafted.depth, depth);
    add_rows(chunk, step_row, drafted.num_rows);
    if (drafted.depth == 0) continue;
    levels_[0].logit_rows.push_back(num_rows(0) - 1);
    levels_[0].guess_chunks.push_back(static_cast<int32_t>(i));
  }
  MOESAIC_CHECK_EQ(next_ids_.size(), levels_[0].hidden_rows.size());
  for (int level = 1; level < depth; ++level) chain(plan, draft, level);
  if (zeros_.size() < levels_[0].hidden_rows.size()) zeros_.resize(levels_[0].hidden_rows.size());
}

void DraftBatch::add_rows(const PlannedChunk& chunk, int32_t step_row, int32_t num_rows) {
  Level& level = levels_[0];
  const int32_t piece = chunk.is_prefill ? num_rows : StepBatch::kMaxDecodeTokens;
  for (int32_t at = 0; at < num_rows; at += piece) {
    level.chunks.push_back({.token_begin = static_cast<int32_t>(level.hidden_rows.size()) + at,
                            .num_tokens = std::min(piece, num_rows - at),
                            .kv_begin = chunk.kv_begin + at,
                            .is_prefill = chunk.is_prefill,
                            .block_table = chunk.block_table.data()});
  }
  for (int32_t row = 0; row < num_rows; ++row) level.hidden_rows.push_back(step_row + row);
  if (chunk.is_prefill) num_prefill_rows_ += num_rows;
}

// One row for every chunk that wants more guesses than `level`: the position after the level before's.
void DraftBatch::chain(const GroupPlan& plan, const GroupDraft& draft, int index) {
  const Level& before = levels_[index - 1];
  Level& level = levels_[index];
  for (size_t guess = 0; guess < before.guess_chunks.size(); ++guess) {
    const int32_t i = before.guess_chunks[guess];
    const DraftChunk& drafted = draft.chunks[i];
    if (drafted.depth <= index) continue;
    const PlannedChunk& chunk = plan.chunks[drafted.chunk];
    const auto row = static_cast<int32_t>(level.hidden_rows.size());
    level.chunks.push_back({.token_begin = row,
                            .num_tokens = 1,
                            .kv_begin = chunk.kv_begin + drafted.num_rows - 1 + index,
                            .is_prefill = false,
                            .block_table = chunk.block_table.data()});
    level.hidden_rows.push_back(before.logit_rows[guess]);
    level.guess_rows.push_back(static_cast<int32_t>(guess));
    level.logit_rows.push_back(row);
    level.guess_chunks.push_back(i);
  }
}

ForwardBatch DraftBatch::forward_batch(int index) const {
  const Level& level = levels_[index];
  ForwardBatch batch;
  batch.token_ids = std::span(zeros_).first(level.hidden_rows.size());
  batch.chunks = level.chunks;
  batch.logit_rows = level.logit_rows;
  return batch;
}

}  // namespace moesaic
