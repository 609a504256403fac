// AllToAll between threads of one process. Senders only publish routing tables; receivers fetch rows straight from the
// sender's x (or e4m3 payload), and owners fetch results straight from where they were computed: every row is copied
// once.
//
// Two meetings a layer, one in dispatch and one in combine, are enough without double buffering:
//   - tables and x of a sender are read between the meetings, and the sender writes them again only in its next
//     dispatch_send, after the combine meeting;
//   - rows of a receiver are read by others after the combine meeting, and the receiver writes them again only in its
//   next
//     dispatch_recv, after the next dispatch meeting, to which every reader comes with its reading done.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "comm/all_to_all.h"
#include "comm/all_to_all_buffers.h"
#include "comm/thread_group.h"
#include "comm/weighted_sum.h"
#include "kernels/cpu/quantize_rows.h"
#include "kernels/ops.h"

namespace moesaic {
namespace {

// Below this many bytes, waking a pool costs more than its help.
constexpr int64_t kMinParallelBytes = 256 << 10;

// What a rank publishes in dispatch_send, besides its tables.
struct alignas(64) Sender {
  A2aMode mode = A2aMode::kNormal;
  int64_t num_tokens = 0;
  const float* x = nullptr;
  int64_t x_stride = 0;
};

struct Shared {
  explicit Shared(const AllToAllOptions& options)
      : options(options),
        local_slots((options.num_slots + options.num_ranks - 1) / options.num_ranks),
        group(options.num_ranks, options.timeout_ms, ThreadGroupOptions().spin_us, "all-to-all",
              "the communication timeout (timeout_ms)"),
        senders(options.num_ranks) {
    buffers.reserve(options.num_ranks);
    for (int rank = 0; rank < options.num_ranks; ++rank) buffers.emplace_back(options);
  }
  const AllToAllOptions options;
  const int local_slots;
  ThreadGroup group;
  std::vector<Sender> senders;
  std::vector<A2aBuffers> buffers;
};

class ThreadAllToAll final : public AllToAll {
 public:
  ThreadAllToAll(std::shared_ptr<Shared> shared, int rank)
      : shared_(std::move(shared)),
        options_(shared_->options),
        rank_(rank),
        first_slot_(std::min(options_.num_slots, rank * shared_->local_slots)),
        num_own_slots_(std::min(options_.num_slots - first_slot_, shared_->local_slots)),
        mine_(shared_->buffers[rank]) {}

  absl::Status dispatch_send(Stream& stream, A2aMode mode, const DispatchArgs& args) override;
  absl::Status dispatch_recv(Stream& stream, ExpertRows* rows) override;
  absl::Status combine_send(Stream& stream) override;
  absl::Status combine_recv(Stream& stream, const Tensor& y) override;

  void abort(const absl::Status& why) override { (void)shared_->group.fail(annotate(why, str_cat("rank ", rank_))); }
  int64_t allocated_bytes() const override { return mine_.allocated_bytes(); }

 private:
  enum class Next : uint8_t { kDispatchSend, kDispatchRecv, kCombineSend, kCombineRecv, kNothing };

  // Halves out of order are a bug; halves of a dead group return its error.
  bool is_dead(Next half) const {
    if (next_ == Next::kNothing) return true;
    MOESAIC_CHECK_EQ(static_cast<int>(next_), static_cast<int>(half));
    return false;
  }
  absl::Status die(const absl::Status& status) {
    next_ = Next::kNothing;
    return shared_->group.fail(status);
  }

  absl::Status check_args(A2aMode mode, const DispatchArgs& args) const;
  absl::Status route(const DispatchArgs& args);
  void sort_by_destination(int num_entries);
  void quantize(Stream& stream, const DispatchArgs& args);
  absl::Status check_modes() const;
  void place_groups();
  void fetch(Stream& stream);
  void fetch_from(int source, int64_t begin, int64_t end);
  void combine_tokens(const Tensor& y, int64_t begin, int64_t end) const;

