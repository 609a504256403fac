// KernelCost: seconds of single kernels on one GPU: roofline with wave quantisation and measured efficiencies.
// Host-only. Where the constants come from stands beside each in kernel_cost.cc.
#pragma once

#include <cstdint>

#include "cost/hardware.h"
#include "cost/kernel_shapes.h"
#include "cost/measured_kernels.h"

namespace moesaic {

class KernelCost {
 public:
  // sm_share: the part of the GPU's multiprocessors that computes; the rest moves tokens. table: may be null; outlives
  // this object.
  explicit KernelCost(const HardwareSpec& hardware, double sm_share = 1.0, const MeasuredKernels* table = nullptr);

  double gemm(const GemmShape& shape) const;
  double mla_decode(const MlaShape& shape) const;
  double mha_prefill(const MhaShape& shape) const;
  // Kernels that only move bytes.
  double elementwise(double num_bytes, double num_kernels) const;

  double flops_per_s(Precision precision) const;  // of the SMs that compute, at the clock that they sustain
  double bytes_per_s() const;                     // of memory, as kernels reach it

 private:
  double gemm_formula(const GemmShape& shape) const;
  double mla_formula(const MlaShape& shape) const;
  double mha_formula(const MhaShape& shape) const;

  const MeasuredKernels* table_;
  HardwareSpec hardware_;
  double sms_;
  bool beside_communication_;
  double overhead_ = 1;  // what an SM does besides multiplying, and how fast it loads, relative to an H100's
  double load_ = 1;
};

}  // namespace moesaic
