// A warp a token. Selection takes the largest of the lanes' best candidates (redux), the lowest lane among equals:
// lanes hold ascending runs of experts, so that it is the lowest expert too.
#include <algorithm>
#include <climits>

#include "kernels/cuda/args_check.h"
#include "kernels/cuda/fused/chained_launch.cuh"
#include "kernels/cuda/fused/gate.h"
#include "kernels/cuda/fused/vec.cuh"
#include "tensor/cuda/cuda_error.h"
#include "tensor/cuda/device.h"

namespace moesaic::cuda {
namespace {

constexpr int kWarps = 8;       // tokens of a block
constexpr int kManyWarps = 32;  // with many tokens: their counts leave a block together
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

__device__ float weight_factor(const Params& p, float sum) {
  return p.normalize ? __fdividef(p.scaling, sum + 1e-20f) : p.scaling;
}

// Lanes 0 .. topk-1 give expert (-1: none) and its score (0: none) and write ids and weights.
__device__ void write_routed(const Params& p, int token, int expert, float score) {
  const int lane = threadIdx.x % 32;
  float sum = 0.0f;
  for (int i = 0; i < p.topk; ++i) sum += __shfl_sync(kAllLanes, score, i);  // in top-k order, as the definition
  if (lane >= p.topk) return;
  p.ids[int64_t{token} * p.topk + lane] = expert;
  p.weights[int64_t{token} * p.topk + lane] = score * weight_factor(p, sum);
}

__device__ void finish_unrouted(const Params& p, int token) {
  const int lane = threadIdx.x % 32;
  if (lane >= p.topk) return;
  p.ids[int64_t{token} * p.topk + lane] = -1;
  p.weights[int64_t{token} * p.topk + lane] = 0.0f;
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

struct Scratch {  // of a warp, in shared memory: a place an expert, a place a group
  float *scores, *choice, *groups;
};

// N experts a lane, those of lane l starting at l * N. Counts may be in shared memory.
template <int N>
__device__ __noinline__ void gate_token(const Params& p, int token, const Scratch& scratch, int32_t* counts) {
  const int lane = threadIdx.x % 32;
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
    scratch.scores[e] = score[i];
    scratch.choice[e] = e >= p.num_experts ? kLowest : p.bias == nullptr ? score[i] : score[i] + p.bias[e];
  }
  __syncwarp();
  if (p.n_group > 1) keep_groups(p, scratch.choice, scratch.groups);
  uint32_t key[N];
#pragma unroll
  for (int i = 0; i < N; ++i) key[i] = order_key(scratch.choice[lane * N + i]);
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
  write_routed(p, token, expert, expert >= 0 ? scratch.scores[expert] : 0.0f);
  if (counts != nullptr && expert >= 0) atomicAdd(counts + expert, 1);
}

template <int N>
__global__ void __launch_bounds__(kWarps * 32) gate_kernel(const __grid_constant__ Params p) {
  __shared__ float scores[kWarps][N * 32], choice[kWarps][N * 32], groups[kWarps][N * 32];
  const int warp = threadIdx.x / 32, token = blockIdx.x * kWarps + warp;
  begin_chained();
  if (token < p.num_tokens) gate_token<N>(p, token, {scores[warp], choice[warp], groups[warp]}, p.counts);
}

// ---- DeepSeek-V3: sigmoid, 256 experts in 8 groups, 4 kept by the sum of their best two, 8 chosen -------------------
//
// Time is instructions, of the integer pipe most of all, and their latency. Every lane sorts its 8 choices by minimum
// and maximum alone, without indices; in each of 8 rounds one lane's best is taken off. Which of the lane's experts it
// was is found afterwards, by comparing: exact unless two of one lane are equal. Then, and where a score is NaN or
// there are not 8 to choose from, gate_token does the token anew.

constexpr int kV3Experts = 256, kV3Groups = 8, kV3Kept = 4, kV3Topk = 8;

struct V3Shared {  // of a warp
  float scores[kV3Experts];
  int sorted[kV3Experts + 4];  // keys, each lane's best first; four that mean nothing
  int2 taken[kV3Topk];         // each round's key, and its lane's first expert
  float chosen[kV3Topk];       // scores, best first
  float groups[kV3Groups];
};

__device__ void load_eight(const float* from, float (&x)[8]) {
  const float4 low = reinterpret_cast<const float4*>(from)[0], high = reinterpret_cast<const float4*>(from)[1];
  x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w, x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

__device__ int load_key(uint32_t address) {
  int value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address));
  return value;
}

// Both are NaN if one of the two is.
__device__ void order(float& a, float& b) {
  float more, less;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(more) : "f"(a), "f"(b));
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(less) : "f"(a), "f"(b));
  a = more, b = less;
}

