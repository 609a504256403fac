// Each operation captured in a CUDA graph: a replay gives the bits of a call, also where rows, ids or counts changed
// after the capture.
#include <gtest/gtest.h>

#include <functional>

#include "kernels/cuda/gemm/fp8_gemm.h"
#include "kernels/cuda/gemm/gemm_test_util.h"

namespace moesaic::cuda {
namespace {

using test::DeviceTensor;
using test::Weights;

using Launch = std::function<absl::Status(cudaStream_t)>;

// x [rows, k] with the scales of `matrices` matrices; new random values each time.
struct Input {
  Input(int64_t matrices, int64_t rows, int64_t k)
      : x(test::poisoned(DType::kE4M3, {rows, k})),
        scales(test::poisoned(DType::kF32, {num_scales(matrices, rows / matrices, k)})) {}
  void refill(Rng& rng) {
    const std::vector<uint8_t> values = test::random_e4m3(rng, x.tensor.num_elements());
    const std::vector<float> factors = test::random_scales(rng, scales.tensor.num_elements());
    x.buffer.upload(values.data(), values.size());
    scales.buffer.upload(factors.data(), factors.size() * sizeof(float));
  }
  DeviceTensor x, scales;
};

class Fp8GemmGraph : public test::CudaTest {
 protected:
  // Captures `launch`, then three times: `change` the inputs, replay, and compare y with what a call gives.
  void check_replays(const Launch& launch, const std::function<void()>& change, DeviceTensor& y) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    MOESAIC_CUDA_CHECK(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal));
    const absl::Status captured = launch(stream());
    MOESAIC_CUDA_CHECK(cudaStreamEndCapture(stream(), &graph));
    ASSERT_TRUE(captured.ok()) << captured.message();
    MOESAIC_CUDA_CHECK(cudaGraphInstantiate(&replay, graph, 0));
    std::vector<uint16_t> last;
    for (int round = 0; round < 3; ++round) {
      change();
      y.buffer.fill(0xff);
      MOESAIC_CUDA_CHECK(cudaDeviceSynchronize());
      MOESAIC_CUDA_CHECK(cudaGraphLaunch(replay, stream()));
      const std::vector<uint16_t> got = test::download<uint16_t>(y);
      y.buffer.fill(0xff);
      MOESAIC_CUDA_CHECK(cudaDeviceSynchronize());
      ASSERT_TRUE(launch(stream()).ok());
      ASSERT_EQ(got, test::download<uint16_t>(y)) << "round " << round;
      ASSERT_NE(got, last) << "the inputs of round " << round << " were not read";
      last = got;
    }
    MOESAIC_CUDA_CHECK(cudaGraphExecDestroy(replay));
    MOESAIC_CUDA_CHECK(cudaGraphDestroy(graph));
  }
};

TEST_F(Fp8GemmGraph, Dense) {
  for (const int64_t m : {1, 40, 128, 700}) {  // a split, more rows, large tiles
    SCOPED_TRACE(str_cat("m ", m));
    Rng rng(m);
    const int64_t n = 1536, k = 2048;
    const Weights w(rng, 1, n, k);
    Input in(1, m, k);
    DeviceTensor y = test::poisoned(DType::kBF16, {m, n});
    const Tensor scales(in.scales.tensor.raw(), DType::kF32, {k / kScaleGroup, scale_row_stride(m)});
    check_replays(
        [&](cudaStream_t s) {
          return fp8_gemm(s, {.x = in.x, .x_scales = scales, .w = w.one(), .w_scales = w.one_scales(), .y = y});
        },
        [&] { in.refill(rng); }, y);
  }
}

TEST_F(Fp8GemmGraph, Contiguous) {
  Rng rng(2);
  const int64_t rows = 768, n = 520, k = 640, groups = 3;
  const Weights w(rng, groups, n, k);
  Input in(1, rows, k);
  DeviceTensor ids = test::poisoned(DType::kI32, {rows}), y = test::poisoned(DType::kBF16, {rows, n});
  const Tensor scales(in.scales.tensor.raw(), DType::kF32, {k / kScaleGroup, rows});
  const Fp8GemmContiguousArgs args = {
      .x = in.x, .x_scales = scales, .w = w.values_on_device, .w_scales = w.scales_on_device, .row_ids = ids, .y = y};
  check_replays([&](cudaStream_t s) { return fp8_gemm_contiguous(s, args); },
                [&] {
                  in.refill(rng);
                  std::vector<int32_t> values(rows, -1);
                  for (int64_t tile = 0; tile < rows; tile += 128) {
                    const int64_t count = 1 + static_cast<int64_t>(rng.below(128));
                    std::fill_n(values.begin() + tile, count, static_cast<int32_t>(rng.below(groups)));
                  }
                  ids.buffer.upload(values.data(), values.size() * sizeof(int32_t));
                },
                y);
}

TEST_F(Fp8GemmGraph, Masked) {
  for (const int64_t expected : {4, 64, 300}) {
    SCOPED_TRACE(str_cat("expected ", expected));
    Rng rng(expected);
    const int64_t groups = 5, rows = 320, n = 520, k = 640;
    const Weights w(rng, groups, n, k);
    Input in(groups, groups * rows, k);
    DeviceTensor counts = test::poisoned(DType::kI32, {groups}), y = test::poisoned(DType::kBF16, {groups, rows, n});
    const Fp8GemmMaskedArgs args = {
        .x = Tensor(in.x.tensor.raw(), DType::kE4M3, {groups, rows, k}),
        .x_scales = Tensor(in.scales.tensor.raw(), DType::kF32, {groups, k / kScaleGroup, rows}),
        .w = w.values_on_device,
        .w_scales = w.scales_on_device,
        .group_rows = counts,
        .y = y,
        .expected_rows = expected};
    check_replays([&](cudaStream_t s) { return fp8_gemm_masked(s, args); },
                  [&] {
                    in.refill(rng);
                    std::vector<int32_t> values(groups);
                    for (int32_t& value : values) value = static_cast<int32_t>(rng.below(rows + 1));
                    counts.buffer.upload(values.data(), values.size() * sizeof(int32_t));
                  },
                  y);
  }
}

TEST_F(Fp8GemmGraph, Batched) {
  Rng rng(4);
  const int64_t m = 48, heads = 6, n = 128, k = 512;
  const Weights w(rng, heads, n, k);
  Input in(1, m, heads * k);
  DeviceTensor y = test::poisoned(DType::kBF16, {m, heads, n});
  const Tensor scales(in.scales.tensor.raw(), DType::kF32, {heads * k / kScaleGroup, m});
  const Fp8GemmBatchedArgs args = {
      .x = in.x, .x_scales = scales, .w = w.values_on_device, .w_scales = w.scales_on_device, .y = y};
  check_replays([&](cudaStream_t s) { return fp8_gemm_batched(s, args); }, [&] { in.refill(rng); }, y);
}

}  // namespace
}  // namespace moesaic::cuda
