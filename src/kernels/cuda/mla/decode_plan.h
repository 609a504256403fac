// How a decode call is cut: tiles of query rows x parts of the cache. Shared by the planner and the kernels.
#pragma once

#include <cstdint>

#include "kernels/cuda/mla/mla_decode.h"

namespace moesaic::cuda {

// A run of blocks of one sequence that one part computes, with all that the kernels need to know of the sequence: a
// load from memory that waits for another one costs most of a microsecond.
struct alignas(16) DecodeItem {
  int seq;
  int block_begin, block_end;
  int slot;  // where its partial result goes, or -1: it is the whole sequence and writes the output
  int kv_len;
  int q_begin, q_len;  // tokens
  int unused;
};

// A share of the work: items[begin .. end - 1], the first of them here too.
struct alignas(16) DecodePart {
  int begin, end;
  int unused[2];
  DecodeItem first;
};

// A sequence that was split: its partials lie in consecutive slots. Unused ones have num_slots 0.
struct alignas(16) DecodeMerge {
  int q_begin, q_len;
  int slot_begin, num_slots;
};

// Host-side facts that follow from the shape.
struct DecodeLayout {
  int tile_rows;      // rows of (query, head) a thread block holds: 16, 32 or 64
  int num_tiles;      // of the longest query
  int num_parts;      // shares of the cache; the grid is num_tiles x num_parts
  int item_overhead;  // cost of starting and ending an item, in blocks
  int partial_rows;   // rows of a slot: max_q_len * num_heads
  int num_slots() const { return 2 * num_parts; }
};
DecodeLayout decode_layout(const MlaDecodeShape& shape);

// The plan in device memory: parts[num_parts], merges[num_parts], items[num_seqs + num_parts].
struct DecodePlan {
  DecodePart* parts;
  DecodeMerge* merges;
  DecodeItem* items;
};
inline DecodePlan plan_view(void* plan, int num_parts) {
  DecodePlan view;
  view.parts = static_cast<DecodePart*>(plan);
  view.merges = reinterpret_cast<DecodeMerge*>(view.parts + num_parts);
  view.items = reinterpret_cast<DecodeItem*>(view.merges + num_parts);
  return view;
}

// What every decode kernel is told.
struct DecodeParams {
  DecodePlan plan;
  const int* block_table;
  int64_t block_table_stride;
  const uint8_t* fp8_rows;  // [num_rows, 656], or null: the rows are bf16
  int num_heads;
  int partial_rows;
  float scale_log2;    // softmax scale * log2(e)
  void* out;           // bf16 [num_tokens, num_heads, 512]
  float* partial_o;    // [num_slots, partial_rows, 512], normalised
  float* partial_lse;  // [num_slots, partial_rows], log2 of the sum of exp2; -inf where no key was seen
};

}  // namespace moesaic::cuda
