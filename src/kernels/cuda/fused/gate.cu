// A warp a token. Selection takes the largest of the lanes' best candidates (redux), the lowest lane among equals:
// lanes hold ascending runs of experts, so that it is the lowest expert too. Candidates carry their index.
#include <algorithm>

#include "kernels/cuda/fused/args_check.h"
#include "kernels/cuda/fused/gate.h"
#include "kernels/cuda/fused/vec.cuh"
#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {
namespace {

constexpr int kWarps = 8;       // tokens of a block
constexpr int kMostWarps = 32;  // of a V3 block
constexpr int kLeastWarps = 4;
constexpr int kBlocks = 128;  // V3: of one wave; more tokens to a block, as each block adds its counts to memory
constexpr int kMaxExperts = 512;
constexpr int kMaxTopk = 32;
constexpr float kLowest = -INFINITY;
constexpr uint32_t kTaken = 0x007fffffu;  // the key of -infinity: taken, or never to be taken

struct Params {
  const float* logits;
  const float* bias;
  const int32_t* num_valid;
  int num_tokens, num_experts, topk;
  bool sigmoid, noaux, normalize;
  int n_group, topk_group;  // n_group 1: no groups
  float scaling;
  int32_t* ids;
  float* weights;
  int32_t* counts;
};

// Unsigned order of keys = order of values; NaN counts as -infinity, -0 as 0.
__device__ uint32_t order_key(float value) {
  const uint32_t bits = __float_as_uint((value > kLowest ? value : kLowest) + 0.0f);
  return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
}

__device__ void larger_first(uint32_t& a, uint32_t& b) {
  const uint32_t larger = max(a, b);
  b = min(a, b), a = larger;
}

// The lanes' scores become sigmoid or softmax; absent experts (-infinity beyond num_experts) score 0. False where one
// is NaN.
template <int N>
__device__ bool compute_scores(bool by_sigmoid, float (&x)[N]) {
  if (by_sigmoid) {
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = approx_sigmoid(x[i]);
  } else {
    float most = kLowest;
#pragma unroll
    for (int i = 0; i < N; ++i) most = fmaxf(most, x[i]);
    for (int lane = 16; lane > 0; lane /= 2) most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, lane));
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < N; ++i) sum += x[i] = __expf(x[i] - most);
    sum = warp_sum(sum);
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = __fdividef(x[i], sum);
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < N; ++i) sum += x[i];
  return !__any_sync(kAllLanes, isnan(sum));
}

// Lanes 0 .. topk-1 give expert (-1: none) and its score (0: none) and write ids and weights.
template <int kTopk>
__device__ void write_routed(const Params& p, int token, int expert, float score) {
  const int lane = threadIdx.x % 32, topk = kTopk > 0 ? kTopk : p.topk;
  float sum = score;
#pragma unroll
  for (int step = 1; step < topk; step *= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  const float factor = p.normalize ? __fdividef(p.scaling, sum + 1e-20f) : p.scaling;
  if (lane >= topk) return;
  p.ids[int64_t{token} * topk + lane] = expert;
  p.weights[int64_t{token} * topk + lane] = score * factor;
}

// ---- DeepSeek-V3: 256 experts, 8 groups of 32, 4 kept --------------------------------------------------------------

constexpr int kV3Experts = 256, kV3Groups = 8, kV3Kept = 4;

// Whether the lane's group (four lanes) is one of the best four. Its lanes compare it with two groups each.
__device__ bool v3_is_kept(float group_score) {
  const int lane = threadIdx.x % 32, group = lane / 4;
  int before = 0;  // groups that are better
#pragma unroll
  for (int d = 1; d <= 2; ++d) {
    const int other_group = (group + lane % 4 * 2 + d) % kV3Groups;
    const float other = __shfl_sync(kAllLanes, group_score, other_group * 4);
    before += other > group_score || (other == group_score && other_group < group);
  }
  before += __shfl_xor_sync(kAllLanes, before, 1);
  before += __shfl_xor_sync(kAllLanes, before, 2);
  return before < kV3Kept && group_score > kLowest;
}

__device__ float v3_group_score(bool noaux, const float (&choice)[8]) {
  float first = kLowest, second = kLowest;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    second = fmaxf(second, fminf(first, choice[i]));
    first = fmaxf(first, choice[i]);
  }
#pragma unroll
  for (int lane = 1; lane <= 2; lane *= 2) {
    const float other = __shfl_xor_sync(kAllLanes, first, lane), next = __shfl_xor_sync(kAllLanes, second, lane);
    second = fmaxf(fmaxf(second, next), fminf(first, other));
    first = fmaxf(first, other);
  }
  return noaux ? first + second : first;
}

