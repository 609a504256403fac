// A warp takes 512 channels of a row. A grid of bounded size: each block adds up the groups' counts in shared memory,
// then takes its share of the rows that hold a token: several times more blocks than fit at once, so that their loads
// overlap with others' arithmetic and the last ones end together.
#include <algorithm>

#include "kernels/cuda/args_check.h"
#include "kernels/cuda/fused/chained_launch.cuh"
#include "kernels/cuda/fused/silu_mul.h"
#include "kernels/cuda/fused/vec.cuh"
#include "tensor/cuda/cuda_error.h"
#include "tensor/cuda/device.h"

namespace moesaic::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kVecs = 2;  // of gate and of up, a thread
constexpr int kChannels = kVecs * 32 * kVec;
constexpr int kResidentBlocks = 12;
constexpr int kBlocksPerSm = 64;
constexpr int kMaskedBlocksPerSm = 24;  // most of the room holds no token, and every block adds up the counts
constexpr int kMaxGroups = 1024;

struct Params {
  const Bf16* gate_up;
  int n;
  const int32_t* group_begin;  // nullptr: masked
  const int32_t* group_rows;   // nullptr: all rows
  int num_groups;
  int64_t rows;
  int64_t rows_per_group;  // room of a group; not masked: all rows
  uint8_t* q;
  float* scales;
  int64_t scale_stride;
};

// ends[g] = rows of groups 0 .. g, each at most `room`. All threads call it; the first warp works.
__device__ void add_up(const int32_t* rows, int count, int room, int32_t* ends) {
  if (threadIdx.x < 32) {
    int32_t before = 0;
    for (int begin = 0; begin < count; begin += 32) {
      const int g = begin + threadIdx.x;
      int32_t sum = g < count ? min(max(rows[g], 0), room) : 0;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int32_t other = __shfl_up_sync(kAllLanes, sum, step);
        if (static_cast<int>(threadIdx.x) >= step) sum += other;
      }
      if (g < count) ends[g] = before + sum;
      before += __shfl_sync(kAllLanes, sum, 31);
    }
  }
  __syncthreads();
}

// The group that holds row i of all groups' rows: the first with ends[g] > i, which there is.
__device__ int find_group(const int32_t* ends, int count, int i) {
  for (int begin = 0;; begin += 32) {
    const int g = begin + threadIdx.x % 32;
    const uint32_t beyond = __ballot_sync(kAllLanes, g < count && ends[g] > i);
    if (beyond != 0) return begin + __ffs(beyond) - 1;
  }
}

// -infinity becomes the lowest finite value, whose silu is 0 and not NaN. NaN stays.
__device__ uint4 above_minus_infinity(uint4 v) {
  const auto clamp = [](uint32_t pair) {
    uint32_t result;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(pair), "r"(0xff7fff7fu));
    return result;
  };
  return {clamp(v.x), clamp(v.y), clamp(v.z), clamp(v.w)};
}

// kChannels channels of a row from `begin` on, the row's scales starting at `scales`.
__device__ void silu_chunk(const Params& p, int64_t row, int begin, float* scales) {
  const Bf16* gate = p.gate_up + row * 2 * p.n;
  const int lane = threadIdx.x % 32;
  uint4 gate_vecs[kVecs], up_vecs[kVecs];
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int at = begin + (i * 32 + lane) * kVec;
    gate_vecs[i] = at < p.n ? stream_vec(gate + at) : uint4{};
    up_vecs[i] = at < p.n ? stream_vec(gate + p.n + at) : uint4{};
  }
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int at = begin + (i * 32 + lane) * kVec;
    float g[kVec], u[kVec];
    unpack(above_minus_infinity(gate_vecs[i]), g), unpack(up_vecs[i], u);
#pragma unroll
    for (int j = 0; j < kVec; ++j) g[j] = g[j] * approx_sigmoid(g[j]) * u[j];
    const float scale = scale_of(group_max(max_abs(g)));
    const uint2 codes = quantize_vec<false>(g, scale);
    if (at >= p.n) continue;
    *reinterpret_cast<uint2*>(p.q + row * p.n + at) = codes;
    if (lane % kLanesPerGroup == 0) scales[at / kScaleGroup * p.scale_stride] = scale;
  }
}

