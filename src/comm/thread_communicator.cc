// Communicator between threads of one process. Every operation publishes a cell (what is called, on which memory),
// meets the others once and reads their cells. Cells and staging exist twice and are used in turn: a rank can only
// write a cell again after the meeting in between, when nobody reads it any more.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "comm/communicator.h"
#include "comm/parallel_layout.h"
#include "comm/thread_group.h"

namespace moesaic {
namespace {

// Up to this size an operation copies its input into staging and needs one meeting; above, ranks read each other's
// tensors and meet again before those may change.
constexpr int64_t kStagingBytes = 64 << 10;

enum class Op : uint8_t { kBarrier, kAllGather, kAllReduceSum, kAllGatherRows, kFinish };

std::string_view op_name(Op op) {
  switch (op) {
    case Op::kBarrier:
      return "barrier";
    case Op::kAllGather:
      return "all_gather";
    case Op::kAllReduceSum:
      return "all_reduce_sum";
    case Op::kAllGatherRows:
      return "all_gather_rows";
    case Op::kFinish:
      return "the end of an operation";
  }
  return "?";
}

struct alignas(64) Cell {
  Op op = Op::kBarrier;
  int64_t num_bytes = 0;
  std::byte* data = nullptr;
};

struct Shared {
  Shared(int size, const ThreadGroupOptions& options)
      : group(size, options.timeout_ms, options.spin_us, "ranks", "the communication timeout (timeout_ms)"),
        cells(2 * size),
        staging(size * thread_communicator_bytes()) {}
  ThreadGroup group;
  std::vector<Cell> cells;  // [2, size]
  Buffer staging;           // [2, size, kStagingBytes]; pages that no operation touches cost nothing
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<Shared> shared, int rank) : shared_(std::move(shared)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return shared_->group.size(); }

  absl::Status barrier() override { return meet(Op::kBarrier, nullptr, 0); }

  absl::Status all_gather(std::span<const std::byte> record, std::span<std::byte> all) override {
    MOESAIC_CHECK_LE(record.size(), kMaxRecordBytes);
    MOESAIC_CHECK_EQ(all.size(), record.size() * size());
    const int64_t num_bytes = static_cast<int64_t>(record.size());
    MOESAIC_RETURN_IF_ERROR(meet_staged(Op::kAllGather, record.data(), num_bytes));
    for (int r = 0; r < size(); ++r) copy(all.data() + r * num_bytes, cell(r).data, num_bytes);
    return absl::OkStatus();
  }

  absl::Status all_reduce_sum(const Tensor& x) override {
    MOESAIC_CHECK(x.is_contiguous());
    float* const mine = x.f32();
    const int64_t count = x.num_elements();
    if (size() == 1) return meet(Op::kAllReduceSum, nullptr, x.num_bytes());
    if (x.num_bytes() <= kStagingBytes) {
      MOESAIC_RETURN_IF_ERROR(meet_staged(Op::kAllReduceSum, x.raw(), x.num_bytes()));
      sum_slice(0, count, mine);
      return absl::OkStatus();
    }
    // Every rank sums one slice in place, then all fetch the slices of the others.
    MOESAIC_RETURN_IF_ERROR(meet(Op::kAllReduceSum, x.raw(), x.num_bytes()));
    MOESAIC_RETURN_IF_ERROR(shared_->group.begin_reading(rank_));
    sum_slice(slice_begin(count, rank_), slice_begin(count, rank_ + 1), mine);
    shared_->group.end_reading(rank_);
    MOESAIC_RETURN_IF_ERROR(meet(Op::kFinish, x.raw(), x.num_bytes()));
    MOESAIC_RETURN_IF_ERROR(shared_->group.begin_reading(rank_));
    for (int r = 0; r < size(); ++r) {
      const int64_t begin = slice_begin(count, r), end = slice_begin(count, r + 1);
      if (r != rank_) copy(mine + begin, reinterpret_cast<float*>(cell(r).data) + begin, (end - begin) * sizeof(float));
    }
    shared_->group.end_reading(rank_);
    return meet(Op::kFinish, nullptr, 0);
  }

  absl::Status all_gather_rows(const Tensor& x, const Tensor& y) override {
    MOESAIC_CHECK(x.is_contiguous() && y.is_contiguous());
    MOESAIC_CHECK_EQ(x.dtype(), y.dtype());
    MOESAIC_CHECK_EQ(y.num_bytes(), x.num_bytes() * size());
    const int64_t num_bytes = x.num_bytes();
    const bool staged = num_bytes <= kStagingBytes;
    MOESAIC_RETURN_IF_ERROR(staged ? meet_staged(Op::kAllGatherRows, x.raw(), num_bytes)
                                   : meet(Op::kAllGatherRows, x.raw(), num_bytes));
    MOESAIC_RETURN_IF_ERROR(shared_->group.begin_reading(rank_));
    for (int r = 0; r < size(); ++r) copy(y.data<std::byte>() + r * num_bytes, cell(r).data, num_bytes);
    shared_->group.end_reading(rank_);
    return staged ? absl::OkStatus() : meet(Op::kFinish, nullptr, 0);
  }

