// ModelExecutor with a stand-in for the model: what every rank is asked for, and errors.
#include "engine/model_executor.h"

#include <mutex>

#include "base/thread.h"
#include "gtest/gtest.h"

namespace moesaic {
namespace {

constexpr int64_t kVocab = 5;

PlannedChunk make_chunk(RequestId id, int begin, int count, bool is_prefill, bool samples) {
  PlannedChunk chunk;
  chunk.request_id = id;
  chunk.kv_begin = begin;
  for (int i = 0; i < count; ++i) chunk.token_ids.push_back(static_cast<int32_t>(id * 100) + begin + i);
  chunk.is_prefill = is_prefill;
  chunk.samples = samples;
  chunk.block_table = {static_cast<int32_t>(id)};
  return chunk;
}

TEST(StepBatchTest, ChunksAndRows) {
  GroupPlan plan;
  plan.chunks.push_back(make_chunk(1, 30, 1, false, true));
  plan.chunks.push_back(make_chunk(2, 5, 19, false, true));  // a replay: pieces of 8, 8, 3
  plan.chunks.push_back(make_chunk(3, 0, 20, true, false));
  plan.chunks.push_back(make_chunk(4, 0, 3, true, true));
  plan.chunks.back().all_logits = true;
  StepBatch step_batch;
  step_batch.assign(GroupPlan{});
  EXPECT_EQ(step_batch.num_logit_rows(), 0);
  step_batch.assign(plan);
  const ForwardBatch batch = step_batch.forward_batch();
  EXPECT_EQ(batch.token_ids.size(), 43u);
  const std::vector<int32_t> rows(batch.logit_rows.begin(), batch.logit_rows.end());
  EXPECT_EQ(rows, (std::vector<int32_t>{0, 19, 40, 41, 42}));
  ASSERT_EQ(batch.chunks.size(), 6u);
  const int want[6][3] = {{0, 1, 30}, {1, 8, 5}, {9, 8, 13}, {17, 3, 21}, {20, 20, 0}, {40, 3, 0}};
  const int request[6] = {1, 2, 2, 2, 3, 4};
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(batch.chunks[i].token_begin, want[i][0]);
    EXPECT_EQ(batch.chunks[i].num_tokens, want[i][1]);
    EXPECT_EQ(batch.chunks[i].kv_begin, want[i][2]);
    EXPECT_EQ(batch.chunks[i].is_prefill, i >= 4);
    EXPECT_EQ(batch.chunks[i].block_table[0], request[i]);
    EXPECT_EQ(batch.token_ids[want[i][0]], request[i] * 100 + want[i][2]);
  }
}

// Threads for one call; logits row r of rank's group = token id of the row, in every column.
class Ranks {
 public:
  explicit Ranks(const ParallelLayout& layout)
      : layout_(layout), buffers_(layout.world_size()), hidden_(layout.world_size()) {
    comms_ = make_thread_communicators(layout.world_size(), {.timeout_ms = 300});
    for (int group = 0; group < layout.dp_size; ++group) {
      for (auto& member : make_thread_communicators(layout.tp_size, {.timeout_ms = 300})) {
        tp_comms_.push_back(std::move(member));
      }
    }
  }

  absl::Status run(const RankBody& body) {
    std::mutex mutex;
    absl::Status first;
    std::vector<Thread> threads;
    for (int rank = 0; rank < layout_.world_size(); ++rank) {
      threads.emplace_back("rank", [&, rank] {
        const RankContext context{.rank = rank, .world = comms_[rank].get(), .tp_group = tp_comms_[rank].get()};
        const absl::Status status = rank == silent_rank ? absl::OkStatus() : body(context, model());
        std::lock_guard lock(mutex);
        if (first.ok()) first = status;
      });
    }
    threads.clear();
    return first;
  }

  RankModel model() {
    return {
        .forward = [this](const RankContext& context, const ForwardBatch& batch,
                          ForwardResult* result) { return forward(context, batch, result); },
        .forward_mtp = [this](const RankContext& context, const ForwardBatch& batch, const Tensor& hidden,
                              std::span<const int32_t> next_ids,
                              ForwardResult* result) { return forward_mtp(context, batch, hidden, next_ids, result); }};
  }

