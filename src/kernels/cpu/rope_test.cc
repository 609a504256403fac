// YaRN frequencies and magnitudes against published values, rotation against double precision.
#include <fstream>
#include <string>

#include "kernels/cpu/op_test_util.h"

namespace moesaic {
namespace {

using test::Owned;

RopeConfig deepseek_v3() {
  return {.dim = 64,
          .theta = 10000,
          .factor = 40,
          .original_max_position_embeddings = 4096,
          .mscale = 1,
          .mscale_all_dim = 1};
}

// An f32 tensor of a safetensors file, found by its name in the header's text.
std::vector<float> read_golden(const std::string& path, const std::string& name) {
  std::ifstream file(path, std::ios::binary);
  uint64_t header_bytes = 0;
  file.read(reinterpret_cast<char*>(&header_bytes), 8);
  std::string header(header_bytes, ' ');
  file.read(header.data(), static_cast<std::streamsize>(header_bytes));
  const size_t at = header.find("\"data_offsets\":[", header.find("\"" + name + "\"")) + 16;
  size_t used = 0;
  const uint64_t begin = std::stoull(header.substr(at), &used);
  const uint64_t end = std::stoull(header.substr(at + used + 1));
  std::vector<float> data((end - begin) / 4);
  file.seekg(static_cast<std::streamoff>(8 + header_bytes + begin));
  file.read(reinterpret_cast<char*>(data.data()), static_cast<std::streamsize>(end - begin));
  EXPECT_TRUE(file.good()) << path;
  return data;
}

TEST(Yarn, FrequenciesEqualTheReferenceOfTheDemoModel) {
  const RopeConfig config{.dim = 64,
                          .theta = 10000,
                          .factor = 4,
                          .original_max_position_embeddings = 1024,
                          .mscale = 1,
                          .mscale_all_dim = 1};
  double inv_freq[32];
  rope_inv_freq(config, inv_freq);
  const std::vector<float> want =
      read_golden(MOESAIC_SOURCE_DIR "/tests/data/golden/tiny-deepseek-v3/layers.safetensors", "inv_freq");
  ASSERT_EQ(want.size(), 32u);
  for (int i = 0; i < 32; ++i) EXPECT_NEAR(inv_freq[i], want[i], 2e-7 * want[i]) << i;
}

TEST(Yarn, PlainRopeWithFactorOne) {
  double inv_freq[4];
  rope_inv_freq({.dim = 8, .theta = 10000}, inv_freq);
  for (int i = 0; i < 4; ++i) EXPECT_DOUBLE_EQ(inv_freq[i], std::pow(10000.0, -2.0 * i / 8));
  EXPECT_EQ(rope_magnitude({.dim = 8, .theta = 10000}), 1.0);
  EXPECT_EQ(rope_softmax_factor({.dim = 8, .theta = 10000}), 1.0);
}

TEST(Yarn, InterpolatesLowFrequenciesOnly) {
  double yarn[32], plain[32];
  rope_inv_freq(deepseek_v3(), yarn);
  rope_inv_freq({.dim = 64, .theta = 10000}, plain);
  // The correction range of DeepSeek-V3 is [10, 23].
  for (int i = 0; i <= 10; ++i) EXPECT_DOUBLE_EQ(yarn[i], plain[i]) << i;
  for (int i = 11; i < 23; ++i) EXPECT_TRUE(yarn[i] < plain[i] && yarn[i] > plain[i] / 40) << i;
  for (int i = 23; i < 32; ++i) EXPECT_DOUBLE_EQ(yarn[i], plain[i] / 40) << i;
}

TEST(Yarn, Magnitude) {
  RopeConfig config = deepseek_v3();
  EXPECT_EQ(rope_magnitude(config), 1.0);
  EXPECT_NEAR(rope_softmax_factor(config), 1.3688879 * 1.3688879, 1e-6);
  config.mscale = config.mscale_all_dim = 0.707;
  EXPECT_EQ(rope_magnitude(config), 1.0);
  EXPECT_NEAR(rope_softmax_factor(config), std::pow(0.0707 * std::log(40.0) + 1, 2), 1e-12);
  config.mscale = 1;
  config.mscale_all_dim = 0;
  EXPECT_NEAR(rope_magnitude(config), 1.3689, 1e-4);
  EXPECT_EQ(rope_softmax_factor(config), 1.0);
  config.mscale_all_dim = 0.5;
  EXPECT_NEAR(rope_magnitude(config), (0.1 * std::log(40.0) + 1) / (0.05 * std::log(40.0) + 1), 1e-12);
}

TEST(Yarn, TableBeyondTheOriginalContext) {
  for (const double all_dim : {1.0, 0.0}) {
    RopeConfig config = deepseek_v3();
    config.mscale_all_dim = all_dim;
    const double magnitude = all_dim == 0.0 ? 0.1 * std::log(40.0) + 1 : 1.0;
    const Owned table(DType::kF32, {100001, 64});
    rope_table(config, table);
    double inv_freq[32];
    rope_inv_freq(config, inv_freq);
    for (const int64_t p : {0, 1, 4095, 4096, 4097, 100000}) {
      for (int i = 0; i < 32; ++i) {
        const float* pair = table.tensor.row<float>(p) + 2 * i;
        EXPECT_NEAR(pair[0], std::cos(static_cast<double>(p) * inv_freq[i]) * magnitude, 1e-7) << p << " " << i;
        EXPECT_NEAR(pair[1], std::sin(static_cast<double>(p) * inv_freq[i]) * magnitude, 1e-7) << p << " " << i;
        EXPECT_NEAR(std::hypot(pair[0], pair[1]), magnitude, 2e-7);
      }
    }
  }
}

class Rope : public testing::TestWithParam<std::tuple<int, int, int>> {};  // dim, heads, threads

// In place, and into rows of another width; both exactly as the formula in f32.
TEST_P(Rope, RotatesTheLastElementsOfEachHead) {
  const auto [dim, heads, threads] = GetParam();
  test::for_each_isa([&, dim = dim, heads = heads, threads = threads] {
    Rng rng(5);
    ThreadPool pool(threads);
    Stream stream(pool);
    const int64_t head_dim = dim + 10, y_head_dim = dim + 3, num_tokens = 45;
    const Owned table(DType::kF32, {300, dim});
    rope_table({.dim = dim, .theta = 10000}, table);
    const Owned x = test::random_f32(rng, {num_tokens, heads * head_dim});
    const Owned y = test::random_f32(rng, {num_tokens, heads * y_head_dim});
    const std::vector<float> before = test::values(x), y_before = test::values(y);
    std::vector<int32_t> positions;
    for (int64_t t = 0; t < num_tokens; ++t) positions.push_back(static_cast<int32_t>(rng.below(300)));
    rope(stream, {.x = x, .num_heads = heads, .table = table, .positions = positions, .y = y});
    EXPECT_EQ(test::values(x), before);
    rope(stream, {.x = x, .num_heads = heads, .table = table, .positions = positions, .y = x});
    for (int64_t i = 0; i < num_tokens * heads; ++i) {
      const float *in = before.data() + i * head_dim, *turn = table.tensor.row<float>(positions[i / heads]);
      const float *out = x.f32() + i * head_dim, *other = y.f32() + i * y_head_dim;
      for (int64_t j = 0; j < 10; ++j) EXPECT_EQ(in[j], out[j]);
      for (int64_t j = 0; j < 3; ++j) EXPECT_EQ(y_before[i * y_head_dim + j], other[j]);
      for (int64_t j = 0; j < dim; j += 2) {
        const double angle = positions[i / heads] / std::pow(10000.0, static_cast<double>(j) / dim);
        const float a = in[10 + j], b = in[11 + j];
        EXPECT_EQ(out[10 + j], a * turn[j] - b * turn[j + 1]);
        EXPECT_EQ(out[11 + j], b * turn[j] + a * turn[j + 1]);
        EXPECT_NEAR(out[10 + j], a * std::cos(angle) - b * std::sin(angle), 2e-6);
        EXPECT_NEAR(out[11 + j], a * std::sin(angle) + b * std::cos(angle), 2e-6);
        EXPECT_EQ(out[10 + j], other[3 + j]);
        EXPECT_EQ(out[11 + j], other[4 + j]);
      }
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Shapes, Rope,
                         testing::Combine(testing::Values(2, 6, 16, 64), testing::Values(1, 3, 8),
                                          testing::Values(1, 2)));

TEST(Rope, StridedRowsOfOneHead) {
  Rng rng(6);
  ThreadPool pool(2);
  Stream stream(pool);
  const Owned table(DType::kF32, {64, 16});
  rope_table({.dim = 16, .theta = 10000}, table);
  const Owned x = test::random_f32(rng, {9, 50});
  const Owned copy(DType::kF32, {9, 16});
  for (int64_t t = 0; t < 9; ++t) std::memcpy(copy.tensor.row<float>(t), x.tensor.row<float>(t) + 30, 64);
  const std::vector<int32_t> positions = {0, 1, 2, 3, 63, 5, 6, 7, 8};
  const Tensor part = x.tensor.cols(20, 46);
  rope(stream, {.x = part, .table = table, .positions = positions, .y = part});
  rope(stream, {.x = copy, .table = table, .positions = positions, .y = copy});
  for (int64_t t = 0; t < 9; ++t) {
    EXPECT_EQ(0, std::memcmp(copy.tensor.row<float>(t), x.tensor.row<float>(t) + 30, 64));
  }
}

}  // namespace
}  // namespace moesaic
