#include "kernels/cuda/fused/fused_bench.h"

int main() {
  return moesaic::cuda::bench_main(moesaic::cuda::bench_fused);
}
