// The benchmark of this folder's operations at DeepSeek-V3's sizes.
#pragma once

#include "kernels/cuda/bench_util.h"

namespace moesaic::cuda {

absl::Status bench_fused(KernelBench& bench);

}  // namespace moesaic::cuda
