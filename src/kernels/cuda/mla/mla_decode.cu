// mla_decode: checks, tensor maps, choice of the kernel, merge.
#include "kernels/cuda/mla/mla_decode.h"

#include "kernels/cuda/args_check.h"
#include "kernels/cuda/mla/decode_kernels.h"
#include "tensor/cuda/cuda_error.h"
#include "tensor/cuda/tensor_map.h"

namespace moesaic::cuda {
namespace {

constexpr double kLog2E = 1.4426950408889634;
constexpr int64_t kWidth = kMlaLatentDim + kMlaRopeDim;

absl::Status check_args(const MlaDecodeArgs& args) {
  MOESAIC_RETURN_IF_ERROR(check_decode_shape(args.shape));
  const MlaDecodeShape& shape = args.shape;
  const int64_t num_tokens = args.q.dim(0), num_rows = args.rows.dim(0);
  const int64_t columns = shape.cache_dtype == DType::kBF16 ? kWidth : kMlaFp8RowBytes;
  ArgsCheck check("mla_decode");
  check.tensor("q", args.q, DType::kBF16, {num_tokens, shape.num_heads, kWidth});
  check.tensor("rows", args.rows, shape.cache_dtype, {num_rows, columns});
  check.require(num_rows % kMlaBlockTokens == 0, "cache rows in blocks of 64");
  check.table("block_table", args.block_table, shape.num_seqs);
  check.memory("plan", args.plan, mla_decode_plan_bytes(shape));
  check.memory("workspace", args.workspace, mla_decode_workspace_bytes(shape));
  check.tensor("out", args.out, DType::kBF16, {num_tokens, shape.num_heads, kMlaLatentDim});
  return check.status();
}

DecodeParams make_params(const MlaDecodeArgs& args, const DecodeLayout& layout) {
  DecodeParams params{};
  params.plan = plan_view(args.plan.raw(), layout.num_parts);
  params.block_table = args.block_table.i32();
  params.block_table_stride = args.block_table.row_stride();
  if (args.rows.dtype() == DType::kE4M3) params.fp8_rows = static_cast<const uint8_t*>(args.rows.raw());
  params.num_heads = static_cast<int>(args.shape.num_heads);
  params.partial_rows = layout.partial_rows;
  params.scale_log2 = static_cast<float>(args.softmax_scale * kLog2E);
  params.out = args.out.raw();
  params.partial_o = args.workspace.data<float>();
  params.partial_lse = params.partial_o + int64_t{layout.num_slots()} * layout.partial_rows * kMlaLatentDim;
  return params;
}

}  // namespace

absl::Status mla_decode(cudaStream_t stream, const MlaDecodeArgs& args) {
  MOESAIC_RETURN_IF_ERROR(check_args(args));
  if (args.q.dim(0) == 0) return absl::OkStatus();
  const DecodeLayout layout = decode_layout(args.shape);
  const DecodeParams params = make_params(args, layout);
  const int64_t q_rows = args.q.dim(0) * args.shape.num_heads, num_rows = args.rows.dim(0);
  const bool wide = layout.tile_rows == 64, fp8 = params.fp8_rows != nullptr;
  const auto bytes_map = [&](int width, bool swizzle) {
    return make_tensor_map(args.rows.raw(), DType::kE4M3, {kMlaFp8RowBytes, num_rows}, {kMlaFp8RowBytes}, {width, 64},
                           swizzle);
  };
  // bf16 rows as tiles of 64 columns: one load brings several tiles in the layout that wgmma reads.
  const auto tiles_map = [&](int num_tiles) {
    return make_tensor_map(args.rows.raw(), DType::kBF16, {64, num_rows, 9}, {kWidth * 2, 128}, {64, 64, num_tiles},
                           /*swizzle=*/true);
  };
  MOESAIC_ASSIGN_OR_RETURN(const CUtensorMap q_map,
                           make_tensor_map(args.q.raw(), DType::kBF16, {kWidth, q_rows}, {kWidth * 2},
                                           {64, layout.tile_rows}, /*swizzle=*/true));
  MOESAIC_ASSIGN_OR_RETURN(const CUtensorMap rows_map,
                           fp8 ? bytes_map(128, /*swizzle=*/true) : tiles_map(wide ? 1 : 3));
  if (wide) {
    launch_decode_wide(stream, layout, params, q_map, rows_map);
  } else if (!fp8) {
    launch_decode_narrow(stream, layout, params, q_map, rows_map);
  } else {
    MOESAIC_ASSIGN_OR_RETURN(const CUtensorMap scales_map, bytes_map(16, /*swizzle=*/false));
    launch_decode_narrow_fp8(stream, layout, params, args.q.raw(), rows_map, scales_map);
  }
  launch_decode_merge(stream, layout, params, static_cast<int>(args.shape.num_seqs));
  return absl::OkStatus();
}

}  // namespace moesaic::cuda