// Lanes write their first four, then their last four experts: without bank conflicts.
__device__ int v3_place(int e) {
  return (e & 4) * 32 + e / 8 * 4 + (e & 3);
}

struct V3Shared {
  float scores[kV3Experts];  // at v3_place
  float4 choice[2][20];      // of the kept groups' experts, 16 fours by turns, and what keeps the banks apart
  int32_t groups[kV3Kept];   // kept, ascending
  uint2 chosen[32];          // key and first expert of the lane that held it, best first
};

// Each lane's scores of eight experts and what they are chosen by (choice) -> the expert of lane i < topk (-1: none)
// and its score. An expert's key ends in its number within its lane; keys are compared without it.
template <int kTopk>
__device__ int v3_select(const Params& p, const float (&score)[8], const float (&choice)[8], V3Shared& shared,
                         float* chosen_score) {
  const int lane = threadIdx.x % 32, topk = kTopk > 0 ? kTopk : p.topk;
  float4* scores = reinterpret_cast<float4*>(shared.scores) + lane;
  scores[0] = {score[0], score[1], score[2], score[3]}, scores[32] = {score[4], score[5], score[6], score[7]};
  const bool is_kept = v3_is_kept(v3_group_score(p.noaux, choice));
  const uint32_t kept = __ballot_sync(kAllLanes, is_kept) & 0x11111111u;  // a bit a group
  if (is_kept) {
    const int place = __popc(kept & ((1u << (lane & ~3)) - 1));
    shared.choice[0][place * 4 + lane % 4] = {choice[0], choice[1], choice[2], choice[3]};
    shared.choice[1][place * 4 + lane % 4] = {choice[4], choice[5], choice[6], choice[7]};
    if (lane % 4 == 0) shared.groups[place] = lane / 4;
  }
  __syncwarp();
  // The kept groups' experts anew, four to a lane: eight lanes a group.
  const bool holds = lane / 8 < __popc(kept);
  const float4 four = shared.choice[lane % 2][lane / 2];
  const uint32_t first = shared.groups[lane / 8] * 32 + lane % 8 * 4;
  uint32_t key[4] = {order_key(four.x) | 3u, (order_key(four.y) & ~3u) | 2u, (order_key(four.z) & ~3u) | 1u,
                     order_key(four.w) & ~3u};
#pragma unroll
  for (int i = 0; i < 4; ++i) key[i] = holds ? key[i] : 0;
  larger_first(key[0], key[1]), larger_first(key[2], key[3]), larger_first(key[0], key[2]);
  larger_first(key[1], key[3]), larger_first(key[1], key[2]);
  // Without branches: the lane that holds the largest, the lowest of them, writes it and moves on to its next.
#pragma unroll
  for (int i = 0; i < topk; ++i) {
    const uint32_t head = key[0] & ~3u, best = __reduce_max_sync(kAllLanes, head);
    const uint32_t holders = __ballot_sync(kAllLanes, head == best);
    if (head == best && (holders & ((1u << lane) - 1)) == 0) {
      shared.chosen[i] = {key[0], first};
      key[0] = key[1], key[1] = key[2], key[2] = key[3], key[3] = 0;
    }
  }
  __syncwarp();
  if (lane >= topk) return -1;
  const uint2 chosen = shared.chosen[lane];
  if (chosen.x <= kTaken) return -1;
  const int expert = static_cast<int>(chosen.y + 3 - chosen.x % 4);
  *chosen_score = shared.scores[v3_place(expert)];
  return expert;
}