  absl::Status forward(const RankContext& context, const ForwardBatch& batch, ForwardResult* result) {
    std::vector<float>& buffer = buffers_[context.rank];
    buffer.clear();
    for (const int32_t row : batch.logit_rows) {
      buffer.insert(buffer.end(), kVocab, static_cast<float>(batch.token_ids[row]));
    }
    result->logits = Tensor(buffer.data(), DType::kF32, {static_cast<int64_t>(batch.logit_rows.size()), kVocab});
    std::vector<float>& hidden = hidden_[context.rank];
    hidden.assign(batch.token_ids.begin(), batch.token_ids.end());
    result->hidden = Tensor(hidden.data(), DType::kF32, {static_cast<int64_t>(hidden.size()), 1});
    modes[context.rank] = batch.a2a_mode;
    num_tokens[context.rank] = static_cast<int>(batch.token_ids.size());
    return context.rank == failing_rank ? absl::InternalError("no luck") : absl::OkStatus();
  }

  // The state becomes state + next token; the best token is that modulo the vocabulary. The first TP rank has logits.
  absl::Status forward_mtp(const RankContext& context, const ForwardBatch& batch, const Tensor& hidden,
                           std::span<const int32_t> next_ids, ForwardResult* result) {
    EXPECT_EQ(hidden.dim(0), static_cast<int64_t>(next_ids.size()));
    EXPECT_EQ(batch.token_ids.size(), next_ids.size());
    std::vector<float>& buffer = buffers_[context.rank];
    buffer.clear();
    for (const SequenceChunk& chunk : batch.chunks) {
      for (int32_t i = 0; i < chunk.num_tokens; ++i) {
        const int32_t row = chunk.token_begin + i;
        hidden.f32()[row] += static_cast<float>(next_ids[row]);
        seen[context.rank].push_back({chunk.kv_begin + i, next_ids[row]});
      }
    }
    result->hidden = hidden;
    for (const int32_t row : batch.logit_rows) {
      for (int64_t id = 0; id < kVocab; ++id) {
        buffer.push_back(id == static_cast<int64_t>(hidden.f32()[row]) % kVocab ? 1.0f : 0.0f);
      }
    }
    if (layout_.tp_rank(context.rank) == 0) {
      result->logits = Tensor(buffer.data(), DType::kF32, {static_cast<int64_t>(batch.logit_rows.size()), kVocab});
    }
    modes[context.rank] = batch.a2a_mode;
    return absl::OkStatus();
  }

  std::vector<std::pair<int32_t, int32_t>> seen[8];  // (position, next token) that a rank's draft module was given
  int silent_rank = -1;
  int failing_rank = -1;
  A2aMode modes[8] = {};
  int num_tokens[8] = {};

 private:
  ParallelLayout layout_;
  std::vector<std::vector<float>> buffers_;
  std::vector<std::vector<float>> hidden_;
  std::vector<std::unique_ptr<Communicator>> tp_comms_;
  std::vector<std::unique_ptr<Communicator>> comms_;
};

ModelExecutorOptions options_of(const ParallelLayout& layout, int max_draft_depth = 0) {
  return {.layout = layout, .vocab_size = kVocab, .max_low_latency_tokens = 8, .max_draft_depth = max_draft_depth};
}

StepPlan two_groups(int64_t step_id, bool prefill) {
  StepPlan plan;
  plan.step_id = step_id;
  plan.groups.resize(2);
  plan.groups[1].chunks.push_back(make_chunk(1, 4, prefill ? 3 : 1, prefill, true));
  (prefill ? plan.groups[1].num_prefill_tokens : plan.groups[1].num_decode_tokens) = prefill ? 3 : 1;
  return plan;
}

TEST(ModelExecutorTest, IdleGroupsTakePartAndTheModeIsCommon) {
  const ParallelLayout layout{.dp_size = 2, .tp_size = 2};
  Ranks ranks(layout);
  ModelExecutor executor(options_of(layout), [&](const RankBody& body) { return ranks.run(body); });
  for (const bool prefill : {true, false}) {
    StepLogits logits;
    ASSERT_TRUE(executor.execute(two_groups(prefill ? 0 : 1, prefill), &logits).ok());
    ASSERT_EQ(logits.groups.size(), 2u);
    EXPECT_EQ(logits.groups[0].size(), 0u);
    ASSERT_EQ(logits.groups[1].size(), static_cast<size_t>(kVocab));
    EXPECT_EQ(logits.groups[1][0], prefill ? 106.0f : 104.0f);
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(ranks.modes[rank], prefill ? A2aMode::kNormal : A2aMode::kLowLatency);
      EXPECT_EQ(ranks.num_tokens[rank], rank < 2 ? 0 : (prefill ? 3 : 1));
    }
  }
}

