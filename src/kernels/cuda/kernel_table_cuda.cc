#include "kernels/cuda/fused/fused_bench.h"
#include "kernels/cuda/gemm/gemm_bench.h"
#include "kernels/cuda/mla/mla_bench.h"
#include "kernels/kernel_table.h"

namespace moesaic {
namespace {

// Every family with its benchmark; its library stands in CMakeLists.txt.
constexpr absl::Status (*kFamilies[])(cuda::KernelBench& bench) = {
    cuda::bench_gemm,
    cuda::bench_mla,
    cuda::bench_fused,
};

}  // namespace

absl::StatusOr<KernelTable> measure_kernel_table(const KernelTableOptions&,
                                                 const std::function<void(const std::string& line)>& print) {
  MOESAIC_ASSIGN_OR_RETURN(const std::unique_ptr<cuda::KernelBench> bench, cuda::KernelBench::open(0, print));
  for (const auto family : kFamilies) {
    MOESAIC_RETURN_IF_ERROR(family(*bench));
    bench->release();
  }
  return KernelTable{.device = bench->device().name, .clocks = bench->clocks(), .rows = bench->rows()};
}

}  // namespace moesaic
