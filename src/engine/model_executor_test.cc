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
  explicit Ranks(const ParallelLayout& layout) : layout_(layout), buffers_(layout.world_size()) {
    comms_ = make_thread_communicators(layout.world_size(), {.timeout_ms = 300});
  }

  absl::Status run(const RankBody& body) {
    std::mutex mutex;
    absl::Status first;
    std::vector<Thread> threads;
    for (int rank = 0; rank < layout_.world_size(); ++rank) {
      threads.emplace_back("rank", [&, rank] {
        const RankContext context{.rank = rank, .world = comms_[rank].get()};
        const absl::Status status = rank == silent_rank ? absl::OkStatus() : body(context, forward());
        std::lock_guard lock(mutex);
        if (first.ok()) first = status;
      });
    }
    threads.clear();
    return first;
  }

  RankForward forward() {
    return [this](const RankContext& context, const ForwardBatch& batch, ForwardResult* result) {
      std::vector<float>& buffer = buffers_[context.rank];
      buffer.clear();
      for (const int32_t row : batch.logit_rows) {
        buffer.insert(buffer.end(), kVocab, static_cast<float>(batch.token_ids[row]));
      }
      result->logits = Tensor(buffer.data(), DType::kF32, {static_cast<int64_t>(batch.logit_rows.size()), kVocab});
      modes[context.rank] = batch.a2a_mode;
      num_tokens[context.rank] = static_cast<int>(batch.token_ids.size());
      return context.rank == failing_rank ? absl::InternalError("no luck") : absl::OkStatus();
    };
  }

  int silent_rank = -1;
  int failing_rank = -1;
  A2aMode modes[8] = {};
  int num_tokens[8] = {};

 private:
  ParallelLayout layout_;
  std::vector<std::vector<float>> buffers_;
  std::vector<std::unique_ptr<Communicator>> comms_;
};

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
  ModelExecutor executor(layout, kVocab, [&](const RankBody& body) { return ranks.run(body); });
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

TEST(ModelExecutorTest, ErrorsNameTheRankAndStay) {
  const ParallelLayout layout{.dp_size = 2, .tp_size = 1};
  StepLogits logits;
  {
    Ranks ranks(layout);
    ranks.failing_rank = 1;
    ModelExecutor executor(layout, kVocab, [&](const RankBody& body) { return ranks.run(body); });
    const absl::Status status = executor.execute(two_groups(0, true), &logits);
    EXPECT_EQ(status.message(), "rank 1: no luck");
    EXPECT_EQ(executor.execute(two_groups(1, true), &logits), status);
  }
  Ranks ranks(layout);
  ranks.silent_rank = 1;
  ModelExecutor executor(layout, kVocab, [&](const RankBody& body) { return ranks.run(body); });
  EXPECT_EQ(executor.execute(two_groups(0, true), &logits).code(), absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace moesaic
