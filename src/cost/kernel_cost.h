// KernelCost: seconds of single kernels on one GPU: roofline with wave quantisation and measured efficiencies. A value
// that borrows nothing; host-only. Where the constants come from stands beside each in kernel_cost.cc.
#pragma once

#include <cstdint>

#include "cost/hardware.h"

namespace moesaic {

enum class Precision : uint8_t { kFp8, kBf16 };

struct GemmShape {
  double m = 0;  // rows of one group; the mean where groups differ
  int64_t n = 0;
  int64_t k = 0;
  double groups = 1;  // matrices that are read, each with m rows
  Precision precision = Precision::kFp8;
  bool ragged = false;  // groups differ in m, as routing makes them: half a tile more for each, on average
};

// One decode attention call in the latent space, over the sequences of one DP group.
struct MlaShape {
  int64_t heads = 0;  // of this rank
  double pairs = 0;   // sum of query tokens x rows
  double rows = 0;    // sum of rows
  int64_t kv_lora_rank = 0;
  int64_t rope_dim = 0;
  double row_bytes = 0;
  bool fp8 = false;  // cache and products
};

// Causal attention with expanded keys and values.
struct MhaShape {
  int64_t heads = 0;
  double pairs = 0;
  int64_t qk_dim = 0;
  int64_t v_dim = 0;
};

class KernelCost {
 public:
  // sm_share: the part of the GPU's multiprocessors that computes; the rest moves tokens.
  explicit KernelCost(const HardwareSpec& hardware, double sm_share = 1.0);

  double gemm(const GemmShape& shape) const;
  double mla_decode(const MlaShape& shape) const;
  double mha_prefill(const MhaShape& shape) const;
  // Kernels that only move bytes.
  double elementwise(double num_bytes, double num_kernels) const;

  double flops_per_s(Precision precision) const;  // of the SMs that compute, at the clock that they sustain
  double bytes_per_s() const;                     // of memory, as kernels reach it

 private:
  HardwareSpec hardware_;
  double sms_;
  bool beside_communication_;
  double overhead_ = 1;  // what an SM does besides multiplying, and how fast it loads, relative to an H100's
  double load_ = 1;
};

}  // namespace moesaic
