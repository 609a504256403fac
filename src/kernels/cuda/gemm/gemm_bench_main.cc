// --sweep: every configuration.
#include <cstring>

#include "kernels/cuda/gemm/gemm_bench.h"

int main(int argc, char** argv) {
  const bool sweep = argc > 1 && std::strcmp(argv[1], "--sweep") == 0;
  return moesaic::cuda::bench_main(sweep ? moesaic::cuda::sweep_gemm : moesaic::cuda::bench_gemm);
}
