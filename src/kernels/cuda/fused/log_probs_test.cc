// Log-probabilities against double precision and the CPU's log_sum_exp.
#include "kernels/cuda/fused/log_probs.h"

#include <algorithm>
#include <limits>

#include "kernels/cuda/fused/fused_shapes.h"
#include "kernels/cuda/fused/fused_test_util.h"

namespace moesaic::cuda {
namespace {

using test::DeviceTensor;

class LogProbs : public test::CudaTest {
 protected:
  std::vector<float> run(const std::vector<float>& logits, const std::vector<int32_t>& ids, int64_t rows) {
    const int64_t vocab = static_cast<int64_t>(logits.size()) / rows, per_row = static_cast<int64_t>(ids.size()) / rows;
    const DeviceTensor out = test::poisoned(DType::kF32, {rows, per_row});
    const absl::Status status = log_probs(stream(), {.logits = test::upload(DType::kF32, {rows, vocab}, logits),
                                                     .ids = test::upload(DType::kI32, {rows, per_row}, ids),
                                                     .log_probs = out});
    EXPECT_TRUE(status.ok()) << status.message();
    return test::download<float>(out);
  }
};

TEST_F(LogProbs, MatchDouble) {
  Rng rng(1);
  std::vector<std::array<int64_t, 3>> shapes = {{1, 4, 1}, {3, 1000, 21}, {2, 5000, 1024}};
  for (const int64_t rows : token_counts(kSampleRows)) shapes.push_back({rows, kVocab, 2});
  for (const auto& [rows, vocab, per_row] : shapes) {
    SCOPED_TRACE(testing::Message() << rows << " x " << vocab << ", " << per_row << " ids");
    std::vector<float> logits = test::gaussians(rng, rows * vocab, 4.0f);
    for (int64_t i = 0; i < rows * vocab; i += 97) logits[i] = -test::kInf;  // masked tokens
    logits[1] = 80.0f;
    std::vector<int32_t> ids(rows * per_row);
    for (int32_t& id : ids) id = static_cast<int32_t>(rng.below(vocab));
    const std::vector<float> got = run(logits, ids, rows);
    for (int64_t row = 0; row < rows; ++row) {
      double sum = 0.0;
      for (int64_t i = 0; i < vocab; ++i) sum += std::exp(double{logits[row * vocab + i]});
      EXPECT_NEAR(std::log(sum), log_sum_exp({logits.data() + row * vocab, static_cast<size_t>(vocab)}), 1e-5);
      for (int64_t i = row * per_row; i < (row + 1) * per_row; ++i) {
        const double want = logits[row * vocab + ids[i]] - std::log(sum);
        if (std::isinf(want)) {
          EXPECT_EQ(got[i], -test::kInf) << row;
        } else {
          EXPECT_NEAR(got[i], want, 2e-6 * std::max(4.0, std::fabs(want))) << row;
        }
      }
    }
  }
}

TEST_F(LogProbs, IdsOutsideAndNan) {
  const int32_t most = std::numeric_limits<int32_t>::max(), least = std::numeric_limits<int32_t>::min();
  std::vector<float> logits = {0, 0, 0, 0, 1, test::kNan, 0, 0, test::kNan, test::kNan, test::kNan, test::kNan};
  const std::vector<float> got = run(logits, {0, -1, 4, most, 0, 1, 2, least, 0, 1, 2, 3}, 3);
  EXPECT_NEAR(got[0], -std::log(4.0), 1e-6);
  for (const int i : {1, 2, 3, 7}) EXPECT_EQ(got[i], -test::kInf) << i;
  for (const int i : {4, 5, 6, 8, 9, 10, 11}) EXPECT_TRUE(std::isnan(got[i])) << i;
}

}  // namespace
}  // namespace moesaic::cuda