// Largest first, by a network of 19 exchanges (Knuth, "The Art of Computer Programming", 5.3.4).
__device__ void sort_eight(float (&x)[8]) {
  constexpr int kExchanges[][2] = {{0, 2}, {1, 3}, {4, 6}, {5, 7}, {0, 4}, {1, 5}, {2, 6}, {3, 7}, {0, 1}, {2, 3},
                                   {4, 5}, {6, 7}, {2, 4}, {3, 5}, {1, 4}, {3, 6}, {1, 2}, {3, 4}, {5, 6}};
#pragma unroll
  for (const auto& pair : kExchanges) order(x[pair[0]], x[pair[1]]);
}

// Order of keys = order of values, for those that are not NaN nor -0. Its own inverse.
__device__ int signed_key(int bits) {
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

// True in the four lanes of each kept group. `first` and `second` are the lane's two largest.
__device__ bool v3_is_kept(float first, float second) {
#pragma unroll
  for (int lane = 1; lane <= 2; lane *= 2) {
    const float other = __shfl_xor_sync(kAllLanes, first, lane), next = __shfl_xor_sync(kAllLanes, second, lane);
    second = fmaxf(fmaxf(second, next), fminf(first, other));
    first = fmaxf(first, other);
  }
  // Each of the four lanes compares with two groups.
  const int lane = threadIdx.x % 32, group = lane / 4, rival = lane % 4 * 2;
  const float own = first + second;
  const float rival0 = __shfl_sync(kAllLanes, own, rival * 4), rival1 = __shfl_sync(kAllLanes, own, rival * 4 + 4);
  const unsigned before0 = __ballot_sync(kAllLanes, (rival0 > own) | ((rival0 == own) & (rival < group)));
  const unsigned before1 = __ballot_sync(kAllLanes, (rival1 > own) | ((rival1 == own) & (rival + 1 < group)));
  const unsigned lanes = 0xfu << (lane & 28);
  return __popc(before0 & lanes) + __popc(before1 & lanes) < kV3Kept && own > kLowest;
}

// Logits and biases: eight a lane. False if the token must be done anew: nothing is written then.
__device__ bool gate_v3_token(const Params& p, int token, const float (&logits)[8], const float (&bias)[8],
                              V3Shared& shared, int32_t* block_counts) {
  const int lane = threadIdx.x % 32;
  float score[8], choice[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) score[i] = approx_sigmoid(logits[i]), choice[i] = score[i] + bias[i];
  float4* scores = reinterpret_cast<float4*>(shared.scores) + lane * 2;
  scores[0] = {score[0], score[1], score[2], score[3]}, scores[1] = {score[4], score[5], score[6], score[7]};
  sort_eight(choice);
  int key[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) key[i] = __float_as_int(choice[i]);
  // As integers, values compare right as long as the chosen ones are not negative; other keys are needed only where a
  // lane's best is negative.
  int least = 0;
  if (!__all_sync(kAllLanes, choice[0] >= 0.0f)) {
    if (__any_sync(kAllLanes, isnan(choice[0]))) return false;
#pragma unroll
    for (int i = 0; i < 8; ++i) key[i] = signed_key(key[i]);
    least = signed_key(__float_as_int(kLowest)) + 1;
  }
  int4* sorted = reinterpret_cast<int4*>(shared.sorted) + lane * 2;
  sorted[0] = {key[0], key[1], key[2], key[3]}, sorted[1] = {key[4], key[5], key[6], key[7]};
  __syncwarp();
  uint32_t next_place = shared_address(shared.sorted + lane * 8 + 1);
  int own = v3_is_kept(choice[0], choice[1]) ? key[0] : INT_MIN, next = key[1], best = 0;
  const unsigned lower = (1u << lane) - 1;
#pragma unroll
  for (int i = 0; i < kV3Topk; ++i) {
    best = __reduce_max_sync(kAllLanes, own);
    const unsigned holders = __ballot_sync(kAllLanes, own == best);
    if (own == best && (holders & lower) == 0) {
      shared.taken[i] = {own, lane * 8};
      own = next;
      next_place += 4;
      next = load_key(next_place);  // not the lane's own after its last two: it comes too late
    }
  }
  __syncwarp();
  // Four lanes look at the eight experts that one of the chosen came from.
  const int2 taken = shared.taken[lane / 4];
  const int expert = taken.y + lane % 4 * 2;
  const float2 two = *reinterpret_cast<const float2*>(shared.scores + expert);
  const float2 two_bias = p.bias == nullptr ? float2{} : *reinterpret_cast<const float2*>(p.bias + expert);
  const float value = __int_as_float(signed_key(taken.x));
  const bool is_first = two.x + two_bias.x == value, is_second = two.y + two_bias.y == value;
  const unsigned first = __ballot_sync(kAllLanes, is_first), second = __ballot_sync(kAllLanes, is_second);
  if (__popc(first) + __popc(second) != kV3Topk || best < least) return false;
  const float chosen = is_first ? two.x : two.y;
  if (is_first || is_second) shared.chosen[lane / 4] = chosen;
  __syncwarp();
  if (!is_first && !is_second) return true;
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < kV3Topk; ++i) total += shared.chosen[i];  // in top-k order, as the definition
  p.ids[int64_t{token} * kV3Topk + lane / 4] = expert + is_second;
  p.weights[int64_t{token} * kV3Topk + lane / 4] = chosen * weight_factor(p, total);
  if (p.counts != nullptr) atomicAdd(block_counts + expert + is_second, 1);
  return true;
}