  std::shared_ptr<Shared> shared_;
  const AllToAllOptions& options_;
  const int rank_;
  const int first_slot_;
  const int num_own_slots_;
  A2aBuffers& mine_;
  Next next_ = Next::kDispatchSend;
  A2aMode mode_ = A2aMode::kNormal;
  int64_t num_tokens_ = 0;
};

absl::Status ThreadAllToAll::check_args(A2aMode mode, const DispatchArgs& args) const {
  const int64_t num_tokens = args.x.dim(0);
  MOESAIC_CHECK_EQ(args.x.dtype(), DType::kF32);
  MOESAIC_CHECK_EQ(args.topk_ids.dtype(), DType::kI32);
  MOESAIC_CHECK_EQ(args.topk_weights.dtype(), DType::kF32);
  MOESAIC_CHECK_EQ(args.x.dim(1), options_.hidden);
  MOESAIC_CHECK_EQ(args.topk_ids.dim(0), num_tokens);
  MOESAIC_CHECK_EQ(args.topk_ids.dim(1), options_.num_experts_per_tok);
  MOESAIC_CHECK_EQ(args.topk_weights.dim(0), num_tokens);
  MOESAIC_CHECK_EQ(args.topk_weights.dim(1), options_.num_experts_per_tok);
  const bool normal = mode == A2aMode::kNormal;
  const int limit = normal ? options_.max_tokens_normal : options_.max_tokens_low_latency;
  if (num_tokens <= limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      str_cat("all-to-all: rank ", rank_, " dispatches ", num_tokens, " tokens, the buffers of ",
              normal ? "normal" : "low_latency", " mode hold ", limit, " a rank; lower the batch or raise ",
              normal ? "max_tokens_per_step" : "the decode limit (max_tokens_per_step in low_latency mode)"));
}

absl::Status ThreadAllToAll::dispatch_send(Stream& stream, A2aMode mode, const DispatchArgs& args) {
  if (is_dead(Next::kDispatchSend)) return shared_->group.error();
  if (absl::Status status = check_args(mode, args); !status.ok()) return die(status);
  if (absl::Status status = route(args); !status.ok()) return die(status);
  if (options_.fp8) quantize(stream, args);
  mode_ = mode;
  num_tokens_ = args.x.dim(0);
  shared_->senders[rank_] = {
      .mode = mode, .num_tokens = num_tokens_, .x = args.x.f32(), .x_stride = args.x.row_stride()};
  if (absl::Status status = shared_->group.arrive(rank_); !status.ok()) return die(status);
  next_ = Next::kDispatchRecv;
  return absl::OkStatus();
}

// Fills routes, weights, counts, entries and, with several ranks, sorted and dest_begin.
absl::Status ThreadAllToAll::route(const DispatchArgs& args) {
  const int topk = options_.num_experts_per_tok;
  const int num_tokens = static_cast<int>(args.x.dim(0));
  std::memset(mine_.counts, 0, options_.num_slots * sizeof(int32_t));
  std::memset(mine_.last_token, 0xff, options_.num_slots * sizeof(int32_t));
  int num_entries = 0;
  for (int t = 0; t < num_tokens; ++t) {
    const int32_t* ids = args.topk_ids.row<int32_t>(t);
    A2aRoute* routes = mine_.routes + int64_t{t} * topk;
    std::memcpy(mine_.weights + int64_t{t} * topk, args.topk_weights.row<float>(t), topk * sizeof(float));
    for (int k = 0; k < topk; ++k) {
      const int32_t slot = ids[k];
      if (slot == -1) {
        routes[k] = {.slot = -1, .position = 0};
        continue;
      }
      if (slot < 0 || slot >= options_.num_slots) {
        return absl::InternalError(str_cat("all-to-all: rank ", rank_, " routes token ", t, " to slot ", slot,
                                           "; expected -1 to ", options_.num_slots - 1));
      }
      if (mine_.last_token[slot] != t) {
        mine_.last_token[slot] = t;
        mine_.entries[num_entries++] = {.token = t, .slot = slot, .position = mine_.counts[slot]++};
      }
      routes[k] = {.slot = slot, .position = mine_.counts[slot] - 1};
    }
  }
  sort_by_destination(num_entries);
  return absl::OkStatus();
}

void ThreadAllToAll::sort_by_destination(int num_entries) {
  const int num_ranks = options_.num_ranks;
  int32_t* const begin = mine_.dest_begin;
  if (num_ranks == 1) {  // entries and sorted are the same
    begin[0] = 0;
    begin[1] = num_entries;
    return;
  }
  begin[0] = 0;
  for (int dest = 0, slot = 0; dest < num_ranks; ++dest) {
    int32_t count = 0;
    const int end = std::min(options_.num_slots, (dest + 1) * shared_->local_slots);
    for (; slot < end; ++slot) count += mine_.counts[slot];
    mine_.dest_next[dest] = begin[dest];
    begin[dest + 1] = begin[dest] + count;
  }
  for (int i = 0; i < num_entries; ++i) {
    const A2aEntry& entry = mine_.entries[i];
    mine_.sorted[mine_.dest_next[entry.slot / shared_->local_slots]++] = entry;
  }
}

void ThreadAllToAll::quantize(Stream& stream, const DispatchArgs& args) {
  const int64_t num_tokens = args.x.dim(0);
  const int64_t num_groups = (options_.hidden + kPayloadScaleGroup - 1) / kPayloadScaleGroup;
  quantize_fp8(stream, {.x = args.x,
                        .q = Tensor(mine_.payload, DType::kE4M3, {num_tokens, options_.hidden}),
                        .scales = Tensor(mine_.payload_scales, DType::kF32, {num_tokens, num_groups})});
}

absl::Status ThreadAllToAll::dispatch_recv(Stream& stream, ExpertRows* rows) {
  if (is_dead(Next::kDispatchRecv)) return shared_->group.error();
  if (absl::Status status = shared_->group.wait(rank_, "dispatch"); !status.ok()) return die(status);
  if (absl::Status status = check_modes(); !status.ok()) return die(status);
  place_groups();
  if (absl::Status status = shared_->group.begin_reading(rank_); !status.ok()) return die(status);
  fetch(stream);
  shared_->group.end_reading(rank_);
  const int64_t capacity = capacity_rows(options_, mode_);
  rows->x = Tensor(mine_.rows(), DType::kF32, {capacity, options_.hidden});
  rows->group_begin = {mine_.group_begin, static_cast<size_t>(num_own_slots_)};
  rows->group_rows = {mine_.group_rows, static_cast<size_t>(num_own_slots_)};
  next_ = Next::kCombineSend;
  return absl::OkStatus();
}

absl::Status ThreadAllToAll::check_modes() const {
  for (int r = 1; r < options_.num_ranks; ++r) {
    if (shared_->senders[r].mode == shared_->senders[0].mode) continue;
    const auto name = [&](int rank) {
      return shared_->senders[rank].mode == A2aMode::kNormal ? "normal" : "low_latency";
    };
    return absl::InternalError(
        str_cat("all-to-all: rank ", r, " dispatches in ", name(r), " mode, rank 0 in ", name(0), " mode"));
  }
  return absl::OkStatus();
}

// Where the rows of each slot begin, and within them those of each sender.
void ThreadAllToAll::place_groups() {
  const int local_slots = shared_->local_slots;
  const int64_t alignment = options_.expert_alignment;
  const int64_t max_rows = int64_t{options_.num_ranks} * options_.max_tokens_low_latency;
  int64_t end = 0;
  for (int slot = 0; slot < num_own_slots_; ++slot) {
    const int64_t begin =
        mode_ == A2aMode::kLowLatency ? slot * max_rows : (end + alignment - 1) / alignment * alignment;
    end = begin;
    for (int source = 0; source < options_.num_ranks; ++source) {
      mine_.source_begin[source * local_slots + slot] = static_cast<int32_t>(end);
      end += shared_->buffers[source].counts[first_slot_ + slot];
    }
    mine_.group_begin[slot] = static_cast<int32_t>(begin);
    mine_.group_rows[slot] = static_cast<int32_t>(end - begin);
  }
  MOESAIC_CHECK_LE(end, capacity_rows(options_, mode_));
}

void ThreadAllToAll::fetch(Stream& stream) {
  int64_t total = 0;
  const auto num_from = [&](int source) {
    const int32_t* begin = shared_->buffers[source].dest_begin + rank_;
    return int64_t{begin[1]} - begin[0];
  };
  for (int source = 0; source < options_.num_ranks; ++source) total += num_from(source);
  const auto fetch_share = [&](int64_t begin, int64_t end) {
    int64_t passed = 0;
    for (int source = 0; source < options_.num_ranks && passed < end; ++source) {
      const int64_t count = num_from(source);
      const int64_t from = std::max<int64_t>(begin - passed, 0), to = std::min(end - passed, count);
      if (from < to) fetch_from(source, from, to);
      passed += count;
    }
  };
  if (total * options_.hidden * static_cast<int64_t>(sizeof(float)) < kMinParallelBytes) return fetch_share(0, total);
  stream.pool().parallel_for(total, 1, fetch_share);
}

// Entries [begin, end) of what `source` sends here. A token travels once; its further rows are copies of the first.
void ThreadAllToAll::fetch_from(int source, int64_t begin, int64_t end) {
  const A2aBuffers& theirs = shared_->buffers[source];
  const Sender& sender = shared_->senders[source];
  const int32_t* const source_begin = mine_.source_begin + int64_t{source} * shared_->local_slots;
  const A2aEntry* const entries = theirs.sorted + theirs.dest_begin[rank_];
  const int64_t hidden = options_.hidden;
  const int64_t num_groups = (hidden + kPayloadScaleGroup - 1) / kPayloadScaleGroup;
  const float* first = nullptr;
  for (int64_t i = begin; i < end; ++i) {
    const A2aEntry& entry = entries[i];
    float* const row = mine_.rows() + (int64_t{source_begin[entry.slot - first_slot_]} + entry.position) * hidden;
    if (i > begin && entries[i - 1].token == entry.token) {
      std::memcpy(row, first, hidden * sizeof(float));
      continue;
    }
    first = row;
    if (options_.fp8) {
      dequantize_fp8_row(theirs.payload + entry.token * hidden, theirs.payload_scales + entry.token * num_groups,
                         hidden, row);
    } else {
      std::memcpy(row, sender.x + entry.token * sender.x_stride, hidden * sizeof(float));
    }
  }
}

absl::Status ThreadAllToAll::combine_send(Stream&) {
  if (is_dead(Next::kCombineSend)) return shared_->group.error();
  if (absl::Status status = shared_->group.arrive(rank_); !status.ok()) return die(status);
  next_ = Next::kCombineRecv;
  return absl::OkStatus();
}

absl::Status ThreadAllToAll::combine_recv(Stream& stream, const Tensor& y) {
  if (is_dead(Next::kCombineRecv)) return shared_->group.error();
  MOESAIC_CHECK_EQ(y.dtype(), DType::kF32);
  MOESAIC_CHECK_EQ(y.dim(0), num_tokens_);
  MOESAIC_CHECK_EQ(y.dim(1), options_.hidden);
  if (absl::Status status = shared_->group.wait(rank_, "combine"); !status.ok()) return die(status);
  const auto combine_share = [&](int64_t begin, int64_t end) { combine_tokens(y, begin, end); };
  const int64_t row_bytes = options_.hidden * static_cast<int64_t>(sizeof(float));
  if (num_tokens_ * options_.num_experts_per_tok * row_bytes < kMinParallelBytes) {
    combine_share(0, num_tokens_);
  } else {
    stream.pool().parallel_for(num_tokens_, 1, combine_share);
  }
  next_ = Next::kDispatchSend;
  return absl::OkStatus();
}

void ThreadAllToAll::combine_tokens(const Tensor& y, int64_t begin, int64_t end) const {
  const int local_slots = shared_->local_slots;
  const int topk = options_.num_experts_per_tok;
  const float* rows[kMaxExpertsPerTok];
  float weights[kMaxExpertsPerTok];
  for (int64_t t = begin; t < end; ++t) {
    int num_rows = 0;
    for (int k = 0; k < topk; ++k) {
      const A2aRoute& route = mine_.routes[t * topk + k];
      if (route.slot < 0) continue;
      const int owner = route.slot / local_slots;
      const A2aBuffers& theirs = shared_->buffers[owner];
      const int32_t first = theirs.source_begin[rank_ * local_slots + route.slot - owner * local_slots];
      weights[num_rows] = mine_.weights[t * topk + k];
      rows[num_rows++] = theirs.rows() + (int64_t{first} + route.position) * options_.hidden;
    }
    weighted_sum(rows, weights, num_rows, options_.hidden, y.row<float>(t));
  }
}

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<AllToAll>>> make_thread_all_to_all(const AllToAllOptions& options) {
  MOESAIC_RETURN_IF_ERROR(AllToAll::validate(options));
  auto shared = std::make_shared<Shared>(options);
  std::vector<std::unique_ptr<AllToAll>> members;
  for (int rank = 0; rank < options.num_ranks; ++rank)
    members.push_back(std::make_unique<ThreadAllToAll>(shared, rank));
  return members;
}

}  // namespace moesaic