// A warp a token; then the counts of a block's tokens.
template <bool kSigmoid, int kTopk>
__global__ void __launch_bounds__(kMostWarps * 32) gate_v3_kernel(const Params p) {
  extern __shared__ __align__(16) V3Shared shared[];
  __shared__ int block_counts[kV3Experts];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, token = blockIdx.x * (blockDim.x / 32) + warp;
  const bool routes = token < p.num_tokens && (p.num_valid == nullptr || token < *p.num_valid);
  float4 logits[2] = {}, bias[2] = {};
  if (routes) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      logits[i] = reinterpret_cast<const float4*>(p.logits + int64_t{token} * kV3Experts)[lane * 2 + i];
      if (p.bias != nullptr) bias[i] = reinterpret_cast<const float4*>(p.bias)[lane * 2 + i];
    }
  }
  if (p.counts != nullptr) {
    for (int e = threadIdx.x; e < kV3Experts; e += blockDim.x) block_counts[e] = 0;
    __syncthreads();
  }
  int expert = -1;
  float expert_score = 0.0f;
  if (routes) {
    float score[8] = {logits[0].x, logits[0].y, logits[0].z, logits[0].w,
                      logits[1].x, logits[1].y, logits[1].z, logits[1].w};
    const float biases[8] = {bias[0].x, bias[0].y, bias[0].z, bias[0].w, bias[1].x, bias[1].y, bias[1].z, bias[1].w};
    float choice[8];
    const bool has_no_nan = compute_scores(kSigmoid, score);
#pragma unroll
    for (int i = 0; i < 8; ++i) choice[i] = score[i] + biases[i];
    if (has_no_nan) expert = v3_select<kTopk>(p, score, choice, shared[warp], &expert_score);
  }
  if (token < p.num_tokens) write_routed<kTopk>(p, token, expert, expert_score);
  if (p.counts == nullptr) return;
  if (expert >= 0) atomicAdd(block_counts + expert, 1);
  __syncthreads();
  // Neighbours leave together: a warp's 32 additions are four operations of the L2 cache, not 32.
  for (int e = threadIdx.x; e < kV3Experts; e += blockDim.x) {
    if (block_counts[e] != 0) atomicAdd(p.counts + e, block_counts[e]);
  }
}

void launch_v3(cudaStream_t stream, const Params& p) {
  int warps = kLeastWarps;
  while (warps < kMostWarps && warps * kBlocks < p.num_tokens) warps *= 2;
  const unsigned blocks = (p.num_tokens + warps - 1) / warps, bytes = warps * sizeof(V3Shared);
  const auto kernel = !p.sigmoid    ? gate_v3_kernel<false, 0>
                      : p.topk == 8 ? gate_v3_kernel<true, 8>
                                    : gate_v3_kernel<true, 0>;
  MOESAIC_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  kernel<<<blocks, warps * 32, bytes, stream>>>(p);
}

// ---- Any other shape ---------------------------------------------------------------------------------------------

// Leaves -infinity in all but the best groups. Lane l rates groups l, l + 32, ...
__device__ void keep_groups(const Params& p, float* choice, float* group_scores) {
  const int lane = threadIdx.x % 32, size = p.num_experts / p.n_group;
  for (int g = lane; g < p.n_group; g += 32) {
    float first = kLowest, second = kLowest;
    for (int i = 0; i < size; ++i) {
      const float value = choice[g * size + i];
      second = fmaxf(second, fminf(first, value));
      first = fmaxf(first, value);
    }
    group_scores[g] = p.noaux ? first + second : first;
  }
  __syncwarp();
  for (int g = lane; g < p.n_group; g += 32) {
    const float own = group_scores[g];
    int rank = own > kLowest ? 0 : p.topk_group;
    for (int other = 0; other < p.n_group; ++other) {
      rank += group_scores[other] > own || (group_scores[other] == own && other < g);
    }
    if (rank < p.topk_group) continue;
    for (int i = 0; i < size; ++i) choice[g * size + i] = kLowest;
  }
  __syncwarp();
}

// N experts a lane, those of lane l starting at l * N.
template <int N>
__global__ void __launch_bounds__(kWarps * 32) gate_kernel(const Params p) {
  __shared__ float shared_scores[kWarps][N * 32], shared_choice[kWarps][N * 32], shared_groups[kWarps][N * 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, token = blockIdx.x * kWarps + warp;
  if (token >= p.num_tokens) return;
  if (p.num_valid != nullptr && token >= *p.num_valid) return write_routed<0>(p, token, -1, 0.0f);
  float score[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int e = lane * N + i;
    score[i] = e < p.num_experts ? p.logits[int64_t{token} * p.num_experts + e] : kLowest;
  }
  if (!compute_scores(p.sigmoid, score)) return write_routed<0>(p, token, -1, 0.0f);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int e = lane * N + i;
    shared_scores[warp][e] = score[i];
    shared_choice[warp][e] = e >= p.num_experts ? kLowest : p.bias == nullptr ? score[i] : score[i] + p.bias[e];
  }
  __syncwarp();
  if (p.n_group > 1) keep_groups(p, shared_choice[warp], shared_groups[warp]);
  uint32_t key[N];
#pragma unroll
  for (int i = 0; i < N; ++i) key[i] = order_key(shared_choice[warp][lane * N + i]);
  int expert = -1;
  for (int round = 0; round < p.topk; ++round) {
    uint32_t own = kTaken;
    int own_index = 0;
#pragma unroll
    for (int i = N - 1; i >= 0; --i) {
      if (key[i] >= own) own = key[i], own_index = i;
    }
    const uint32_t best = __reduce_max_sync(kAllLanes, own);
    if (best == kTaken) break;
    const int winner = __ffs(__ballot_sync(kAllLanes, own == best)) - 1;
    const int id = __shfl_sync(kAllLanes, lane * N + own_index, winner);
    if (lane == round) expert = id;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (lane == winner && i == own_index) key[i] = kTaken;
    }
  }
  write_routed<0>(p, token, expert, expert >= 0 ? shared_scores[warp][expert] : 0.0f);
  if (p.counts != nullptr && expert >= 0) atomicAdd(p.counts + expert, 1);
}

