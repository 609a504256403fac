// The engine over the real model: tokens and logprobs have the same bits with the prefix cache on and off, whatever the
// chunks, the company in a step, and the layout.
#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>

#include "../golden/golden_util.h"
#include "base/clock.h"
#include "base/rng.h"
#include "engine/engine.h"
#include "engine/model_executor.h"

namespace moesaic::testing {
namespace {

constexpr int kBlock = 8, kBlocks = 96, kMaxPosition = 256, kMaxRunning = 8, kMaxStep = 256;
constexpr int64_t kVocab = 4096;
constexpr uint64_t kSeed = 31;

struct Answer {
  std::vector<int32_t> token_ids;
  std::vector<float> logprobs;
  int num_cached = 0;
};

std::unique_ptr<RankGroup> load(int ep_size) {
  RankGroupOptions options;
  options.model_dir = source_path(kTinyModel);
  options.model = {.layout = *ParallelLayout::make(ep_size, 0, 1),
                   .kv_block_tokens = kBlock,
                   .num_kv_blocks = kBlocks,
                   .max_tokens_per_step = kMaxStep,
                   .max_position = kMaxPosition,
                   .max_chunks = kMaxRunning + kMaxStep / 8 + 1,
                   .max_decode_tokens = kMaxRunning,
                   .max_logit_rows = kMaxStep};
  auto group = RankGroup::load(options);
  MOESAIC_CHECK(group.ok());
  return *std::move(group);
}

// An engine over a group's model, and the answers to what it was asked.
class Served {
 public:
  Served(RankGroup& group, int dp_size, bool prefix_cache, int tokens_per_step) {
    const RunRanks run_ranks = [&group](const RankBody& body) {
      return group.run([&](int rank) {
        DeepseekModel* model = &group.model(rank);
        return body(group.context(rank),
                    {.forward = [model](const RankContext& context, const ForwardBatch& batch, ForwardResult* result) {
                      return model->forward(context, batch, result);
                    }});
      });
    };
    EngineOptions options;
    options.dp_size = dp_size;
    options.context_length = kMaxPosition;
    options.vocab_size = kVocab;
    options.num_kv_blocks = kBlocks;
    options.kv_block_tokens = kBlock;
    options.max_running_requests = kMaxRunning;
    options.max_tokens_per_step = tokens_per_step;
    options.prefix_cache = prefix_cache;
    auto executor = std::make_unique<ModelExecutor>(ModelExecutorOptions{.layout = *ParallelLayout::make(dp_size, 0, 1),
                                                                         .vocab_size = kVocab,
                                                                         .max_low_latency_tokens = kMaxRunning},
                                                    run_ranks);
    engine_ = std::make_unique<Engine>(std::move(options), std::move(executor), nullptr, real_clock());
  }

  // Submits all at once and waits for all.
  void ask(const std::vector<Request>& requests) {
    for (const Request& request : requests) {
      const absl::Status status = engine_->submit(request, [this](RequestOutput output) { take(std::move(output)); });
      EXPECT_TRUE(status.ok()) << status;
    }
    std::unique_lock lock(mutex_);
    num_open_ += static_cast<int>(requests.size());
    const bool done = changed_.wait_for(lock, std::chrono::seconds(120), [&] { return num_open_ == 0; });
    ASSERT_TRUE(done);
  }

  const Answer& answer(RequestId id) { return answers_[id]; }

 private:
  void take(RequestOutput output) {
    std::lock_guard lock(mutex_);
    Answer& answer = answers_[output.id];
    answer.num_cached = output.num_cached_tokens;
    answer.token_ids.insert(answer.token_ids.end(), output.token_ids.begin(), output.token_ids.end());
    for (const TokenLogprob& logprob : output.logprobs) {
      answer.logprobs.push_back(logprob.logprob);
      for (const auto& [id, value] : logprob.top) answer.logprobs.push_back(value);
    }
    if (output.finish_reason != FinishReason::kNone) --num_open_;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RequestId, Answer> answers_;
  int num_open_ = 0;
  std::unique_ptr<Engine> engine_;  // last: its thread uses the above
};

// The first `common` tokens are those of all prompts.
Request make_request(RequestId id, int common, int own) {
  Rng shared(kSeed);
  Rng rng(kSeed + id);
  Request request;
  request.id = id;
  for (int i = 0; i < common + own; ++i) {
    request.prompt_ids.push_back(static_cast<int32_t>((i < common ? shared : rng).below(kVocab)));
  }
  request.max_tokens = 6;
  request.ignore_eos = true;
  request.sampling.temperature = 0.0f;
  request.num_logprobs = 3;
  return request;
}

// Cached lengths 0, 8, 40 and 200 with 7 new tokens each, in one step and in small ones.
TEST(PrefixCacheEquivalence, SameBitsWithTheCacheOnAndOff) {
  const Request whole = make_request(1, 200, 1);
  const std::vector<Request> requests = {make_request(2, 0, 7), make_request(3, 8, 7), make_request(4, 40, 7),
                                         make_request(5, 200, 7)};
  for (const int ep_size : {1, 2}) {
    const std::unique_ptr<RankGroup> group = load(ep_size);
    Served plain(*group, ep_size, /*prefix_cache=*/false, kMaxStep);
    for (const Request& request : requests) plain.ask({request});
    for (const int tokens_per_step : {16, 64, kMaxStep}) {
      SCOPED_TRACE(::testing::Message() << "EP" << ep_size << ", " << tokens_per_step << " tokens a step");
      Served cached(*group, ep_size, /*prefix_cache=*/true, tokens_per_step);
      cached.ask({whole});
      cached.ask(requests);
      for (const Request& request : requests) {
        SCOPED_TRACE(::testing::Message() << "request " << request.id);
        EXPECT_EQ(cached.answer(request.id).token_ids, plain.answer(request.id).token_ids);
        EXPECT_EQ(cached.answer(request.id).logprobs, plain.answer(request.id).logprobs);
      }
      EXPECT_EQ(cached.answer(2).num_cached, 0);
      EXPECT_EQ(cached.answer(5).num_cached, 200);
      EXPECT_GT(cached.answer(4).num_cached + cached.answer(3).num_cached, 0);
    }
  }
}

}  // namespace
}  // namespace moesaic::testing
