#include "comm/thread_group.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

#include "base/check.h"
#include "base/clock.h"
#include "base/thread.h"

namespace moesaic {
namespace {

constexpr size_t kMaxNamedRanks = 16;

static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

// Sleeps while *word == expected, at most timeout_ns. May return early.
void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns) {
  const timespec timeout{.tv_sec = timeout_ns / 1'000'000'000, .tv_nsec = timeout_ns % 1'000'000'000};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, &timeout, nullptr, 0);
}

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadGroup::ThreadGroup(int size, int64_t timeout_ms, int spin_us, std::string_view name, std::string_view setting)
    : size_(size),
      timeout_ms_(timeout_ms),
      spin_us_(spin_us),
      yields_(size > num_cpus()),
      name_(name),
      setting_(setting),
      members_(size) {
  MOESAIC_CHECK_GE(size, 1);
  MOESAIC_CHECK_GE(timeout_ms, 1);
}

absl::Status ThreadGroup::arrive(int rank) {
  if ((word_.load(std::memory_order_relaxed) & 1) != 0) return error();
  Member& member = members_[rank];
  const uint32_t phase = member.arrivals.load(std::memory_order_relaxed) + 1;
  member.arrivals.store(phase, std::memory_order_relaxed);
  if (size_ == 1) {
    word_.fetch_add(2, std::memory_order_relaxed);
    return absl::OkStatus();
  }
  const uint64_t before = arrivals_.fetch_add(1, std::memory_order_acq_rel);
  if ((before + 1) % size_ != 0) return absl::OkStatus();
  word_.fetch_add(2, std::memory_order_seq_cst);
  if (num_sleeping_.load(std::memory_order_seq_cst) > 0) wake_all();
  return absl::OkStatus();
}

absl::Status ThreadGroup::wait(int rank, std::string_view what) {
  const uint32_t phase = members_[rank].arrivals.load(std::memory_order_relaxed);
  uint32_t word = word_.load(std::memory_order_acquire);
  if (is_complete(word, phase) && (word & 1) == 0) return absl::OkStatus();

  const Clock& clock = real_clock();
  const int64_t start_ns = clock.now_ns();
  const int64_t spin_end_ns = start_ns + int64_t{spin_us_} * 1000;
  const int64_t deadline_ns = start_ns + timeout_ms_ * 1'000'000;
  bool spinning = spin_us_ > 0;
  for (int spins = 0;; ++spins) {
    word = word_.load(std::memory_order_acquire);
    if ((word & 1) != 0) return error();
    if (is_complete(word, phase)) return absl::OkStatus();
    if (spinning) {
      if (yields_) {
        sched_yield();
      } else {
        cpu_relax();
        if (spins % 32 != 31) continue;
      }
      spinning = clock.now_ns() < spin_end_ns;
      continue;
    }
    const int64_t left_ns = deadline_ns - clock.now_ns();
    if (left_ns <= 0) {
      std::vector<std::string> silent = silent_ranks(phase);
      if (silent.empty()) {  // the last rank is arriving this very moment
        sched_yield();
        continue;
      }
      if (silent.size() > kMaxNamedRanks) {
        const size_t num_more = silent.size() - kMaxNamedRanks;
        silent.resize(kMaxNamedRanks);
        silent.push_back(str_cat("and ", num_more, " more"));
      }
      return fail(absl::DeadlineExceededError(
          str_cat(name_, ": no sign of rank ", str_join(silent, ", "), " of ", size_, " within ", timeout_ms_,
                  " ms in ", what, "; the group is dead. If the machine is only slow, raise ", setting_)));
    }
    num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
    futex_wait(word_, word, left_ns);
    num_sleeping_.fetch_sub(1, std::memory_order_relaxed);
  }
}

std::vector<std::string> ThreadGroup::silent_ranks(uint32_t phase) const {
  std::vector<std::string> silent;
  for (int rank = 0; rank < size_; ++rank) {
    const uint32_t arrivals = members_[rank].arrivals.load(std::memory_order_relaxed);
    if (static_cast<int32_t>(arrivals - phase) < 0) silent.push_back(str_cat(rank));
  }
  return silent;
}

absl::Status ThreadGroup::fail(const absl::Status& status) {
  MOESAIC_CHECK(!status.ok());
  {
    std::lock_guard lock(mutex_);
    if (error_.ok()) error_ = status;
  }
  word_.fetch_or(1, std::memory_order_seq_cst);
  wake_all();
  return error();
}

absl::Status ThreadGroup::error() const {
  const int64_t deadline_ns = real_clock().now_ns() + timeout_ms_ * 1'000'000;
  const auto is_reading = [](const Member& member) { return member.reading.load(std::memory_order_seq_cst); };
  // Reading is copying, it does not block; the deadline is there for a reader whose thread was killed.
  while (std::any_of(members_.begin(), members_.end(), is_reading) && real_clock().now_ns() < deadline_ns) {
    sched_yield();
  }
  std::lock_guard lock(mutex_);
  return error_;
}

absl::Status ThreadGroup::begin_reading(int rank) {
  if (size_ == 1) return absl::OkStatus();
  // Either the failing rank sees the mark, or this rank sees the failure.
  members_[rank].reading.store(true, std::memory_order_seq_cst);
  if ((word_.load(std::memory_order_seq_cst) & 1) == 0) return absl::OkStatus();
  end_reading(rank);
  return error();
}

void ThreadGroup::end_reading(int rank) {
  if (size_ > 1) members_[rank].reading.store(false, std::memory_order_release);
}

void ThreadGroup::wake_all() {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace moesaic
