// attention_bias in config.json and the biases in the checkpoint must agree: a bias that is neither filled nor refused
// would silently count as zero.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include <unistd.h>

#include "golden_util.h"

namespace moesaic::testing {
namespace {

// The status of loading `model` with `from` in its config.json replaced by `to`.
absl::Status load_with_config(const std::string& model, const std::string& from, const std::string& to) {
  namespace fs = std::filesystem;
  const fs::path source = source_path(model);
  const fs::path dir = fs::path(::testing::TempDir()) / ("bias_" + std::to_string(getpid()));
  fs::create_directories(dir);
  fs::create_symlink(source / "model.safetensors", dir / "model.safetensors");
  std::stringstream text;
  text << std::ifstream(source / "config.json").rdbuf();
  std::string config = text.str();
  EXPECT_NE(config.find(from), std::string::npos) << config;
  config.replace(config.find(from), from.size(), to);
  std::ofstream(dir / "config.json") << config;
  RankGroupOptions options;
  options.model_dir = dir.string();
  options.model = {.num_kv_blocks = 2,
                   .max_tokens_per_step = 8,
                   .max_position = 64,
                   .max_chunks = 1,
                   .max_decode_tokens = 1,
                   .max_logit_rows = 8};
  const absl::Status status = RankGroup::load(options).status();
  fs::remove_all(dir);
  return status;
}

TEST(AttentionBias, PromisedButAbsent) {
  const absl::Status status = load_with_config("tests/data/micro-deepseek-v3/base", "\"vocab_size\"",
                                               "\"attention_bias\": true, \"vocab_size\"");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_NE(std::string(status.message()).find("self_attn.q_a_proj.bias"), std::string::npos) << status;
}

TEST(AttentionBias, PresentButNotPromised) {
  const absl::Status status = load_with_config("tests/data/micro-deepseek-v3/attn_bias", "\"attention_bias\": true",
                                               "\"attention_bias\": false");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_NE(std::string(status.message()).find("_proj"), std::string::npos) << status;
  EXPECT_NE(std::string(status.message()).find("attention_bias"), std::string::npos) << status;
}

}  // namespace
}  // namespace moesaic::testing
