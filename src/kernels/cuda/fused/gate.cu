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
constexpr int kManyWarps = 16;  // with many tokens: their counts leave a block together
constexpr int kManyTokens = 2048;
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
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < topk; ++i) sum += __shfl_sync(kAllLanes, score, i);  // in top-k order, as the definition
  const float factor = p.normalize ? __fdividef(p.scaling, sum + 1e-20f) : p.scaling;
  if (lane >= topk) return;
  p.ids[int64_t{token} * topk + lane] = expert;
  p.weights[int64_t{token} * topk + lane] = score * factor;
}

__device__ void finish_unrouted(const Params& p, int token) {
  const int lane = threadIdx.x % 32;
  if (lane >= p.topk) return;
  p.ids[int64_t{token} * p.topk + lane] = -1;
  p.weights[int64_t{token} * p.topk + lane] = 0.0f;
}

__device__ void swap_if_less(uint32_t& a, uint32_t& b, int& a_index, int& b_index) {
  const bool less = a < b;  // equal ones stay in order
  const uint32_t key = a;
  const int index = a_index;
  a = less ? b : a, a_index = less ? b_index : a_index;
  b = less ? key : b, b_index = less ? index : b_index;
}

// ---- DeepSeek-V3: 256 experts, 8 groups of 32, 4 kept --------------------------------------------------------------

constexpr int kV3Experts = 256, kV3Groups = 8, kV3Kept = 4;

