// ModelSettings: the settings that every subcommand with a model shares, and their declaration. A value. SGLang's names
// come first, vLLM's are aliases.
#pragma once

#include <cstdint>
#include <string>

#include "base/config_fields.h"
#include "model/deepseek.h"

namespace moesaic {

struct ModelSettings {
  std::string model_path;
  int32_t tp_size = 0;
  int32_t dp_size = 0;
  int32_t ep_size = 0;
  int32_t moe_dense_tp_size = 1;
  std::string activations = "f32";
  std::string kv_cache_dtype = "auto";
  int32_t num_threads = 0;
  int64_t context_length = 0;
  int64_t max_total_tokens = 0;
  float mem_fraction_static = 0.5f;
  int32_t max_running_requests = 64;
  int32_t max_queued_requests = 5000;
  int64_t chunked_prefill_size = 0;
  bool disable_radix_cache = false;
  bool enable_mixed_chunk = true;
  int32_t prefill_delay_steps = 0;
  int64_t priority_aging_steps = 1000;
  int64_t queue_timeout_ms = 0;
  int64_t step_timeout_ms = 30'000;
  int32_t speculative_num_steps = -1;
  bool speculative_adaptive = true;
  float synthetic_acceptance = -1.0f;
};

// --model-path alone; the caller says whether it is required.
ConfigField& add_model_path(ConfigFields& fields, std::string* model_path);
// The three sizes of ParallelLayout::make.
void add_parallel_fields(ConfigFields& fields, int32_t* ep_size, int32_t* dp_size, int32_t* tp_size);
// Layout, numbers and threads: what `eval --ids` needs too.
void add_layout_fields(ConfigFields& fields, ModelSettings& settings);
// Context, memory, chunks and speculation: what an engine for one sequence needs.
void add_sequence_fields(ConfigFields& fields, ModelSettings& settings);
// And KV pool, batch limits and scheduling: what one for many needs.
void add_engine_fields(ConfigFields& fields, ModelSettings& settings);

// The layout and number formats; limits are left to the caller. Errors as in ParallelLayout::make.
absl::StatusOr<ModelOptions> model_options(const ModelSettings& settings);

}  // namespace moesaic
