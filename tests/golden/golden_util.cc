#include "golden_util.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include <unistd.h>

namespace moesaic::testing {

Golden::Golden(const std::string& file) {
  // A checkpoint directory holds one file; link the golden into one of its own.
  namespace fs = std::filesystem;
  const fs::path dir = fs::path(::testing::TempDir()) /
                       ("golden_" + std::to_string(std::hash<std::string>{}(file)) + "_" + std::to_string(getpid()));
  fs::create_directories(dir);
  const fs::path link = dir / "model.safetensors";
  fs::remove(link);
  fs::create_symlink(source_path(file), link);
  auto opened = Checkpoint::open(dir.string());
  fs::remove_all(dir);
  if (!opened.ok()) ADD_FAILURE() << opened.status();
  MOESAIC_CHECK(opened.ok());
  checkpoint_ = *std::move(opened);
}

std::vector<float> Golden::f32(const std::string& name) const {
  auto tensor = checkpoint_->tensor(name);
  MOESAIC_CHECK(tensor.ok());
  return {tensor->f32(), tensor->f32() + tensor->num_elements()};
}

std::vector<int32_t> Golden::i32(const std::string& name) const {
  auto tensor = checkpoint_->tensor(name);
  MOESAIC_CHECK(tensor.ok());
  return {tensor->i32(), tensor->i32() + tensor->num_elements()};
}

std::vector<std::string> Golden::prefixes(const std::string& suffix) const {
  std::vector<std::string> found;
  for (const std::string& name : checkpoint_->names()) {
    if (name.ends_with("." + suffix)) found.push_back(name.substr(0, name.size() - suffix.size() - 1));
  }
  return found;
}

std::unique_ptr<RankGroup> load_group(const std::string& model, const RunOptions& options) {
  const int64_t block_tokens = 64;
  RankGroupOptions load;
  load.model_dir = source_path(model);
  load.model = {
      .layout = options.layout,
      .activations = options.activations,
      .kv_dtype = options.kv_dtype,
      .kv_block_tokens = block_tokens,
      .num_kv_blocks = std::max<int64_t>(options.max_sequences, 1) * 2 + options.max_position / block_tokens + 1,
      .max_tokens_per_step = options.max_tokens_per_step,
      .max_position = options.max_position,
      .max_chunks = options.max_sequences,
      .max_decode_tokens = options.max_sequences,
      .max_logit_rows = options.max_tokens_per_step,
      .load_mtp = options.load_mtp};
  auto group = RankGroup::load(load);
  if (!group.ok()) ADD_FAILURE() << group.status();
  MOESAIC_CHECK(group.ok());
  return *std::move(group);
}

SequenceRunner::SequenceRunner(RankGroup& group, const RunOptions& options, int dp_rank, int first_block)
    : group_(group), options_(options), dp_rank_(dp_rank), block_table_(options.max_position / 64 + 1) {
  std::iota(block_table_.rbegin(), block_table_.rend(), first_block);  // descending: order must not matter
}

std::vector<float> SequenceRunner::step(const std::vector<int32_t>& ids, bool is_prefill, A2aMode mode) {
  const SequenceChunk chunk = {.token_begin = 0,
                               .num_tokens = static_cast<int32_t>(ids.size()),
                               .kv_begin = kv_len_,
                               .is_prefill = is_prefill,
                               .block_table = block_table_.data()};
  std::vector<int32_t> rows(ids.size());
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<float> logits;
  const absl::Status status = group_.run([&](int rank) -> absl::Status {
    ForwardBatch batch = {.a2a_mode = mode};
    if (options_.layout.dp_rank(rank) == dp_rank_) {
      batch.token_ids = ids;
      batch.chunks = {&chunk, 1};
      batch.logit_rows = rows;
    }
    ForwardResult result;
    MOESAIC_RETURN_IF_ERROR(group_.model(rank).forward(group_.context(rank), batch, &result));
    if (rank == dp_rank_ * options_.layout.tp_size) {
      logits.assign(result.logits.f32(), result.logits.f32() + result.logits.num_elements());
    }
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  kv_len_ += static_cast<int32_t>(ids.size());
  return logits;
}

std::vector<float> SequenceRunner::mtp(const std::vector<int32_t>& ids) {
  MOESAIC_CHECK_EQ(options_.layout.world_size(), 1);
  const std::vector<int32_t> first(ids.begin(), ids.end() - 1), next(ids.begin() + 1, ids.end());
  const SequenceChunk chunk = {.token_begin = 0,
                               .num_tokens = static_cast<int32_t>(first.size()),
                               .kv_begin = 0,
                               .is_prefill = true,
                               .block_table = block_table_.data()};
  std::vector<int32_t> rows(first.size());
  std::iota(rows.begin(), rows.end(), 0);
  const SequenceChunk all = {
      .num_tokens = static_cast<int32_t>(ids.size()), .is_prefill = true, .block_table = block_table_.data()};
  ForwardResult main, result;
  const RankContext& context = group_.context(0);
  absl::Status status = group_.model(0).forward(context, {.token_ids = ids, .chunks = {&all, 1}}, &main);
  EXPECT_TRUE(status.ok()) << status;
  status = group_.model(0).forward_mtp(context, {.token_ids = first, .chunks = {&chunk, 1}, .logit_rows = rows},
                                       main.hidden.rows(0, first.size()), next, &result);
  EXPECT_TRUE(status.ok()) << status;
  return {result.logits.f32(), result.logits.f32() + result.logits.num_elements()};
}

int argmax(const float* logits, int64_t count) {
  return static_cast<int>(std::max_element(logits, logits + count) - logits);
}

float max_abs_difference(const float* a, const float* b, int64_t count) {
  float worst = 0.0f;
  for (int64_t i = 0; i < count; ++i) {
    const float difference = std::fabs(a[i] - b[i]);
    if (!(difference <= worst)) worst = difference;  // NaN wins
  }
  return worst;
}

double nll(const float* logits, int64_t count, int32_t id) {
  const float best = *std::max_element(logits, logits + count);
  double sum = 0.0;
  for (int64_t i = 0; i < count; ++i) sum += std::exp(static_cast<double>(logits[i]) - best);
  return std::log(sum) + best - logits[id];
}

}  // namespace moesaic::testing
