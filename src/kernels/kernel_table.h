// KernelTable: how long each operation takes on this machine, by shape: what `moesaic bench kernels` writes and a cost
// model reads. Plain values, no tensors; one owner.
//   {"device": "NVIDIA H200", "clocks": "sm 1830 MHz, memory 3201 MHz", "rows": [
//     {"op": "gemm_dense", "m": 64, "n": 2112, "k": 7168, ..., "dtype": "e4m3", "us": 9.8}, ...]}
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"

namespace moesaic {

// One measured call. A size that an operation does not have is 0. What the sizes mean, by operation:
//   gemm_dense              m rows, k inputs, n outputs
//   gemm_contiguous         groups of m rows each (aligned to 128), k inputs, n outputs
//   gemm_masked             groups, m rows a group, k inputs, n outputs
//   gemm_batched            groups (heads), m rows, k inputs and n outputs of each
//   mla_decode, mla_prefill batch sequences of kv_len cached rows, q_len queries each, heads
//   mla_decode_plan         the same: the plan of a step
//   rms_norm, rms_norm_quantize, rms_norm_residual_quantize, quantize, embedding
//                           m rows of n channels
//   silu_mul_quantize       m rows of n outputs; _masked: the rows of `groups` groups together
//   combine                 m rows of n outputs, k rows summed
//   gate, expert_rows       m tokens, n experts, k chosen
//   gather_rows             m tokens of n channels, k rows each
//   rope_append, gather_latents  m tokens, heads
//   sample                  m rows, n vocabulary entries; on a GPU _greedy, _all, _top_p, _top_k_top_p
//   adjust_logits, log_probs  m rows, n vocabulary entries
struct KernelRow {
  std::string op;
  int64_t m = 0, n = 0, k = 0, groups = 0, batch = 0, heads = 0, q_len = 0, kv_len = 0;
  std::string dtype;
  double us = 0.0;  // as one of many calls: without the latency of launching it alone
};

struct KernelTable {
  std::string device;
  std::string clocks;
  std::vector<KernelRow> rows;
};

// One JSON object on one line, every field.
std::string to_json(const KernelRow& row);
// One JSON object, one row a line.
std::string to_json(const KernelTable& table);

struct KernelTableOptions {
  bool small = false;   // a few small shapes: for tests
  int num_threads = 1;  // CPU only
};

// Measures the operations of the backend that this program was built for: the GPU's with MOESAIC_CUDA, else the CPU's.
// `print` gets each figure as a line. Errors: no GPU that the kernels run on.
absl::StatusOr<KernelTable> measure_kernel_table(const KernelTableOptions& options,
                                                 const std::function<void(const std::string& line)>& print);

}  // namespace moesaic
