// What `inspect` and `serve` say of a MemoryPlan: every buffer, the total against what is available, and which setting
// would make it fit, with its value. Pure, but for reading the checkpoint's headers.
#pragma once

#include <string>
#include <vector>

#include "cli/model_host.h"
#include "model/memory_plan.h"

namespace moesaic {

// Every buffer of every rank; ranks that are alike stand together.
std::string memory_table(const MemoryPlan& memory);
// One line: the four kinds and their sum against what is available.
std::string memory_line(const MemoryPlan& memory, int64_t available_bytes);

// Changes that make the deployment fit, each by itself: "--max-total-tokens 2048 (now 4096)". Empty if it fits, or if
// no single one is enough.
std::vector<std::string> changes_to_fit(const Checkpoint& checkpoint, const ModelConfig& config, const EnginePlan& plan,
                                        const MemoryPlan& memory, int64_t available_bytes);

// OK if weights, KV cache and work space fit. The error names the changes that would help. When only the exchange
// between ranks is too large, which never fills as a rule, `warning` says so.
absl::Status check_memory(const Checkpoint& checkpoint, const ModelConfig& config, const EnginePlan& plan,
                          const MemoryPlan& memory, int64_t available_bytes, std::string* warning);

}  // namespace moesaic
