// The shapes by which kernels are costed. Plain values.
#pragma once

#include <cstdint>

namespace moesaic {

enum class Precision : uint8_t { kFp8, kBf16 };

struct GemmShape {
  double m = 0;  // rows of one group; the mean where groups differ
  int64_t n = 0;
  int64_t k = 0;
  double groups = 1;  // matrices that are read, each with m rows
  Precision precision = Precision::kFp8;
  bool ragged = false;  // groups differ in m, as routing makes them: half a tile more for each, on average
};

// One decode attention call in the latent space, over the sequences of one DP group.
struct MlaShape {
  int64_t heads = 0;  // of this rank
  double pairs = 0;   // sum of query tokens x rows
  double rows = 0;    // sum of rows
  int64_t kv_lora_rank = 0;
  int64_t rope_dim = 0;
  double row_bytes = 0;
  bool fp8 = false;  // cache and products
};

// Causal attention with expanded keys and values.
struct MhaShape {
  int64_t heads = 0;
  double pairs = 0;
  int64_t qk_dim = 0;
  int64_t v_dim = 0;
};

}  // namespace moesaic
