#include "kernels/cuda/gemm/bf16_gemm.h"

#include "kernels/cuda/args_check.h"
#include "kernels/cuda/gemm/bf16_gemm_kernel.cuh"
#include "kernels/cuda/gemm/gemm_config.h"
#include "kernels/cuda/gemm/launch.cuh"
#include "tensor/cuda/device.h"
#include "tensor/cuda/tensor_map.h"

namespace moesaic::cuda {
namespace {

constexpr int kGroup = 64;  // of k, 128 bytes; the last may be shorter, TMA fills it with zeros
constexpr bool kSwizzled = true;

template <int kTokens, int kColumns, typename Out>
absl::Status launch(cudaStream_t stream, const Bf16GemmArgs& args, int split) {
  using Shared = Bf16GemmShared<kTokens, kColumns>;
  const int64_t m = args.x.dim(0), k = args.x.dim(1), n = args.w.dim(0);
  MOESAIC_ASSIGN_OR_RETURN(
      const CUtensorMap x_map,
      make_tensor_map(args.x.raw(), DType::kBF16, {k, m}, {args.x.row_stride() * 2}, {kGroup, kTokens}, kSwizzled));
  MOESAIC_ASSIGN_OR_RETURN(const CUtensorMap w_map,
                           make_tensor_map(args.w.raw(), DType::kBF16, {k, n}, {k * 2}, {kGroup, kColumns}, kSwizzled));
  const Bf16GemmParams params = {.y = args.y.raw(),
                                 .y_row_stride = args.y.row_stride(),
                                 .rows = static_cast<int>(m),
                                 .n = static_cast<int>(n),
                                 .k_groups = static_cast<int>((k + kGroup - 1) / kGroup),
                                 .split = split,
                                 .share = (kTokens + split - 1) / split};
  const int64_t tiles = (m + kTokens - 1) / kTokens * ((n + kColumns - 1) / kColumns);
  return launch_clusters(stream, bf16_gemm_kernel<kTokens, kColumns, Out>, static_cast<int>(tiles * split),
                         Shared::kThreads, Shared::kBytes, split, params, x_map, w_map);
}

template <int kTokens, int kColumns>
absl::Status launch_out(cudaStream_t stream, const Bf16GemmArgs& args, int split) {
  return args.y.dtype() == DType::kF32 ? launch<kTokens, kColumns, float>(stream, args, split)
                                       : launch<kTokens, kColumns, __nv_bfloat16>(stream, args, split);
}

template <int kTokens>
absl::Status launch_tokens(cudaStream_t stream, const Bf16GemmArgs& args, const Bf16GemmConfig& config) {
  return config.columns == 64 ? launch_out<kTokens, 64>(stream, args, config.split)
                              : launch_out<kTokens, 128>(stream, args, 1);
}

}  // namespace

absl::Status bf16_gemm(cudaStream_t stream, const Bf16GemmArgs& args) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const int64_t m = args.x.dim(0), k = args.x.dim(1), n = args.w.dim(0);
  const DType y_dtype = args.y.dtype() == DType::kF32 ? DType::kF32 : DType::kBF16;
  ArgsCheck check("bf16_gemm");
  check.divisible("k", k, 8).divisible("n", n, 8);
  check.size("rows", m, 0, kMost).size("n", n, 8, kMost).size("k", k, 8, kMost);
  check.require((m / 16 + 1) * (n / 64 + 1) <= kMost / kMaxSplit, "at most 2^27 tiles");
  check.matrix("x", args.x, DType::kBF16, m, k).tensor("w", args.w, DType::kBF16, {n, k});
  check.matrix("y", args.y, y_dtype, m, n);
  MOESAIC_RETURN_IF_ERROR(check.status());
  if (m == 0) return absl::OkStatus();
  MOESAIC_ASSIGN_OR_RETURN(const int num_sms, current_num_sms());
  const Bf16GemmConfig config = choose_bf16_gemm_config(m, n, k, num_sms);
  switch (config.tokens) {
    case 16:
      return launch_tokens<16>(stream, args, config);
    case 32:
      return launch_tokens<32>(stream, args, config);
    case 64:
      return launch_tokens<64>(stream, args, config);
    case 128:
      return launch_tokens<128>(stream, args, config);
    default:
      return launch_out<256, 128>(stream, args, 1);
  }
}

}  // namespace moesaic::cuda
