// KernelCost: seconds of single kernels on one GPU: roofline with wave quantisation and measured efficiencies. A value
// that borrows nothing; host-only. Where the efficiencies come from: src/cost/README.md.
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
};

// One decode attention call in the latent space, over the sequences of one DP group.
struct MlaShape {
  int64_t heads = 0;  // of this rank
  double pairs = 0;   // sum of query tokens x rows
  double rows = 0;    // sum of rows
  int64_t kv_lora_rank = 0;
  int64_t rope_dim = 0;
  double row_bytes = 0;
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

 private:
  HardwareSpec hardware_;
  double sms_;
};

}  // namespace moesaic
