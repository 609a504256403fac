// The text and JSON of `moesaic inspect`: what a checkpoint holds and what each rank of a layout would hold. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "comm/parallel_layout.h"
#include "model/memory_plan.h"
#include "model/model_config.h"
#include "tensor/tensor.h"

namespace moesaic {

// Parameters leave FP8 scales out; bytes count everything as stored.
struct PartSize {
  int64_t num_parameters = 0;
  int64_t num_bytes = 0;
};

struct ModelReport {
  std::map<std::string, PartSize> parts;  // "routed experts", "attention", ...
  PartSize total;
  // What one token's forward pass reads, as DeepSeek counts ("37B activated"): everything but routed experts and MTP,
  // embedding and head in full, and num_experts_per_tok routed experts a layer.
  int64_t active_parameters = 0;
  int64_t kv_bytes_per_token = 0;   // all main layers, f32
  std::vector<int64_t> rank_bytes;  // as stored, of each rank
  std::vector<Range> rank_experts;  // of each rank
};

// The part of the model that a tensor belongs to.
std::string part_of(const std::string& tensor_name, const ModelConfig& config);

// `tensors`: every tensor of a checkpoint by name; only shapes and dtypes are looked at.
absl::StatusOr<ModelReport> make_model_report(const ModelConfig& config, const std::map<std::string, Tensor>& tensors,
                                              const ParallelLayout& layout);

std::string report_text(const ModelConfig& config, const ParallelLayout& layout, const ModelReport& report);
// `memory`: every buffer of every rank, or why there is no plan.
std::string report_json(const ModelConfig& config, const ParallelLayout& layout, const ModelReport& report,
                        const absl::StatusOr<MemoryPlan>& memory);

}  // namespace moesaic
