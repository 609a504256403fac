// What one rank of an AllToAll allocates: the received rows and one buffer of small tables, all sized here and nowhere
// else. AllToAll::buffer_bytes() and the transports both use it, so they cannot differ.
#pragma once

#include <cstdint>

#include "comm/all_to_all.h"

namespace moesaic {

inline constexpr int kMaxExpertsPerTok = 64;
// Channels per scale of the e4m3 payload.
inline constexpr int64_t kPayloadScaleGroup = 128;

// One row that goes to a rank: token `token` of the sender, for physical slot `slot`, as row `position` of what this
// sender sends to that slot.
struct A2aEntry {
  int32_t token;
  int32_t slot;
  int32_t position;
};

// Where the result for (token, k) will be: physical slot (-1 = nowhere) and position as in A2aEntry.
struct A2aRoute {
  int32_t slot;
  int32_t position;
};

class A2aBuffers {
 public:
  explicit A2aBuffers(const AllToAllOptions& options);
  int64_t allocated_bytes() const { return rows_.num_bytes() + tables_.num_bytes(); }

  // Received rows, then the experts' results in their places. [max capacity_rows, hidden] f32, filled by this rank.
  float* rows() const { return static_cast<float*>(rows_.data()); }

  // As sender; filled by this rank in dispatch_send.
  A2aRoute* routes = nullptr;       // [max tokens, num_experts_per_tok]
  float* weights = nullptr;         // [max tokens, num_experts_per_tok]
  A2aEntry* entries = nullptr;      // by token
  A2aEntry* sorted = nullptr;       // by destination rank, then token; the same as entries with one rank
  int32_t* dest_begin = nullptr;    // [num_ranks + 1] of sorted
  int32_t* dest_next = nullptr;     // [num_ranks], scratch
  int32_t* counts = nullptr;        // [num_slots] rows for each slot
  int32_t* last_token = nullptr;    // [num_slots], scratch
  uint8_t* payload = nullptr;       // [max tokens, hidden] e4m3, with fp8
  float* payload_scales = nullptr;  // [max tokens, ceil(hidden / 128)], with fp8
  // As receiver; filled by this rank in dispatch_recv.
  int32_t* group_begin = nullptr;   // [slots per rank]
  int32_t* group_rows = nullptr;    // [slots per rank]
  int32_t* source_begin = nullptr;  // [num_ranks, slots per rank] first row of each sender in each slot

 private:
  Buffer rows_;
  Buffer tables_;
};

}  // namespace moesaic
