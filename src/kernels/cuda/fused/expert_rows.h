// Where the gate's choices lie when they are sorted by expert: the rows of fp8_gemm_contiguous.
#pragma once

#include <cuda_runtime_api.h>

#include "base/status.h"
#include "tensor/tensor.h"

namespace moesaic::cuda {

// Experts in order, each from a multiple of 128 on; an expert's choices in the order of tokens, then padding. The same
// in every run.
struct ExpertRowsArgs {
  Tensor topk_ids;       // [num_tokens, num_experts_per_tok] i32; ids outside of the experts (-1) get no row
  Tensor expert_counts;  // [num_experts] i32: how often each stands in topk_ids (the gate's)
  Tensor group_begin;    // [num_experts] i32: each expert's first row
  Tensor row_experts;    // [rows] i32: the row's expert, -1 = padding (fp8_gemm_contiguous' row_ids)
  Tensor row_tokens;     // [rows] i32: the row's token, -1 = padding
  Tensor choice_rows;    // [num_tokens, num_experts_per_tok] i32: the choice's row, or -1 (combine's row_ids)
};
// Limits: at most 1024 experts, 2^24 choices; `rows` at least most_expert_rows.
absl::Status expert_rows(cudaStream_t stream, const ExpertRowsArgs& args);

// The rows that `num_choices` choices take at most.
int64_t most_expert_rows(int64_t num_choices, int64_t num_experts);

}  // namespace moesaic::cuda
