// The weights of one rank, packed for the kernels. ReplicatedWeights is what every rank with the same TP rank holds
// (attention shard, norms, dense and shared experts, gate, embedding, head): thread ranks of one process share one
// copy. ExpertWeights is what a rank holds alone: its expert slots. Both are immutable after loading; any thread may
// read.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "comm/expert_map.h"
#include "comm/parallel_layout.h"
#include "kernels/packed_weight.h"
#include "model/checkpoint.h"
#include "model/model_config.h"

namespace moesaic {

// A tensor and the memory under it.
struct OwnedTensor {
  Buffer buffer;
  Tensor tensor;  // undefined if the checkpoint has none (a bias)
};

struct MlaWeights {
  PackedWeight qkv_a;      // [q_lora + kv_lora + rope, hidden]; without q_lora: [heads * qk + kv_lora + rope, hidden]
  PackedWeight kv_a;       // [kv_lora + rope, hidden] if its dtype is not q's; qkv_a then ends after q. Else undefined
  OwnedTensor qkv_a_bias;  // [n of both] f32, or undefined
  OwnedTensor q_a_norm;    // [q_lora] f32
  PackedWeight q_b;        // [heads * qk, q_lora]; undefined without q_lora
  OwnedTensor kv_a_norm;   // [kv_lora] f32
  PackedWeight kv_b;       // [heads * (nope + v), kv_lora], for prefill
  std::vector<PackedWeight> absorb_q;  // per head [kv_lora, nope]: k_b transposed, for decode
  std::vector<PackedWeight> absorb_v;  // per head [v, kv_lora]
  PackedWeight o;                      // [hidden, heads * v]
  OwnedTensor o_bias;                  // [hidden] f32 on TP rank 0, or undefined
};

struct MlpWeights {
  PackedWeight gate_up;  // [2 * intermediate, hidden]
  PackedWeight down;     // [hidden, intermediate]
};

struct LayerWeights {
  OwnedTensor input_norm;  // [hidden] f32
  MlaWeights mla;
  OwnedTensor post_norm;  // [hidden] f32
  bool is_moe = false;
  MlpWeights mlp;     // the dense FFN (its columns of this TP rank), or all shared experts as one; undefined without
                      // shared experts
  PackedWeight gate;  // [experts, hidden], MoE only
  OwnedTensor gate_bias;  // [experts] f32, or undefined
};

struct MtpWeights {
  OwnedTensor embedding;  // undefined: the main model's
  OwnedTensor enorm;      // [hidden]
  OwnedTensor hnorm;      // [hidden]
  PackedWeight eh_proj;   // [hidden, 2 * hidden]: the embedding's half first
  OwnedTensor norm;       // [hidden] shared_head.norm
  PackedWeight head;      // [vocab, hidden], on TP rank 0; undefined: the main model's
};

struct ReplicatedWeights {
  OwnedTensor embedding;             // [vocab, hidden] bf16 or f32
  std::vector<LayerWeights> layers;  // main layers, then the MTP module's layer if loaded
  OwnedTensor final_norm;            // [hidden] f32
  PackedWeight head;                 // [vocab, hidden] on TP rank 0, which alone samples; else undefined
  std::unique_ptr<MtpWeights> mtp;   // module 0, if loaded
  OwnedTensor rope_table;            // [max_position, rope] f32
  int64_t num_bytes = 0;             // of all parts
};

// What ReplicatedWeights hold, by part, in bytes. The MTP module's layer counts with the others.
struct WeightPart {
  const char* name;
  int64_t num_bytes;
};
std::vector<WeightPart> weight_parts(const ReplicatedWeights& weights);

struct ExpertWeights {
  struct Layer {                        // empty for dense layers
    std::vector<PackedWeight> gate_up;  // per local slot [2 * moe_intermediate, hidden]
    std::vector<PackedWeight> down;     // per local slot [hidden, moe_intermediate]
  };
  std::vector<Layer> layers;
  int64_t num_bytes = 0;
};

struct LoadArgs {
  const Checkpoint* checkpoint;
  const ModelConfig* config;
  ParallelLayout layout;
  bool load_mtp = false;
  int64_t max_position = 0;
  bool sizes_only = false;  // no memory is taken and no data read: num_bytes() of everything is right, nothing else
  // Called with the checkpoint bytes that have just been read; may be empty. Any loading thread.
  std::function<void(int64_t)> progress;
};

// Errors name the tensor that is missing, has the wrong shape, or cannot be split as the layout asks.
absl::StatusOr<std::shared_ptr<const ReplicatedWeights>> load_replicated_weights(const LoadArgs& args, int tp_rank);
absl::StatusOr<ExpertWeights> load_expert_weights(const LoadArgs& args, const ExpertMap& experts, int rank);

}  // namespace moesaic
