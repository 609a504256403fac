// The benchmark of MLA attention at DeepSeek-V3's sizes.
#pragma once

#include "kernels/cuda/bench_util.h"

namespace moesaic::cuda {

absl::Status bench_mla(KernelBench& bench);

}  // namespace moesaic::cuda
