// Deployment: which model on which hardware in which layout, and how its layers run. A value; host-only.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/parallel_layout.h"
#include "cost/hardware.h"
#include "cost/measured_kernels.h"
#include "model/model_config.h"

namespace moesaic {

enum class CommFamily : uint8_t { kDeepEp, kPplx, kMoesaic };  // whose dispatch and combine kernels
enum class OverlapMode : uint8_t { kNone, kDispatch, kTwoBatch, kBest };

struct Deployment {
  ModelConfig model;
  HardwareSpec hardware;
  ParallelLayout layout;
  int64_t num_redundant_experts = 0;
  CommFamily comm = CommFamily::kDeepEp;
  OverlapMode overlap = OverlapMode::kBest;  // kBest: whichever is fastest for the step
  int64_t num_draft = 0;                     // MTP drafts of each step, verified in the next
  bool fp8_kv = false;
  // Mean over maximum of the tokens that ranks receive: 1 = perfect routing.
  double balancedness = 1.0;
  // Measured kernels of this hardware; null = the roofline alone.
  std::shared_ptr<const MeasuredKernels> kernels;
};

}  // namespace moesaic
