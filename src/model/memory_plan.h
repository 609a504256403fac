// The memory of a deployment before it is taken: every buffer of every rank by name, in bytes. The weights are counted
// by the loader itself, without their data; caches, work space and all-to-all buffers by the functions that size them.
// What a RankGroup with the same options allocates is equal, byte for byte.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/checkpoint.h"
#include "model/deepseek.h"

namespace moesaic {

enum class MemoryKind : uint8_t { kWeights, kKvCache, kWorkspace, kExchange };

struct MemoryBuffer {
  MemoryKind kind;
  std::string name;
  int64_t num_bytes = 0;
  bool is_shared = false;  // thread ranks with the same TP rank hold one copy together
  // What takes turns in this buffer, if more than one thing does: the buffer holds the largest.
  std::vector<std::pair<std::string, int64_t>> uses;
};

struct MemoryPlan {
  std::vector<std::vector<MemoryBuffer>> ranks;
  int tp_size = 1;

  // Of one rank by itself.
  int64_t rank_bytes(int rank) const;
  // Of all ranks as threads of one process; of one kind.
  int64_t process_bytes() const;
  int64_t process_bytes(MemoryKind kind) const;
};

// Reads the checkpoint's headers, and the embedding and head of an MTP module to see whether they repeat the main ones.
// Errors as those of loading that show in names, shapes and dtypes.
absl::StatusOr<MemoryPlan> plan_memory(const Checkpoint& checkpoint, const ModelConfig& config,
                                       const ModelOptions& options);

}  // namespace moesaic