void launch(cudaStream_t stream, const Params& p) {
  const unsigned blocks = (p.num_tokens + kWarps - 1) / kWarps;
  if (p.num_experts == kV3Experts && p.n_group == kV3Groups && p.topk_group == kV3Kept) {
    launch_v3(stream, p);
  } else if (p.num_experts <= 64) {
    gate_kernel<2><<<blocks, kWarps * 32, 0, stream>>>(p);
  } else if (p.num_experts <= 256) {
    gate_kernel<8><<<blocks, kWarps * 32, 0, stream>>>(p);
  } else {
    gate_kernel<16><<<blocks, kWarps * 32, 0, stream>>>(p);
  }
  MOESAIC_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

absl::Status gate(cudaStream_t stream, const GateArgs& args) {
  const int64_t num_tokens = args.logits.dim(0), num_experts = args.logits.dim(1), topk = args.topk_ids.dim(1);
  const bool grouped = args.topk_method != TopkMethod::kGreedy && args.n_group > 1;
  ArgsCheck check("gate");
  check.require(num_experts >= 1 && num_experts <= kMaxExperts, "1 to 512 experts");
  check.require(topk >= 1 && topk <= kMaxTopk, "1 to 32 experts a token");
  check.require(num_tokens <= (int64_t{1} << 30), "at most 2^30 tokens");
  check.require(!grouped || (num_experts % args.n_group == 0 && args.topk_group >= 1), "groups of equal size");
  MOESAIC_RETURN_IF_ERROR(check.status());
  const int64_t kept = grouped ? num_experts / args.n_group * std::min(args.topk_group, args.n_group) : num_experts;
  check.require(topk <= kept, "no more experts a token than the kept groups have");
  check.tensor("logits", args.logits, DType::kF32, {num_tokens, num_experts});
  if (args.bias.defined()) check.tensor("bias", args.bias, DType::kF32, {num_experts});
  if (args.num_valid.defined()) check.tensor("num_valid", args.num_valid, DType::kI32, {1});
  check.tensor("topk_ids", args.topk_ids, DType::kI32, {num_tokens, topk});
  check.tensor("topk_weights", args.topk_weights, DType::kF32, {num_tokens, topk});
  if (args.expert_counts.defined()) check.tensor("expert_counts", args.expert_counts, DType::kI32, {num_experts});
  MOESAIC_RETURN_IF_ERROR(check.status());
  if (num_tokens == 0) return absl::OkStatus();
  launch(stream, {.logits = args.logits.data<float>(),
                  .bias = args.bias.data<float>(),
                  .num_valid = args.num_valid.data<int32_t>(),
                  .num_tokens = static_cast<int>(num_tokens),
                  .num_experts = static_cast<int>(num_experts),
                  .topk = static_cast<int>(topk),
                  .sigmoid = args.scoring_func == ScoringFunc::kSigmoid,
                  .noaux = args.topk_method == TopkMethod::kNoauxTc,
                  .normalize = args.norm_topk_prob,
                  .n_group = grouped ? static_cast<int>(args.n_group) : 1,
                  .topk_group = static_cast<int>(args.topk_group),
                  .scaling = args.routed_scaling_factor,
                  .ids = args.topk_ids.data<int32_t>(),
                  .weights = args.topk_weights.data<float>(),
                  .counts = args.expert_counts.data<int32_t>()});
  return absl::OkStatus();
}

}  // namespace moesaic::cuda
