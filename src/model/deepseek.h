// DeepseekModel: one rank's share of a DeepSeek-V2/V3-family model and its latent KV cache. One per rank; forward() is
// called by the rank's thread, all ranks of the group together, in lockstep. Weights are immutable after load().
//
// A layer is a list of operations cut by yield points into five stages (docs/ARCHITECTURE.md); forward() runs the lists
// one after the other.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "comm/all_to_all.h"
#include "comm/communicator.h"
#include "comm/expert_map.h"
#include "comm/parallel_layout.h"
#include "model/model_config.h"
#include "model/weights.h"

namespace moesaic {

// How activations enter FP8 linears: as they are, or quantised per token and 128 channels as DeepSeek-V3 was trained.
enum class ActivationMode : uint8_t { kF32, kFp8 };

struct ModelOptions {
  ParallelLayout layout;
  ActivationMode activations = ActivationMode::kF32;
  DType kv_dtype = DType::kF32;
  int64_t kv_block_tokens = 64;
  int64_t num_kv_blocks = 0;        // of this DP group
  int64_t max_tokens_per_step = 0;  // of one DP group, prefill and decode together
  int64_t max_position = 0;         // positions [0, max_position) have RoPE entries
  int64_t max_chunks = 0;           // sequences of one DP group in one step; generated tokens may come in pieces of 8
  int64_t max_decode_tokens = 0;    // of one DP group in a step that is all low-latency
  int64_t max_logit_rows = 0;       // of one DP group in one step
  bool load_mtp = false;
};

// Layers that have cache rows (the MTP module's is one if it is loaded), and bytes of a token's row in one of them.
int64_t kv_layers(const ModelConfig& config, const ModelOptions& options);
int64_t kv_row_bytes(const ModelConfig& config, DType kv_dtype);

// What a rank talks through. Borrowed; used by the rank's thread only.
struct RankContext {
  int rank = 0;
  Communicator* world = nullptr;     // all ranks
  Communicator* tp_group = nullptr;  // the ranks of this DP group; null when tp_size is 1
  AllToAll* all_to_all = nullptr;    // null when the model has no experts
  ThreadPool* pool = nullptr;
};

// One sequence's part of a step: `num_tokens` new tokens at positions kv_begin .. kv_begin + num_tokens - 1.
struct SequenceChunk {
  int32_t token_begin = 0;  // index of its first token in ForwardBatch::token_ids
  int32_t num_tokens = 0;
  int32_t kv_begin = 0;                  // rows of this sequence already in the cache
  bool is_prefill = false;               // prompt tokens take the expanded path, generated tokens the absorbed one
  const int32_t* block_table = nullptr;  // at least ceil((kv_begin + num_tokens) / kv_block_tokens) block ids
};

// The tokens of one DP group in one step (identical on its TP ranks). May be empty: the rank then only serves its
// experts.
struct ForwardBatch {
  A2aMode a2a_mode = A2aMode::kNormal;  // common to all ranks of the step
  std::span<const int32_t> token_ids;   // [num_tokens]
  std::span<const SequenceChunk> chunks;
  std::span<const int32_t> logit_rows;  // token indices whose logits are wanted, ascending
};

struct ForwardResult {
  Tensor logits;  // [logit_rows, vocab] f32; on TP rank 0 only; valid until the next forward
  Tensor hidden;  // [num_tokens, hidden] f32 after the final norm; valid until the next forward
};

// Called with (name, tensor) for every intermediate state that the golden files hold, e.g. "layer1.attn": tests name
// the first layer that differs.
using StateProbe = std::function<void(const std::string& name, const Tensor& state)>;

class DeepseekModel {
 public:
  // Takes this rank's share of the weights (model/weights.h) and allocates its cache and workspace.
  // Errors: options out of range, named.
  static absl::StatusOr<std::unique_ptr<DeepseekModel>> make(const ModelConfig& config, const ModelOptions& options,
                                                             std::shared_ptr<const ReplicatedWeights> replicated,
                                                             ExpertWeights experts,
                                                             std::shared_ptr<const ExpertMap> expert_map, int rank);
  ~DeepseekModel();

  const ModelConfig& config() const;
  int64_t weight_bytes() const;  // packed weights of this rank, shared ones included
  int64_t kv_cache_bytes() const;
  int64_t workspace_bytes() const;
  // AllToAll options that this model needs (the same on every rank).
  static AllToAllOptions all_to_all_options(const ModelConfig& config, const ModelOptions& options);

  absl::Status forward(const RankContext& context, const ForwardBatch& batch, ForwardResult* result);
  // MTP module 0: logits for hidden states h[t] (from forward) and the token that follows each: next_ids[t]. The module
  // has its own cache rows, same block ids. Needs load_mtp.
  absl::Status forward_mtp(const RankContext& context, const ForwardBatch& batch, const Tensor& hidden,
                           std::span<const int32_t> next_ids, ForwardResult* result);

  void set_probe(StateProbe probe);  // tests only; empty switches it off

 private:
  struct Impl;
  explicit DeepseekModel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace moesaic
