// Helpers of this folder's tests: FakeExecutor (a model whose logits depend on every cached row, its position and the
// path that wrote it), a byte tokenizer, and Collector (a sink that keeps everything).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace moesaic {

// Each row of its "KV cache" holds a mix of token, position and path (prefill or decode). The logits after position p
// are drawn from a hash of rows 0 .. p read through the block table: a wrong block, position, path or a row written by
// another sequence changes the tokens.
class FakeExecutor final : public Executor {
 public:
  explicit FakeExecutor(const EngineOptions& options);
  absl::Status execute(const StepPlan& plan, StepLogits* logits) override;
  std::function<void(const StepPlan&)> on_step;  // called first

  // A draft module that guesses what greedy sampling would give, or the script, each token right with this probability.
  // Its own cache is checked: a chunk that drafts has the right row at every position before.
  void enable_drafts(int max_depth, double probability);
  int max_draft_depth() const override { return max_draft_depth_; }
  absl::Status draft(const StepPlan& plan, const DraftPlan& drafts, DraftTokens* tokens) override;
  int num_wrong_draft_rows() const { return num_wrong_draft_rows_; }

 private:
  void run_chunk(int group, const PlannedChunk& chunk);
  size_t slot(const PlannedChunk& chunk, int32_t position) const;
  void append_logits(uint64_t hash, std::vector<float>* logits) const;
  void guess(int group, const PlannedChunk& chunk, int32_t num_rows, int32_t next_id, std::span<int32_t> guesses);
  int32_t most_likely(uint64_t hash, const PlannedChunk& chunk, int32_t position) const;

  int block_tokens_;
  int64_t vocab_size_;
  int64_t max_tokens_;
  std::vector<std::vector<uint64_t>> rows_;  // per group
  std::vector<std::vector<float>> logits_;   // per group
  int max_draft_depth_ = 0;
  double draft_probability_ = 0.0;
  int num_wrong_draft_rows_ = 0;
  std::vector<std::vector<uint64_t>> tokens_;      // per group: what each row was computed from
  std::vector<std::vector<uint64_t>> draft_rows_;  // per group: what each row says comes next
  std::vector<int32_t> script_;
  std::map<RequestId, int32_t> num_prompt_;  // tokens of those seen
};

constexpr int32_t kEos = 300;
// Ids 0..255 are the bytes; then the texts of kWords; 300 is the special token <eos>.
std::unique_ptr<Tokenizer> byte_word_tokenizer();
// Ids for a script: longest words first, else bytes.
std::vector<int32_t> ids_of(const std::vector<std::string>& pieces);

// vocab 301, context 256, 16 blocks of 4, the fixture "small pool".
EngineOptions small_options();
Request make_request(RequestId id, std::vector<int32_t> prompt_ids, int32_t max_tokens);
// Deterministic, different for every id.
std::vector<int32_t> make_prompt(RequestId id, int length);

struct Result {
  std::string text;
  std::vector<std::string> pieces;
  std::vector<int32_t> token_ids;
  std::vector<TokenLogprob> logprobs;
  std::vector<TokenLogprob> prompt_logprobs;
  RequestOutput last;
  int num_outputs = 0;
  int num_finished = 0;
};

class Collector {
 public:
  OutputSink sink();
  // Waits until `count` requests have ended (CHECK after 60 s).
  void wait(int count);
  // Waits until this request has produced a token.
  void wait_for_token(RequestId id);
  std::map<RequestId, Result> results();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RequestId, Result> results_;
  int num_finished_ = 0;
};

}  // namespace moesaic
