#include "kernels/cuda/mla/mla_bench.h"

int main() {
  return moesaic::cuda::bench_main(moesaic::cuda::bench_mla);
}
