// A cluster of eight blocks a row: each keeps its part of the logits in shared memory, read from device memory once. A
// cut (top-k, top-p) is found by a histogram over the distance from the largest logit, then among the logits of one
// bin: each adds up what is above it, or, where there are many, by radix over their ordered bits. Masses are 46-bit
// fixed point: their sums do not depend on the order of addition.
#include <cooperative_groups.h>

#include <algorithm>

#include "kernels/cuda/args_check.h"
#include "kernels/cuda/fused/exp.cuh"
#include "kernels/cuda/fused/sample.h"
#include "kernels/cuda/fused/vec.cuh"
#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kBlocks = 8;  // of a cluster
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kBins = 2048;
constexpr int kMergedBins = kBins / kBlocks;  // that a block adds up for all
constexpr int64_t kMaxPart = 43008;           // 172 KB of shared memory
constexpr int kMaxMembers = 1024;
constexpr float kBinsPerUnit = 64.0f;       // of logit distance; the last bin takes what is 32 and more below
constexpr uint32_t kDropped = 0xffffffffu;  // NaN: never a candidate

struct Params {
  const float* logits;
  int64_t row_stride;
  int vocab, part;
  const float* temperature;
  const int32_t* top_k;
  const float* top_p;
  const float* min_p;
  const int64_t* seeds;
  const int64_t* positions;
  int32_t* ids;
};

// What the blocks of a cluster tell each other.
struct Shared {
  uint32_t low[kBins], high[kBins];  // this block's histogram, 64 bits in two halves
  uint64_t merged[kBins];            // of all blocks
  uint64_t warp_values[kWarps];
  uint64_t best;   // order key and inverted id of this block's best logit
  uint64_t value;  // what exclusive_over_blocks adds up
  int chosen;
  uint64_t above;
  int num_members;           // logits of this block in the distance bin that a cut falls into
  int members[kMaxMembers];  // their places
};

// Unsigned order of keys = order of values, as on the CPU; -0 and 0 share one.
__device__ uint32_t order_key(float value) {
  const uint32_t bits = __float_as_uint(value + 0.0f);
  return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
}
__device__ float value_of_key(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

// base/rng.h: the number at `position` of the stream `seed`, in [0, 1).
__device__ double uniform(uint64_t seed, uint64_t position) {
  uint64_t z = seed + (position + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1.0p-53;
}

__device__ uint64_t shuffle_up(uint64_t value, int step) {
  return __shfl_up_sync(kAllLanes, static_cast<unsigned long long>(value), step);
}

// Inclusive over the lanes.
__device__ uint64_t warp_scan(uint64_t value) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint64_t other = shuffle_up(value, step);
    if (threadIdx.x % 32 >= step) value += other;
  }
  return value;
}

__device__ uint64_t warp_total(uint64_t value) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) {
    value += __shfl_xor_sync(kAllLanes, static_cast<unsigned long long>(value), lane);
  }
  return value;
}

// One row; `part` is this block's share of its logits, those of dropped tokens NaN.
class RowSampler {
 public:
  __device__ RowSampler(const Params& p, Shared& shared, float* part)
      : p_(p),
        shared_(shared),
        part_(part),
        cluster_(cg::this_cluster()),
        block_(cluster_.block_rank()),
        row_(blockIdx.x / kBlocks),
        begin_(block_ * p.part),
        count_(max(0, min(p.part, p.vocab - begin_))),
        warp_(threadIdx.x / 32),
        lane_(threadIdx.x % 32) {}

  // The sampled id, in one thread of the cluster; -2 in all others.
  __device__ int run() {
    const uint64_t best = find_best();
    const bool is_first = block_ == 0 && threadIdx.x == 0;
    if (best == 0) return is_first ? -1 : -2;
    max_ = value_of_key(static_cast<uint32_t>(best >> 32));
    const float temperature = p_.temperature[row_];
    inverse_temperature_ = __fdiv_rn(1.0f, temperature);
    const bool greedy = !(temperature > 0.0f) || isinf(inverse_temperature_) || isinf(max_);
    if (greedy) return is_first ? static_cast<int>(~static_cast<uint32_t>(best)) : -2;
    const int top_k = p_.top_k[row_];
    if (top_k > 0 && top_k < p_.vocab) {
      cut([&](uint64_t) { return static_cast<uint64_t>(top_k); }, [](float) { return uint64_t{1}; });
    }
    const float top_p = p_.top_p[row_];
    if (top_p < 1.0f) {
      cut([&](uint64_t total) { return static_cast<uint64_t>(static_cast<double>(total) * fmaxf(top_p, 0.0f)); },
          [&](float logit) { return mass(logit); });
    }
    return pick();
  }

