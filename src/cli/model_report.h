// The text and JSON of `moesaic inspect`: what a checkpoint holds and what each rank of a layout would hold. Pure apart
// from reading the checkpoint's headers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "comm/parallel_layout.h"
#include "model/checkpoint.h"
#include "model/model_config.h"

namespace moesaic {

// Parameters leave FP8 scales out; bytes count everything as stored.
struct PartSize {
  int64_t num_parameters = 0;
  int64_t num_bytes = 0;
};

struct ModelReport {
  std::map<std::string, PartSize> parts;  // "routed experts", "attention", ...
  PartSize total;
  int64_t active_parameters = 0;    // used for one token, without MTP
  int64_t kv_bytes_per_token = 0;   // all main layers, f32
  std::vector<int64_t> rank_bytes;  // as stored, of each rank
  std::vector<Range> rank_experts;  // of each rank
};

// The part of the model that a tensor belongs to.
std::string part_of(const std::string& tensor_name, const ModelConfig& config);

absl::StatusOr<ModelReport> make_model_report(const ModelConfig& config, const Checkpoint& checkpoint,
                                              const ParallelLayout& layout);

std::string report_text(const ModelConfig& config, const ParallelLayout& layout, const ModelReport& report);
std::string report_json(const ModelConfig& config, const ParallelLayout& layout, const ModelReport& report);

}  // namespace moesaic
