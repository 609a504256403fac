// DeepSeek-V3's GEMMs: the shapes that are timed (gemm_bench.cc) and those that are tested at full size
// (fp8_gemm_full_size_test.cc, bf16_gemm_test.cc) are these.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/cuda/gemm/kernel_args.h"

namespace moesaic::cuda {

struct GemmCase {
  Grouping grouping;
  int64_t rows;  // of each group
  int64_t n;
  int64_t k;
  int64_t groups;      // dense: heads
  bool one_x = false;  // the heads' rows are the same
  bool batched() const { return grouping == Grouping::kDense && groups > 1; }
  int64_t x_columns() const { return batched() && !one_x ? groups * k : k; }
};

inline constexpr int64_t kMaskedRoom = 4096;  // rows that a masked group has room for

inline std::vector<GemmCase> gemm_cases() {
  using Sizes = std::vector<std::pair<int64_t, int64_t>>;  // n, k
  std::vector<GemmCase> all;
  for (const int64_t m : {1, 16, 64, 128, 256, 4096}) {
    for (const auto& [n, k] : Sizes{{2112, 7168},
                                    {576, 7168},
                                    {1536, 7168},
                                    {24576, 1536},
                                    {32768, 512},
                                    {7168, 16384},
                                    {4096, 7168},
                                    {7168, 2048}}) {
      all.push_back({Grouping::kDense, m, n, k, 1});
    }
  }
  for (const auto& [n, k] : Sizes{{4096, 7168}, {7168, 2048}}) {
    all.push_back({Grouping::kContiguous, 8192, n, k, 4});
    all.push_back({Grouping::kContiguous, 4096, n, k, 8});
    all.push_back({Grouping::kMasked, 1024, n, k, 2});
    all.push_back({Grouping::kMasked, 256, n, k, 4});
    all.push_back({Grouping::kMasked, 64, n, k, 32});
  }
  for (const int64_t m : {1, 64, 128}) {
    all.push_back({Grouping::kDense, m, 512, 128, 128});
    all.push_back({Grouping::kDense, m, 128, 512, 128});
  }
  all.push_back({Grouping::kDense, 4096, 128, 512, 128, /*one_x=*/true});  // keys, or values, by kv_b
  return all;
}

// What DeepSeek-V3 keeps in bf16.
struct Bf16GemmCase {
  int64_t m, n, k;
  bool f32;  // results
};

inline std::vector<Bf16GemmCase> bf16_gemm_cases() {
  std::vector<Bf16GemmCase> all;
  for (const int64_t m : {1, 16, 64, 128, 1024, 4096}) {
    all.push_back({m, 256, 7168, true});                   // router
    if (m <= 128) all.push_back({m, 129280, 7168, true});  // head
    all.push_back({m, 7168, 14336, false});                // eh_proj of MTP
    all.push_back({m, 4096, 7168, false});                 // a shared expert of a checkpoint in bf16
  }
  return all;
}

}  // namespace moesaic::cuda
