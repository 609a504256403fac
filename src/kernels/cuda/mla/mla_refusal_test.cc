// What attention refuses, without a GPU: every tensor wrong in turn, every limit by its message.
#include "kernels/cuda/mla/mla_decode.h"
#include "kernels/cuda/mla/mla_prefill.h"
#include "kernels/cuda/refusal_test_util.h"

namespace moesaic::cuda {
namespace {

using test::ArgsRules;
using test::nowhere;
using test::Refusal;

constexpr auto kBF16 = DType::kBF16;
constexpr auto kI32 = DType::kI32;

constexpr MlaDecodeShape kShape{.num_seqs = 3, .num_heads = 16, .max_q_len = 2, .cache_dtype = kBF16, .num_sms = 132};

template <typename Args>
std::vector<Refusal<Args>> shape_refusals() {
  return {{[](Args& args) { args.shape.num_heads = 129; }, "mla_decode: num_heads 129, made for 1 to 128"},
          {[](Args& args) { args.shape.num_heads = 0; }, "mla_decode: num_heads 0, made for 1 to 128"},
          {[](Args& args) { args.shape.max_q_len = 5; }, "mla_decode: max_q_len 5, made for 1 to 4"},
          {[](Args& args) { args.shape.max_q_len = 0; }, "mla_decode: max_q_len 0, made for 1 to 4"},
          {[](Args& args) { args.shape.num_seqs = 8193; }, "mla_decode: num_seqs 8193, made for 1 to 8192"},
          {[](Args& args) { args.shape.num_seqs = -1; }, "mla_decode: num_seqs -1, made for 1 to 8192"},
          {[](Args& args) { args.shape.num_sms = 0; }, "mla_decode: num_sms 0, made for 1 to 1024"},
          {[](Args& args) { args.shape.cache_dtype = DType::kF32; },
           "mla_decode: made for cache rows of bf16, or e4m3 for FP8 rows"}};
}

TEST(MlaRefusals, Decode) {
  using Args = MlaDecodeArgs;
  const auto make = [](int64_t tokens, DType dtype) {
    MlaDecodeShape shape = kShape;
    shape.cache_dtype = dtype;
    return Args{.shape = shape,
                .q = nowhere(kBF16, {tokens, 16, 576}),
                .rows = nowhere(dtype, {4 * 64, dtype == kBF16 ? 576 : kMlaFp8RowBytes}),
                .block_table = nowhere(kI32, {3, 5}),
                .softmax_scale = 0.1f,
                .plan = nowhere(DType::kU8, {mla_decode_plan_bytes(shape)}),
                .workspace = nowhere(DType::kU8, {mla_decode_workspace_bytes(shape)}),
                .out = nowhere(kBF16, {tokens, 16, 512})};
  };
  for (const DType dtype : {kBF16, DType::kE4M3}) {
    const ArgsRules<Args> rules(
        "mla_decode", mla_decode, [&] { return make(6, dtype); },
        {{.name = "q", .member = &Args::q},
         {.name = "rows", .member = &Args::rows},
         {.name = "block_table", .member = &Args::block_table, .crooked = true, .free_dims = {1}},
         {.name = "plan", .member = &Args::plan, .memory = true},
         {.name = "workspace", .member = &Args::workspace, .memory = true},
         {.name = "out", .member = &Args::out}});
    rules.expect_refusals(shape_refusals<Args>());
    EXPECT_TRUE(mla_decode(nullptr, make(0, dtype)).ok());
  }
}

// mla_decode_plan's arguments in the form that ArgsRules takes.
struct PlanArgs {
  MlaDecodeShape shape;
  Tensor kv_lens, q_begin, plan;
};
absl::Status make_plan(cudaStream_t stream, const PlanArgs& args) {
  return mla_decode_plan(stream, args.shape, args.kv_lens, args.q_begin, args.plan);
}

TEST(MlaRefusals, DecodePlan) {
  using Args = PlanArgs;
  const auto make = [] {
    return Args{.shape = kShape,
                .kv_lens = nowhere(kI32, {3}),
                .q_begin = nowhere(kI32, {4}),
                .plan = nowhere(DType::kU8, {mla_decode_plan_bytes(kShape)})};
  };
  const ArgsRules<Args> rules("mla_decode_plan", make_plan, make,
                              {{.name = "kv_lens", .member = &Args::kv_lens},
                               {.name = "q_begin", .member = &Args::q_begin},
                               {.name = "plan", .member = &Args::plan, .memory = true}});
  rules.expect_refusals(shape_refusals<Args>());
}

TEST(MlaRefusals, Prefill) {
  using Args = MlaPrefillArgs;
  const auto make = [](int64_t tokens) {
    return Args{.num_heads = 2,
                .q = nowhere(kBF16, {tokens, 2 * 192}),
                .k = nowhere(kBF16, {9, 2 * 192}),
                .v = nowhere(kBF16, {9, 2 * 128}),
                .q_begin = nowhere(kI32, {4}),
                .kv_begin = nowhere(kI32, {4}),
                .softmax_scale = 0.1f,
                .workspace = nowhere(DType::kU8, {kMlaPrefillWorkspaceBytes}),
                .out = nowhere(kBF16, {tokens, 2 * 128}),
                .num_sms = 132};
  };
  const ArgsRules<Args> rules("mla_prefill", mla_prefill, [&] { return make(6); },
                              {{.name = "q", .member = &Args::q, .rows_strided = true},
                               {.name = "k", .member = &Args::k, .rows_strided = true},
                               {.name = "v", .member = &Args::v, .rows_strided = true},
                               {.name = "q_begin", .member = &Args::q_begin},
                               {.name = "kv_begin", .member = &Args::kv_begin},
                               {.name = "workspace", .member = &Args::workspace, .memory = true},
                               {.name = "out", .member = &Args::out, .rows_strided = true}});
  rules.expect_refusals({{[](Args& args) { args.num_heads = 0; }, "mla_prefill: num_heads 0, made for 1 to 1024"},
                         {[](Args& args) { args.num_sms = 0; }, "mla_prefill: num_sms 0, made for 1 to 1024"},
                         {[](Args& args) { args.q_begin = args.kv_begin = nowhere(kI32, {1}); },
                          "mla_prefill: num_seqs 0, made for 1 to 1048576"}});
  EXPECT_TRUE(mla_prefill(nullptr, make(0)).ok());
}

}  // namespace
}  // namespace moesaic::cuda