__global__ void __launch_bounds__(kWarps * 32, kResidentBlocks) silu_mul_kernel(const Params p) {
  begin_chained();
  __shared__ int32_t ends[kMaxGroups];
  if (p.group_rows != nullptr) add_up(p.group_rows, p.num_groups, static_cast<int>(p.rows_per_group), ends);
  const int per_row = (p.n + kChannels - 1) / kChannels;
  const int total = (p.group_rows == nullptr ? static_cast<int>(p.rows) : ends[p.num_groups - 1]) * per_row;
  for (int task = blockIdx.x * kWarps + threadIdx.x / 32; task < total; task += gridDim.x * kWarps) {
    const int i = task / per_row, begin = (task - i * per_row) * kChannels;
    if (p.group_rows == nullptr) {
      silu_chunk(p, i, begin, p.scales + i);
      continue;
    }
    const int g = find_group(ends, p.num_groups, i), in_group = i - (g == 0 ? 0 : ends[g - 1]);
    if (p.group_begin != nullptr) {
      const int64_t row = int64_t{p.group_begin[g]} + in_group;
      silu_chunk(p, row, begin, p.scales + row);
    } else {
      silu_chunk(p, g * p.rows_per_group + in_group, begin,
                 p.scales + g * (p.n / kScaleGroup) * p.scale_stride + in_group);
    }
  }
}

}  // namespace

absl::Status silu_mul_quantize(cudaStream_t stream, const SiluMulQuantizeArgs& args) {
  const int64_t rows = args.q.dim(0), n = args.q.dim(1);
  const bool grouped = args.group_rows.defined(), masked = grouped && !args.group_begin.defined();
  const int64_t num_groups = grouped ? args.group_rows.dim(0) : 1;
  ArgsCheck check("silu_mul_quantize");
  check.require(n > 0 && n % kScaleGroup == 0 && n <= (int64_t{1} << 24), "channels divisible by 128");
  check.require(num_groups >= 1 && num_groups <= kMaxGroups, "1 to 1024 groups");
  const int64_t tasks = rows * ((n + kChannels - 1) / kChannels);
  check.require(tasks <= int64_t{1} << 30, "at most 2^30 times 512 channels");
  check.require(!masked || rows % num_groups == 0, "rows divisible by the number of groups");
  MOESAIC_RETURN_IF_ERROR(check.status());
  const int64_t scale_rows = masked ? rows / num_groups : rows;
  check.tensor("gate_up", args.gate_up, DType::kBF16, {rows, 2 * n}).tensor("q", args.q, DType::kE4M3, {rows, n});
  if (grouped) check.tensor("group_rows", args.group_rows, DType::kI32, {num_groups});
  if (args.group_begin.defined()) check.tensor("group_begin", args.group_begin, DType::kI32, {num_groups});
  if (masked) {
    check.tensor("scales", args.scales, DType::kF32, {num_groups, n / kScaleGroup, scale_row_stride(scale_rows)});
  } else {
    check.tensor("scales", args.scales, DType::kF32, {n / kScaleGroup, scale_row_stride(scale_rows)});
  }
  MOESAIC_RETURN_IF_ERROR(check.status());
  if (rows == 0) return absl::OkStatus();
  MOESAIC_ASSIGN_OR_RETURN(const int num_sms, current_num_sms());
  const Params p{.gate_up = args.gate_up.data<Bf16>(),
                 .n = static_cast<int>(n),
                 .group_begin = args.group_begin.data<int32_t>(),
                 .group_rows = args.group_rows.data<int32_t>(),
                 .num_groups = static_cast<int>(num_groups),
                 .rows = rows,
                 .rows_per_group = scale_rows,
                 .q = args.q.data<uint8_t>(),
                 .scales = args.scales.data<float>(),
                 .scale_stride = scale_row_stride(scale_rows)};
  const int64_t blocks =
      std::min<int64_t>((tasks + kWarps - 1) / kWarps, int64_t{num_sms} * (masked ? kMaskedBlocksPerSm : kBlocksPerSm));
  launch_chained(stream, silu_mul_kernel, blocks, kWarps * 32, 0, p);
  return absl::OkStatus();
}

}  // namespace moesaic::cuda