// The number of the lane's group (four lanes) among the groups, best first.
__device__ int group_rank(float group_score) {
  const int group = threadIdx.x % 32 / 4;
  int rank = 0;
#pragma unroll
  for (int d = 1; d < kV3Groups; ++d) {
    const float other = __shfl_xor_sync(kAllLanes, group_score, 4 * d);
    rank += other > group_score || (other == group_score && (group ^ d) < group);
  }
  return rank;
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

// Where expert e lies in shared memory: lanes write their first four, then their last four experts without conflicts.
__device__ int v3_place(int e) {
  return (e & 4) * 32 + e / 8 * 4 + (e & 3);
}

struct V3Shared {
  float scores[kV3Experts], choice[kV3Experts];
  int experts[32];  // chosen, best first
};

// Warps of a block; then the counts of its tokens.
template <bool kSigmoid, int kTopk>
__device__ void gate_v3_token(const Params& p, int token, V3Shared& shared, int* block_counts) {
  const int lane = threadIdx.x % 32, topk = kTopk > 0 ? kTopk : p.topk;
  if (token >= p.num_tokens) return;
  if (p.num_valid != nullptr && token >= *p.num_valid) return finish_unrouted(p, token);
  const float4* from = reinterpret_cast<const float4*>(p.logits + int64_t{token} * kV3Experts) + lane * 2;
  const float4 low = from[0], high = from[1];
  float score[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}, choice[8];
  float4 bias[2] = {};
  if (p.bias != nullptr) {
    bias[0] = reinterpret_cast<const float4*>(p.bias)[lane * 2];
    bias[1] = reinterpret_cast<const float4*>(p.bias)[lane * 2 + 1];
  }
  if (!compute_scores(kSigmoid, score)) return finish_unrouted(p, token);
  const float biases[8] = {bias[0].x, bias[0].y, bias[0].z, bias[0].w, bias[1].x, bias[1].y, bias[1].z, bias[1].w};
#pragma unroll
  for (int i = 0; i < 8; ++i) choice[i] = score[i] + biases[i];
  float4* scores = reinterpret_cast<float4*>(shared.scores) + lane;
  float4* choices = reinterpret_cast<float4*>(shared.choice) + lane;
  scores[0] = {score[0], score[1], score[2], score[3]}, scores[32] = {score[4], score[5], score[6], score[7]};
  choices[0] = {choice[0], choice[1], choice[2], choice[3]}, choices[32] = {choice[4], choice[5], choice[6], choice[7]};
  const float group_score = v3_group_score(p.noaux, choice);
  uint32_t kept = __ballot_sync(kAllLanes, group_rank(group_score) < kV3Kept && group_score > kLowest) & 0x11111111u;
  __syncwarp();
  // The kept groups' experts anew, four to a lane: eight lanes a group.
  const int nth = lane / 8;
#pragma unroll
  for (int i = 0; i < kV3Kept - 1; ++i) kept = i < nth ? kept & (kept - 1) : kept;
  const int first = kept == 0 ? 0 : (__ffs(kept) - 1) * 8 + lane % 8 * 4;
  const float4 four = *reinterpret_cast<const float4*>(shared.choice + v3_place(first));
  const float values[4] = {four.x, four.y, four.z, four.w};
  uint32_t key[4];
  int index[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    key[i] = kept == 0 ? kTaken : order_key(values[i]);
    index[i] = key[i] == kTaken ? -1 : first + i;
  }
  // Neighbours only are exchanged, so that equal ones stay in order: odd-even, four rounds.
#pragma unroll
  for (int round = 0; round < 4; ++round) {
#pragma unroll
    for (int i = round % 2; i + 1 < 4; i += 2) swap_if_less(key[i], key[i + 1], index[i], index[i + 1]);
  }
  // Without branches: the lane that holds the largest writes its expert and moves on to its next.
#pragma unroll
  for (int i = 0; i < topk; ++i) {
    const unsigned holders = __ballot_sync(kAllLanes, key[0] == __reduce_max_sync(kAllLanes, key[0]));
    const bool mine = (holders & ((2u << lane) - 1)) == 1u << lane;  // the lowest of them
    if (mine) shared.experts[i] = index[0];
#pragma unroll
    for (int j = 0; j < 3; ++j) key[j] = mine ? key[j + 1] : key[j], index[j] = mine ? index[j + 1] : index[j];
    key[3] = mine ? kTaken : key[3], index[3] = mine ? -1 : index[3];
  }
  __syncwarp();
  const int expert = lane < topk ? shared.experts[lane] : -1;
  write_routed<kTopk>(p, token, expert, expert >= 0 ? shared.scores[v3_place(expert)] : 0.0f);
  if (expert >= 0 && block_counts != nullptr) atomicAdd(block_counts + expert, 1);
}

template <bool kSigmoid, int kTopk>
__global__ void __launch_bounds__(kManyWarps * 32) gate_v3_kernel(const Params p) {
  extern __shared__ __align__(16) V3Shared shared[];
  __shared__ int block_counts[kV3Experts];
  const int warp = threadIdx.x / 32, token = blockIdx.x * (blockDim.x / 32) + warp;
  if (p.counts == nullptr) return gate_v3_token<kSigmoid, kTopk>(p, token, shared[warp], nullptr);
  if (threadIdx.x < kV3Experts) block_counts[threadIdx.x] = 0;
  __syncthreads();
  gate_v3_token<kSigmoid, kTopk>(p, token, shared[warp], block_counts);
  __syncthreads();
  // Neighbours leave together: a warp's 32 additions are four operations of the L2 cache, not 32.
  if (threadIdx.x < kV3Experts && block_counts[threadIdx.x] != 0) {
    atomicAdd(p.counts + threadIdx.x, block_counts[threadIdx.x]);
  }
}

void launch_v3(cudaStream_t stream, const Params& p) {
  const int warps = p.num_tokens >= kManyTokens ? kManyWarps : kWarps;
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
  if (p.num_valid != nullptr && token >= *p.num_valid) return finish_unrouted(p, token);
  float score[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int e = lane * N + i;
    score[i] = e < p.num_experts ? p.logits[int64_t{token} * p.num_experts + e] : kLowest;
  }
  if (!compute_scores(p.sigmoid, score)) return finish_unrouted(p, token);
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