 private:
  // The largest key over the cluster, its lowest id; 0 if all are NaN.
  __device__ uint64_t find_best() {
    const float* row = p_.logits + row_ * p_.row_stride + begin_;
    uint64_t best = 0;
    constexpr int kInFlight = 8;
    for (int first = threadIdx.x * 4; first < count_; first += kInFlight * kThreads * 4) {
      float4 loaded[kInFlight];
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        const int i = first + j * kThreads * 4;
        loaded[j] = i < count_ ? *reinterpret_cast<const float4*>(row + i) : nan4();
      }
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        const int i = first + j * kThreads * 4;
        if (i < count_) *reinterpret_cast<float4*>(part_ + i) = loaded[j];
        const float values[4] = {loaded[j].x, loaded[j].y, loaded[j].z, loaded[j].w};
#pragma unroll
        for (int l = 0; l < 4; ++l) {
          const uint64_t candidate = uint64_t{order_key(values[l])} << 32 | ~static_cast<uint32_t>(begin_ + i + l);
          if (!isnan(values[l])) best = max(best, candidate);
        }
      }
    }
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) {
      best = max(best, uint64_t{__shfl_xor_sync(kAllLanes, static_cast<unsigned long long>(best), lane)});
    }
    if (lane_ == 0) shared_.warp_values[warp_] = best;
    __syncthreads();
    for (int w = 0; w < kWarps; ++w) best = max(best, shared_.warp_values[w]);
    if (threadIdx.x == 0) shared_.best = best;
    cluster_.sync();
    for (int b = 0; b < kBlocks; ++b) best = max(best, *cluster_.map_shared_rank(&shared_.best, b));
    return best;
  }

  __device__ static float4 nan4() {
    const float nan = __uint_as_float(kDropped);
    return {nan, nan, nan, nan};
  }

  // body(logit, its place) for the logits of [begin, end), spread over `step` threads, four at a time.
  template <typename Body>
  __device__ void for_logits(int begin, int end, int thread, int step, const Body& body) const {
#pragma unroll 2
    for (int i = begin + thread * 4; i < end; i += step * 4) {
      const float4 four = *reinterpret_cast<const float4*>(part_ + i);
      body(four.x, i), body(four.y, i + 1), body(four.z, i + 2), body(four.w, i + 3);
    }
  }

  // Weights below 2^-46 have no mass: most of a vocabulary is not worth an exp.
  __device__ float weight(float logit) const {
    const float exponent = __fmul_rn(__fsub_rn(logit, max_), inverse_temperature_);
    return exponent < -32.0f ? 0.0f : cpu_exp(exponent);
  }
  __device__ static uint64_t fixed(float weight) {
    return __float2ull_rz(weight * 0x1.0p46f);
  }
  __device__ uint64_t mass(float logit) const {
    return fixed(weight(logit));
  }

  __device__ int distance_bin(float logit) const {
    return static_cast<int>(fminf((max_ - logit) * kBinsPerUnit, static_cast<float>(kBins - 1)));
  }

  __device__ void add(int bin, uint64_t value) {
    const uint32_t low = static_cast<uint32_t>(value), before = atomicAdd(&shared_.low[bin], low);
    const uint32_t high = static_cast<uint32_t>(value >> 32) + (before + low < before);
    if (high != 0) atomicAdd(&shared_.high[bin], high);
  }

  // Fills shared_.merged with the cluster's histogram of value_of(logit) over bin_of(logit); bins below 0 do not count.
  // Of this block the logits in `members` are looked at, or all where those were too many.
  template <typename Bin, typename Value>
  __device__ void histogram(bool of_members, const Bin& bin_of, const Value& value_of) {
    for (int i = threadIdx.x; i < kBins; i += kThreads) shared_.low[i] = shared_.high[i] = 0;
    __syncthreads();
    uint64_t last = 0;  // the last bin can hold most of the vocabulary: each thread adds it once
    const auto count = [&](float logit, int) {
      const int bin = isnan(logit) ? -1 : bin_of(logit);
      if (bin == kBins - 1) last += value_of(logit);
      if (bin >= 0 && bin < kBins - 1) add(bin, value_of(logit));
    };
    if (of_members && shared_.num_members <= kMaxMembers) {
      for (int i = threadIdx.x; i < shared_.num_members; i += kThreads) count(part_[shared_.members[i]], 0);
    } else {
      for_logits(0, count_, threadIdx.x, kThreads, count);
    }
    last = warp_total(last);
    if (lane_ == 0) add(kBins - 1, last);
    cluster_.sync();
    for (int i = threadIdx.x; i < kMergedBins; i += kThreads) {
      const int bin = block_ * kMergedBins + i;
      uint32_t low[kBlocks], high[kBlocks];  // all on their way before the first is added
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        low[b] = *cluster_.map_shared_rank(&shared_.low[bin], b);
        high[b] = *cluster_.map_shared_rank(&shared_.high[bin], b);
      }
      uint64_t sum = 0;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) sum += low[b] + (uint64_t{high[b]} << 32);
      for (int b = 0; b < kBlocks; ++b) *cluster_.map_shared_rank(&shared_.merged[bin], b) = sum;
    }
    cluster_.sync();
  }

  // The first bin with which the running sum reaches `need` (at most the total, at least 1); above is the sum before
  // it. need_of is given the total.
  template <typename Need>
  __device__ int find_bin(const Need& need_of, uint64_t* need, uint64_t* above) {
    constexpr int kPerThread = kBins / kThreads;
    uint64_t own = 0;
    for (int i = 0; i < kPerThread; ++i) own += shared_.merged[threadIdx.x * kPerThread + i];
    uint64_t end = warp_scan(own);
    if (lane_ == 31) shared_.warp_values[warp_] = end;
    __syncthreads();
    uint64_t total = 0;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp_) end += shared_.warp_values[w];
      total += shared_.warp_values[w];
    }
    *need = max(uint64_t{1}, min(need_of(total), total));
    uint64_t before = end - own;
    if (before < *need && end >= *need) {
      int bin = threadIdx.x * kPerThread;
      while (before + shared_.merged[bin] < *need) before += shared_.merged[bin++];
      shared_.chosen = bin;
      shared_.above = before;
    }
    __syncthreads();
    *above = shared_.above;
    return shared_.chosen;
  }

  // Keeps the best tokens whose values reach the need, equal logits by id; drops all others.
  template <typename Need, typename Value>
  __device__ void cut(const Need& need_of, const Value& value_of) {
    uint64_t need = 0, above = 0;
    histogram(
        false, [&](float logit) { return distance_bin(logit); }, value_of);
    const int distance = find_bin(need_of, &need, &above);
    if (threadIdx.x == 0) shared_.num_members = 0;
    __syncthreads();
    for_logits(0, count_, threadIdx.x, kThreads, [&](float logit, int i) {
      if (isnan(logit) || distance_bin(logit) != distance) return;
      const int place = atomicAdd(&shared_.num_members, 1);
      if (place < kMaxMembers) shared_.members[place] = i;
    });
    __syncthreads();
    need -= above;
    uint64_t num_members = 0;
    const uint64_t first = exclusive_over_blocks(shared_.num_members, &num_members);
    const uint32_t key = num_members <= kMaxMembers
                             ? find_key_by_rank(static_cast<int>(first), static_cast<int>(num_members), &need, value_of)
                             : find_key_by_radix(distance, &need, value_of);
    const uint64_t each = max(uint64_t{1}, value_of(value_of_key(key)));
    drop_below(key, (need + each - 1) / each);
  }

  // The key with which the values of a bin's logits, the best first, reach *need; of it remains what those that have
  // the key must give. Each block puts its members, from number `first` of the cluster's on, before all others, and
  // finds the key by itself: each member adds up what is above it.
  template <typename Value>
  __device__ uint32_t find_key_by_rank(int first, int num_members, uint64_t* need, const Value& value_of) {
    for (int i = threadIdx.x; i < shared_.num_members; i += kThreads) {
      const float logit = part_[shared_.members[i]];
      const uint64_t value = value_of(logit);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        *cluster_.map_shared_rank(&shared_.low[first + i], b) = order_key(logit);
        *cluster_.map_shared_rank(&shared_.merged[first + i], b) = value;
      }
    }
    cluster_.sync();
    for (int i = threadIdx.x; i < num_members; i += kThreads) {
      const uint32_t key = shared_.low[i];
      uint64_t above = 0, equal = 0;
      bool is_first = true;  // of those with this key
      for (int j = 0; j < num_members; ++j) {
        const uint32_t other = shared_.low[j];
        const uint64_t value = shared_.merged[j];
        above += other > key ? value : 0;
        equal += other == key ? value : 0;
        is_first = is_first && (other != key || j >= i);
      }
      if (is_first && above < *need && above + equal >= *need) {
        shared_.chosen = static_cast<int>(key);
        shared_.above = above;
      }
    }
    __syncthreads();
    *need -= shared_.above;
    return static_cast<uint32_t>(shared_.chosen);
  }

  // The same where a bin holds too many logits for that.
  template <typename Value>
  __device__ uint32_t find_key_by_radix(int distance, uint64_t* need, const Value& value_of) {
    constexpr int kShifts[] = {21, 10, 0}, kBits[] = {11, 11, 10};
    uint32_t prefix = 0;
    uint64_t above = 0;
    for (int round = 0; round < 3; ++round) {
      const int shift = kShifts[round], bits = kBits[round];
      histogram(
          true,
          [&](float logit) {
            const uint32_t key = order_key(logit);
            if (distance_bin(logit) != distance || (round > 0 && key >> (shift + bits) != prefix)) return -1;
            return static_cast<int>(~(key >> shift) & ((1u << bits) - 1));  // best first
          },
          value_of);
      const uint64_t rest = *need;
      const int bin = find_bin([rest](uint64_t) { return rest; }, need, &above);
      prefix = prefix << bits | (~static_cast<uint32_t>(bin) & ((1u << bits) - 1));
      *need -= above;
    }
    return prefix;
  }

  // Exclusive sum over the blocks before this one, of a value that thread 0 gives; the total goes to *total.
  __device__ uint64_t exclusive_over_blocks(uint64_t value, uint64_t* total) {
    if (threadIdx.x == 0) shared_.value = value;
    cluster_.sync();
    uint64_t before = 0;
    *total = 0;
    for (int b = 0; b < kBlocks; ++b) {
      const uint64_t other = *cluster_.map_shared_rank(&shared_.value, b);
      if (b < block_) before += other;
      *total += other;
    }
    cluster_.sync();
    return before;
  }

  // Tokens in order of id: each warp has a run of them. Gives the sum of value_of(logit) over all before this warp's.
  template <typename Value>
  __device__ uint64_t exclusive_over_warps(const Value& value_of, uint64_t* total) {
    uint64_t own = 0;
    for_logits(warp_begin(), warp_end(), lane_, 32, [&](float logit, int) { own += value_of(logit); });
    own = warp_total(own);
    if (lane_ == 0) shared_.warp_values[warp_] = own;
    __syncthreads();
    uint64_t before = 0, block_total = 0;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp_) before += shared_.warp_values[w];
      block_total += shared_.warp_values[w];
    }
    __syncthreads();
    return before + exclusive_over_blocks(block_total, total);
  }
  __device__ int per_warp() const {
    return (p_.part + kThreads - 1) / kThreads * 32;
  }
  __device__ int warp_begin() const {
    return min(count_, warp_ * per_warp());
  }
  __device__ int warp_end() const {
    return min(count_, (warp_ + 1) * per_warp());
  }

  // Drops all below the key, and all but the first `num_equal` of those that have it.
  __device__ void drop_below(uint32_t key, uint64_t num_equal) {
    const auto is_equal = [&](float logit) { return !isnan(logit) && order_key(logit) == key; };
    uint64_t total = 0;
    uint64_t rank =
        exclusive_over_warps([&](float logit) { return is_equal(logit) ? uint64_t{1} : uint64_t{0}; }, &total);
    for (int base = warp_begin(); base < warp_end(); base += 32) {
      const int i = base + lane_;
      const float logit = i < warp_end() ? part_[i] : __uint_as_float(kDropped);
      const unsigned equal = __ballot_sync(kAllLanes, is_equal(logit));
      const uint64_t own = rank + __popc(equal & ((1u << lane_) - 1));
      const bool drop = !isnan(logit) && (order_key(logit) < key || (is_equal(logit) && own >= num_equal));
      if (drop) part_[i] = __uint_as_float(kDropped);
      rank += __popc(equal);
    }
    __syncthreads();
  }

  // The token in whose mass the uniform number falls, in one thread of the cluster.
  __device__ int pick() {
    const float min_p = p_.min_p[row_];
    const auto mass_of = [&](float logit) {
      const float w = isnan(logit) ? 0.0f : weight(logit);
      return w >= min_p ? fixed(w) : uint64_t{0};
    };
    uint64_t total = 0;
    uint64_t before = exclusive_over_warps(mass_of, &total);
    const double u = uniform(static_cast<uint64_t>(p_.seeds[row_]), static_cast<uint64_t>(p_.positions[row_]));
    if (total == 0) return block_ == 0 && threadIdx.x == 0 ? -1 : -2;
    const uint64_t target = min(total - 1, static_cast<uint64_t>(u * static_cast<double>(total)));
    // Each lane of the warp has a run of its own; the one in whose run the target falls walks along it.
    const int run = per_warp() / 32, run_begin = min(warp_end(), warp_begin() + lane_ * run);
    const int run_end = min(warp_end(), run_begin + run);
    uint64_t own = 0;
    if (before <= target) {
      int place = lane_ % run;  // lanes at different banks
      for (int j = 0; j < run; ++j) {
        if (run_begin + place < run_end) own += mass_of(part_[run_begin + place]);
        place = place + 1 == run ? 0 : place + 1;
      }
    }
    uint64_t end = before + warp_scan(own);
    if (end - own > target || end <= target) return -2;
    end -= own;
    int i = run_begin;
    while ((end += mass_of(part_[i])) <= target) ++i;
    return begin_ + i;
  }

  const Params& p_;
  Shared& shared_;
  float* const part_;
  const cg::cluster_group cluster_;
  const int block_, row_, begin_, count_, warp_, lane_;
  float max_ = 0.0f, inverse_temperature_ = 0.0f;
};