  void abort(const absl::Status& why) override { (void)shared_->group.fail(annotate(why, str_cat("rank ", rank_))); }
  void stop_for_test() override { stopped_ = true; }

 private:
  Cell& cell(int rank) const { return shared_->cells[turn_ * size() + rank]; }

  static void copy(void* to, const void* from, int64_t num_bytes) {
    if (num_bytes > 0 && to != from) std::memcpy(to, from, num_bytes);
  }

  // Slices start at multiples of a cache line.
  int64_t slice_begin(int64_t count, int rank) const {
    const int64_t units = (count + 15) / 16;
    return std::min(count, units * rank / size() * 16);
  }

  // out[begin, end) = sum over the cells in rank order; `out` may be one of them.
  void sum_slice(int64_t begin, int64_t end, float* out) const {
    constexpr int64_t kChunk = 256;
    float sum[kChunk];
    for (int64_t chunk = begin; chunk < end; chunk += kChunk) {
      const int64_t n = std::min(kChunk, end - chunk);
      std::memcpy(sum, reinterpret_cast<const float*>(cell(0).data) + chunk, n * sizeof(float));
      for (int r = 1; r < size(); ++r) {
        const float* other = reinterpret_cast<const float*>(cell(r).data) + chunk;
        for (int64_t i = 0; i < n; ++i) sum[i] += other[i];
      }
      std::memcpy(out + chunk, sum, n * sizeof(float));
    }
  }

  absl::Status meet_staged(Op op, const void* data, int64_t num_bytes) {
    MOESAIC_RETURN_IF_ERROR(check_alive());
    std::byte* const staging =
        static_cast<std::byte*>(shared_->staging.data()) + ((turn_ ^ 1) * int64_t{size()} + rank_) * kStagingBytes;
    copy(staging, data, num_bytes);
    return meet(op, staging, num_bytes);
  }

  absl::Status meet(Op op, void* data, int64_t num_bytes) {
    MOESAIC_RETURN_IF_ERROR(check_alive());
    turn_ ^= 1;
    cell(rank_) = {.op = op, .num_bytes = num_bytes, .data = static_cast<std::byte*>(data)};
    absl::Status status = shared_->group.arrive(rank_);
    if (status.ok()) status = shared_->group.wait(rank_, op_name(op));
    for (int r = 0; status.ok() && r < size(); ++r) {
      const Cell& other = cell(r);
      if (other.op != op || other.num_bytes != num_bytes) [[unlikely]]
        status = disagreement();
    }
    dead_ = !status.ok();
    return status;
  }

  // After a failed meeting slower ranks may still read older cells: nothing is written any more.
  absl::Status check_alive() const {
    if (stopped_) [[unlikely]]
      return absl::CancelledError(str_cat("rank ", rank_, " was stopped by a test"));
    return dead_ ? shared_->group.error() : absl::OkStatus();
  }

  // Everybody compares with rank 0, so that all ranks say the same.
  absl::Status disagreement() const {
    const Cell& first = cell(0);
    int r = 1;
    while (cell(r).op == first.op && cell(r).num_bytes == first.num_bytes) ++r;
    return shared_->group.fail(absl::InternalError(
        str_cat("ranks disagree: rank ", r, " called ", op_name(cell(r).op), " with ", cell(r).num_bytes,
                " bytes, rank 0 ", op_name(first.op), " with ", first.num_bytes, " bytes; the group is dead")));
  }

  std::shared_ptr<Shared> shared_;
  const int rank_;
  int turn_ = 0;
  bool dead_ = false;
  bool stopped_ = false;
};

}  // namespace

int64_t thread_communicator_bytes() {
  return 2 * kStagingBytes;
}

std::vector<std::unique_ptr<Communicator>> make_thread_communicators(int size, const ThreadGroupOptions& options) {
  MOESAIC_CHECK(size >= 1 && size <= kMaxRanks);
  auto shared = std::make_shared<Shared>(size, options);
  std::vector<std::unique_ptr<Communicator>> members;
  for (int rank = 0; rank < size; ++rank) members.push_back(std::make_unique<ThreadCommunicator>(shared, rank));
  return members;
}

}  // namespace moesaic