TEST(ModelExecutorTest, DraftsChainOnEveryRankOfTheGroup) {
  const ParallelLayout layout{.dp_size = 2, .tp_size = 2};
  Ranks ranks(layout);
  ModelExecutor executor(options_of(layout, 3), [&](const RankBody& body) { return ranks.run(body); });
  EXPECT_EQ(executor.max_draft_depth(), 3);
  StepPlan plan;
  plan.groups.resize(2);
  std::vector<PlannedChunk>& chunks = plan.groups[1].chunks;
  chunks.push_back(make_chunk(0, 4, 3, false, true));  // verified: of tokens 4, 5, 6 the last was wrong
  chunks.push_back(make_chunk(1, 9, 1, false, true));
  chunks.push_back(make_chunk(2, 0, 2, true, false));
  chunks[0].num_draft = 2;
  plan.groups[1].num_decode_tokens = 4;
  plan.groups[1].num_prefill_tokens = 2;
  StepLogits logits;
  ASSERT_TRUE(executor.execute(plan, &logits).ok());
  EXPECT_EQ(logits.groups[1].size(), static_cast<size_t>(4 * kVocab));
  DraftPlan drafts;
  drafts.depth = 3;
  drafts.groups.resize(2);
  drafts.groups[1].chunks = {{.chunk = 0, .num_rows = 2, .depth = 1},
                             {.chunk = 1, .num_rows = 1, .depth = 3},
                             {.chunk = 2, .num_rows = 2, .depth = 0}};
  drafts.groups[1].next_ids = {5, 1, 2, 201, 3};
  DraftTokens tokens;
  ASSERT_TRUE(executor.draft(plan, drafts, &tokens).ok());
  // Chunk 0: state 5, next 1: guess 6 % 5. Chunk 1: 109 + 2 = 111 -> 1, 111 + 1 = 112 -> 2, 112 + 2 = 114 -> 4.
  EXPECT_TRUE(tokens.groups[0].empty());
  EXPECT_EQ(tokens.groups[1], (std::vector<int32_t>{1, -1, -1, 1, 2, 4, -1, -1, -1}));
  const std::vector<std::pair<int32_t, int32_t>> seen = {{4, 5}, {5, 1}, {9, 2}, {0, 201}, {1, 3}, {10, 1}, {11, 2}};
  EXPECT_EQ(ranks.seen[2], seen);
  EXPECT_EQ(ranks.seen[3], seen);
  EXPECT_TRUE(ranks.seen[0].empty());
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(ranks.modes[rank], A2aMode::kLowLatency);  // of the last level
  // Depth 0: rows are taken in, nothing is guessed.
  drafts.depth = 0;
  for (DraftChunk& chunk : drafts.groups[1].chunks) chunk.depth = 0;
  ASSERT_TRUE(executor.execute(plan, &logits).ok());
  ASSERT_TRUE(executor.draft(plan, drafts, &tokens).ok());
  EXPECT_TRUE(tokens.groups[1].empty());
  EXPECT_EQ(ranks.modes[0], A2aMode::kNormal);
}

TEST(ModelExecutorTest, ErrorsNameTheRankAndStay) {
  const ParallelLayout layout{.dp_size = 2, .tp_size = 1};
  StepLogits logits;
  {
    Ranks ranks(layout);
    ranks.failing_rank = 1;
    ModelExecutor executor(options_of(layout), [&](const RankBody& body) { return ranks.run(body); });
    const absl::Status status = executor.execute(two_groups(0, true), &logits);
    EXPECT_EQ(status.message(), "rank 1: no luck");
    EXPECT_EQ(executor.execute(two_groups(1, true), &logits), status);
  }
  Ranks ranks(layout);
  ranks.silent_rank = 1;
  ModelExecutor executor(options_of(layout), [&](const RankBody& body) { return ranks.run(body); });
  EXPECT_EQ(executor.execute(two_groups(0, true), &logits).code(), absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace moesaic