__global__ void __cluster_dims__(kBlocks, 1, 1) __launch_bounds__(kThreads, 2) sample_kernel(const Params p) {
  extern __shared__ __align__(16) float part[];
  __shared__ Shared shared;
  const int id = RowSampler(p, shared, part).run();
  if (id != -2) p.ids[blockIdx.x / kBlocks] = id;
  cg::this_cluster().sync();  // shared memory lives until all have read it
}

}  // namespace

absl::Status sample(cudaStream_t stream, const SampleArgs& args) {
  const int64_t num_rows = args.logits.dim(0), vocab = args.logits.dim(1);
  ArgsCheck check("sample");
  check.require(vocab >= 4 && vocab % 4 == 0 && vocab <= kBlocks * kMaxPart,
                "a vocabulary divisible by 4, at most 344064");
  check.require(num_rows <= (int64_t{1} << 26), "at most 2^26 rows");
  check.matrix("logits", args.logits, DType::kF32, num_rows, vocab);
  check.tensor("temperature", args.temperature, DType::kF32, {num_rows});
  check.tensor("top_k", args.top_k, DType::kI32, {num_rows}).tensor("top_p", args.top_p, DType::kF32, {num_rows});
  check.tensor("min_p", args.min_p, DType::kF32, {num_rows}).tensor("seeds", args.seeds, DType::kI64, {num_rows});
  check.tensor("positions", args.positions, DType::kI64, {num_rows}).tensor("ids", args.ids, DType::kI32, {num_rows});
  MOESAIC_RETURN_IF_ERROR(check.status());
  if (num_rows == 0) return absl::OkStatus();
  const int64_t part = (vocab + kBlocks * 4 - 1) / (kBlocks * 4) * 4;
  const Params p{.logits = args.logits.data<float>(),
                 .row_stride = args.logits.row_stride(),
                 .vocab = static_cast<int>(vocab),
                 .part = static_cast<int>(part),
                 .temperature = args.temperature.data<float>(),
                 .top_k = args.top_k.data<int32_t>(),
                 .top_p = args.top_p.data<float>(),
                 .min_p = args.min_p.data<float>(),
                 .seeds = args.seeds.data<int64_t>(),
                 .positions = args.positions.data<int64_t>(),
                 .ids = args.ids.data<int32_t>()};
  const int bytes = static_cast<int>(part * sizeof(float));
  MOESAIC_CUDA_CHECK(cudaFuncSetAttribute(sample_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  sample_kernel<<<static_cast<unsigned>(num_rows * kBlocks), kThreads, bytes, stream>>>(p);
  MOESAIC_CUDA_CHECK(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace moesaic::cuda
