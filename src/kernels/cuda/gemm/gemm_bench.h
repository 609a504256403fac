// The benchmark of the GEMMs at DeepSeek-V3's shapes.
#pragma once

#include "kernels/cuda/bench_util.h"

namespace moesaic::cuda {

// Each shape: FP8 as choose_gemm_config runs it, then bf16.
absl::Status bench_gemm(KernelBench& bench);
// Each shape in every configuration: what choose_gemm_config knows.
absl::Status sweep_gemm(KernelBench& bench);

}  // namespace moesaic::cuda
