// Reading reference outputs and running prompts through a RankGroup, for the golden and equivalence tests.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/checkpoint.h"
#include "model/rank_group.h"

namespace moesaic::testing {

inline std::string source_path(const std::string& relative) {
  return std::string(MOESAIC_SOURCE_DIR) + "/" + relative;
}
inline const char kTinyModel[] = "models/tiny-deepseek-v3";
inline const char kTinyGolden[] = "tests/data/golden/tiny-deepseek-v3";

// A safetensors file under the project's root.
class Golden {
 public:
  explicit Golden(const std::string& file);
  std::vector<float> f32(const std::string& name) const;
  std::vector<int32_t> i32(const std::string& name) const;
  bool contains(const std::string& name) const { return checkpoint_->contains(name); }
  // Names of the form "X.suffix", without the suffix.
  std::vector<std::string> prefixes(const std::string& suffix) const;

 private:
  std::unique_ptr<Checkpoint> checkpoint_;
};

struct RunOptions {
  ParallelLayout layout;
  ActivationMode activations = ActivationMode::kF32;
  DType kv_dtype = DType::kF32;
  int64_t max_tokens_per_step = 2048;
  int64_t max_position = 2048;
  int64_t max_sequences = 64;
  bool load_mtp = false;
};

// `model` is relative to the project's root. Fails the test on errors.
std::unique_ptr<RankGroup> load_group(const std::string& model, const RunOptions& options);

// One sequence on DP group `dp_rank`, with its own cache blocks; the other groups take part with zero tokens.
class SequenceRunner {
 public:
  // Blocks [first_block, first_block + blocks for max_position).
  SequenceRunner(RankGroup& group, const RunOptions& options, int dp_rank = 0, int first_block = 0);
  // Runs the next tokens and returns the logits of all of them, [n * vocab].
  std::vector<float> prefill(const std::vector<int32_t>& ids) { return step(ids, true, A2aMode::kNormal); }
  std::vector<float> decode(int32_t id, A2aMode mode = A2aMode::kLowLatency) { return step({id}, false, mode); }
  std::vector<float> step(const std::vector<int32_t>& ids, bool is_prefill, A2aMode mode);
  // After prefill(ids): the MTP module's logits for tokens 0 .. n-2.
  std::vector<float> mtp(const std::vector<int32_t>& ids);

 private:
  RankGroup& group_;
  RunOptions options_;
  int dp_rank_;
  std::vector<int32_t> block_table_;
  int32_t kv_len_ = 0;
};

int argmax(const float* logits, int64_t count);
float max_abs_difference(const float* a, const float* b, int64_t count);
// -log softmax(logits)[id], in double.
double nll(const float* logits, int64_t count, int32_t id);

}  // namespace moesaic::testing
