#include "kernels/cuda/fused/verify_drafts.h"

#include <algorithm>

#include "kernels/cuda/args_check.h"
#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {
namespace {

__global__ void verify_drafts_kernel(const int32_t* drafts, const int32_t* num_drafts, const int32_t* sampled,
                                     int num_seqs, int depth, int32_t* num_accepted, int32_t* next_ids) {
  const int seq = blockIdx.x * blockDim.x + threadIdx.x;
  if (seq >= num_seqs) return;
  const int limit = num_drafts == nullptr ? depth : min(depth, num_drafts[seq]);
  const int32_t* tokens = sampled + int64_t{seq} * (depth + 1);
  int accepted = 0;
  while (accepted < limit && tokens[accepted] >= 0 && drafts[int64_t{seq} * depth + accepted] == tokens[accepted]) {
    ++accepted;
  }
  num_accepted[seq] = accepted;
  next_ids[seq] = tokens[accepted];
}

}  // namespace

absl::Status verify_drafts(cudaStream_t stream, const VerifyDraftsArgs& args) {
  const int64_t num_seqs = args.draft_ids.dim(0), depth = args.draft_ids.dim(1);
  ArgsCheck check("verify_drafts");
  check.require(num_seqs <= (int64_t{1} << 30) && depth >= 1 && depth <= 1024, "1 to 1024 drafts a sequence");
  check.tensor("draft_ids", args.draft_ids, DType::kI32, {num_seqs, depth});
  if (args.num_drafts.defined()) check.tensor("num_drafts", args.num_drafts, DType::kI32, {num_seqs});
  check.tensor("sampled_ids", args.sampled_ids, DType::kI32, {num_seqs, depth + 1});
  check.tensor("num_accepted", args.num_accepted, DType::kI32, {num_seqs});
  check.tensor("next_ids", args.next_ids, DType::kI32, {num_seqs});
  MOESAIC_RETURN_IF_ERROR(check.status());
  if (num_seqs == 0) return absl::OkStatus();
  constexpr int kSeqsPerBlock = 128;
  const unsigned blocks = static_cast<unsigned>((num_seqs + kSeqsPerBlock - 1) / kSeqsPerBlock);
  verify_drafts_kernel<<<blocks, kSeqsPerBlock, 0, stream>>>(
      args.draft_ids.data<int32_t>(), args.num_drafts.data<int32_t>(), args.sampled_ids.data<int32_t>(),
      static_cast<int>(num_seqs), static_cast<int>(depth), args.num_accepted.data<int32_t>(),
      args.next_ids.data<int32_t>());
  MOESAIC_CUDA_CHECK(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace moesaic::cuda
