#include "model/random_checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <map>

#include "model/checkpoint.h"

namespace moesaic {
namespace {

const std::string kRoot = MOESAIC_SOURCE_DIR;

std::vector<std::string> real_checkpoints() {
  std::vector<std::string> dirs = {kRoot + "/models/tiny-deepseek-v3"};
  for (const char* family : {"/tests/data/micro-deepseek-v3", "/tests/data/micro-deepseek-v2"}) {
    for (const auto& entry : std::filesystem::directory_iterator(kRoot + family)) {
      if (entry.is_directory()) dirs.push_back(entry.path().string());
    }
  }
  return dirs;
}

// The files that real checkpoints have say what belongs into one.
TEST(RandomCheckpoint, HasTheTensorsOfRealOnes) {
  for (const std::string& dir : real_checkpoints()) {
    SCOPED_TRACE(dir);
    const auto config = ModelConfig::load(dir);
    const auto checkpoint = Checkpoint::open(dir);
    ASSERT_TRUE(config.ok() && checkpoint.ok());
    std::map<std::string, TensorSpec> specs;
    for (const TensorSpec& spec : checkpoint_tensors(*config)) specs.emplace(spec.name, spec);
    EXPECT_EQ(specs.size(), checkpoint_tensors(*config).size()) << "a name came twice";
    for (const std::string& name : (*checkpoint)->names()) {
      const auto found = specs.find(name);
      ASSERT_NE(found, specs.end()) << name;
      const auto tensor = (*checkpoint)->tensor(name);
      EXPECT_EQ(tensor->shape(), found->second.shape) << name;
      EXPECT_EQ(tensor->dtype(), found->second.dtype) << name;
      specs.erase(found);
    }
    EXPECT_TRUE(specs.empty()) << specs.begin()->first;
  }
}

TEST(RandomCheckpoint, IsWrittenOnceAndTheSameForASeed) {
  const std::string out = testing::TempDir() + "/random_checkpoint";
  std::filesystem::remove_all(out);
  int64_t written = 0;
  RandomCheckpoint args{.config_path = kRoot + "/tests/data/micro-deepseek-v3/fp8_odd/config.json",
                        .out_dir = out + "/a",
                        .tokenizer_dir = kRoot + "/models/tiny-deepseek-v3",
                        .seed = 3,
                        .progress = [&](int64_t num_bytes) { written += num_bytes; }};
  ASSERT_TRUE(write_random_checkpoint(args).ok());
  EXPECT_EQ(write_random_checkpoint(args).code(), absl::StatusCode::kAlreadyExists);
  args.out_dir = out + "/b";
  ASSERT_TRUE(write_random_checkpoint(args).ok());
  const auto first = Checkpoint::open(out + "/a"), second = Checkpoint::open(out + "/b");
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(written, 2 * (*first)->num_bytes());
  for (const std::string& name : (*first)->names()) {
    const Tensor a = *(*first)->tensor(name), b = *(*second)->tensor(name);
    ASSERT_EQ(std::memcmp(a.raw(), b.raw(), a.num_bytes()), 0) << name;
  }
  EXPECT_TRUE(std::filesystem::exists(out + "/a/tokenizer.json"));
  args.config_path = out + "/none.json";
  EXPECT_EQ(write_random_checkpoint(args).code(), absl::StatusCode::kNotFound);
  std::filesystem::remove_all(out);
}

}  // namespace
}  // namespace moesaic
