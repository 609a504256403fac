// KernelBench on work of every kind: what its lines say and what enters the kernel table.
#include "kernels/cuda/bench_util.h"

#include <gtest/gtest.h>

#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {
namespace {

class KernelBenchTest : public testing::Test {
 protected:
  void SetUp() override {
    auto bench = KernelBench::open(0, [this](const std::string& line) { lines_.push_back(line); });
    if (!bench.ok()) GTEST_SKIP() << bench.status().message();
    bench_ = *std::move(bench);
    ints_ = bench_->alloc(DType::kI32, {20});
  }
  bool says(const char* field) const { return lines_.back().find(field) != std::string::npos; }

  std::vector<std::string> lines_;
  std::unique_ptr<KernelBench> bench_;
  Tensor ints_;
};

TEST_F(KernelBenchTest, WorkWithoutBytesHasNoShare) {
  bench_->measure({.op = "plan", .m = 1, .dtype = "i32"}, {},
                  [&](cudaStream_t stream) { MOESAIC_CUDA_CHECK(cudaMemsetAsync(ints_.raw(), 0, 4, stream)); });
  EXPECT_EQ(lines_.size(), 2u);  // the device, the work
  EXPECT_FALSE(says("percent")) << lines_.back();
  ASSERT_EQ(bench_->rows().size(), 1u);
  EXPECT_EQ(bench_->rows()[0].op, "plan");
}

TEST_F(KernelBenchTest, ChainUsesItsOperandsInTurn) {
  std::vector<int> uses(20, 0);
  bench_->measure_chain({.op = "set", .m = 1, .dtype = "i32"}, {.bytes = 4, .variant = "another"},
                        [&](cudaStream_t stream, int i) {
                          ++uses.at(i);
                          MOESAIC_CUDA_CHECK(cudaMemsetAsync(ints_.i32() + i, 0, 4, stream));
                        });
  for (int i = 1; i < 20; ++i) EXPECT_EQ(uses[i], 1) << i;
  EXPECT_GT(uses[0], 1) << "the runs between flushes";
  EXPECT_TRUE(says("chain_us") && says("percent_of_copy")) << lines_.back();
  EXPECT_TRUE(bench_->rows().empty()) << "a variant";
}

}  // namespace
}  // namespace moesaic::cuda
