// AllToAll: takes tokens to the ranks that hold their experts, and brings the results back. Four halves, so that other
// work fits between send and recv:
//
//   a2a.dispatch_send(kNormal, {x, topk_ids, topk_weights});   // ... shared expert ...
//   a2a.dispatch_recv(&rows);                                  // rows.x: expert-major inputs of this rank's slots
//   ... every row of rows.x becomes its expert's output, in place ...
//   a2a.combine_send();
//   a2a.combine_recv(y);          // y[t] = sum_k topk_weights[t, k] * f_{topk_ids[t, k]}(x[t])
//
// The sum runs in f32 in top-k order, so results depend neither on arrival order nor on the number of ranks. Ids of -1
// are not sent and add nothing, whatever their weight (a token with only -1 gets zeros). Duplicate ids in a row are
// legal: they share one row and each adds its weight. Zero tokens are legal. Rows of an expert are in the order (source
// rank, token). One object per rank, one thread; every rank calls the same halves with the same mode. Deadlines and
// errors as in comm/communicator.h: after any error, bad arguments included, the group is dead. Buffers are allocated
// once, from buffer_bytes().
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"
#include "comm/parallel_layout.h"
#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace moesaic {

// kNormal (prefill): one copy of a token per destination rank; received rows are contiguous, each expert aligned to
// expert_alignment. kLowLatency (decode): fixed layout [local slots, ep_size * max_tokens_per_rank] rows, counts apart.
enum class A2aMode : uint8_t { kNormal, kLowLatency };

struct AllToAllOptions {
  int num_ranks = 1;
  int num_slots = 0;  // physical experts of the group; slot s lives on rank s / ceil(num_slots / num_ranks)
  int64_t hidden = 0;
  int num_experts_per_tok = 0;
  int max_tokens_normal = 0;  // per rank and call
  int max_tokens_low_latency = 0;
  int expert_alignment = 1;  // rows; 128 for CUDA's contiguous grouped GEMM
  bool fp8 = false;  // dispatch carries e4m3 with one f32 scale per 128 channels instead of f32 (combine: f32 on CPU)
  int64_t timeout_ms = 30'000;
  bool operator==(const AllToAllOptions&) const = default;
};

struct DispatchArgs {
  Tensor x;             // [num_tokens, hidden] f32; must stay until combine_recv, when every rank has fetched its rows
  Tensor topk_ids;      // [num_tokens, num_experts_per_tok] i32, physical slots; -1 = not routed
  Tensor topk_weights;  // [num_tokens, num_experts_per_tok] f32
};

// Filled by dispatch_recv; memory belongs to the AllToAll and is valid until its next dispatch_send.
struct ExpertRows {
  // [capacity_rows, hidden] f32; rows outside the groups are undefined. The experts' outputs take the inputs' places.
  Tensor x;
  std::span<const int32_t> group_begin;  // [slots that this rank owns], as ParallelLayout::slots
  std::span<const int32_t> group_rows;   // [same]
};

class AllToAll {
 public:
  virtual ~AllToAll() = default;
  virtual absl::Status dispatch_send(Stream& stream, A2aMode mode, const DispatchArgs& args) = 0;
  virtual absl::Status dispatch_recv(Stream& stream, ExpertRows* rows) = 0;
  virtual absl::Status combine_send(Stream& stream) = 0;
  virtual absl::Status combine_recv(Stream& stream, const Tensor& y /* [num_tokens, hidden] f32, overwritten */) = 0;

  // The group fails with `why`: a rank that cannot go on between two halves tells the others, which would otherwise
  // wait for the deadline, and may give up x.
  virtual void abort(const absl::Status& why) = 0;
  // What this rank has really allocated: always buffer_bytes(options).
  virtual int64_t allocated_bytes() const = 0;

  // Names the first illegal option and its range.
  static absl::Status validate(const AllToAllOptions& options);
  // Bytes of buffers of one rank; `options` are legal. Pages that no row ever touches cost no memory.
  static int64_t buffer_bytes(const AllToAllOptions& options);
  // Rows of ExpertRows::x in this mode: enough for all tokens of all ranks going to this one.
  static int64_t capacity_rows(const AllToAllOptions& options, A2aMode mode);
};

// One per rank of a group of threads. Error: options that differ from rank to rank cannot occur here; illegal ones are
// named.
absl::StatusOr<std::vector<std::unique_ptr<AllToAll>>> make_thread_all_to_all(const AllToAllOptions& options);

}  // namespace moesaic