// Warps of a block, a token each at a time; then the counts of the block's tokens.
template <int kBlockWarps>
__global__ void __launch_bounds__(kBlockWarps * 32) gate_v3_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) V3Shared shared_of_warps[];
  __shared__ int32_t block_counts[kV3Experts];
  const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32, 0), first_expert = threadIdx.x % 32 * 8;
  const int step = gridDim.x * kBlockWarps;
  int token = blockIdx.x * kBlockWarps + warp;
  V3Shared& shared = shared_of_warps[warp];
  begin_chained();
  float logits[8], bias[8] = {};
  if (token < p.num_tokens) load_eight(p.logits + int64_t{token} * kV3Experts + first_expert, logits);
  if (p.bias != nullptr) load_eight(p.bias + first_expert, bias);
  if (p.counts != nullptr) {
    if (threadIdx.x < kV3Experts) block_counts[threadIdx.x] = 0;
    __syncthreads();
  }
  const int num_valid = p.num_valid == nullptr ? p.num_tokens : *p.num_valid;
  for (; token < p.num_tokens; token += step) {
    float now[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) now[i] = logits[i];
    if (token + step < p.num_tokens) load_eight(p.logits + int64_t{token + step} * kV3Experts + first_expert, logits);
    if (token >= num_valid || !gate_v3_token(p, token, now, bias, shared, block_counts)) {
      __syncwarp();
      const Scratch scratch{shared.scores, reinterpret_cast<float*>(shared.sorted), shared.groups};
      gate_token<8>(p, token, scratch, p.counts == nullptr ? nullptr : block_counts);
    }
    __syncwarp();
  }
  if (p.counts == nullptr) return;
  __syncthreads();
  // Neighbours leave together: a warp's 32 additions are four operations of the L2 cache, not 32.
  if (threadIdx.x < kV3Experts && block_counts[threadIdx.x] != 0) {
    atomicAdd(p.counts + threadIdx.x, block_counts[threadIdx.x]);
  }
}

template <int kBlockWarps>
absl::Status launch_v3(cudaStream_t stream, const Params& p) {
  constexpr unsigned kBytes = kBlockWarps * sizeof(V3Shared);
  MOESAIC_ASSIGN_OR_RETURN(const int num_sms, current_num_sms());
  const auto kernel = gate_v3_kernel<kBlockWarps>;
  MOESAIC_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const int blocks = (p.num_tokens + kBlockWarps - 1) / kBlockWarps, most = num_sms * (kManyWarps / kBlockWarps);
  launch_chained(stream, kernel, std::min(blocks, most), kBlockWarps * 32, kBytes, p);
  return absl::OkStatus();
}

bool is_v3(const Params& p) {
  return p.sigmoid && p.noaux && p.num_experts == kV3Experts && p.n_group == kV3Groups && p.topk_group == kV3Kept &&
         p.topk == kV3Topk;
}

absl::Status launch(cudaStream_t stream, const Params& p) {
  const unsigned blocks = (p.num_tokens + kWarps - 1) / kWarps;
  if (is_v3(p)) return p.num_tokens >= kManyTokens ? launch_v3<kManyWarps>(stream, p) : launch_v3<kWarps>(stream, p);
  const auto kernel = p.num_experts <= 64 ? gate_kernel<2> : p.num_experts <= 256 ? gate_kernel<8> : gate_kernel<16>;
  launch_chained(stream, kernel, blocks, kWarps * 32, 0, p);
  return absl::OkStatus();
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
  return launch(stream, {.logits = args.logits.data<float>(),
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
}

}  // namespace moesaic::cuda
