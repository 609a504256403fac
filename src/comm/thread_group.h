// ThreadGroup: how the ranks of one process meet. Shared by all members of a group (shared_ptr); each rank is used by
// one thread. A meeting has two halves: arrive() publishes everything the rank has written so far, wait() returns once
// every rank has arrived and sees what they published. Each arrive() is followed by a wait() before the next arrive().
//
// Cost: one atomic add per arrival; only the last arrival wakes sleepers. Waiting spins briefly (yielding where
// ranks outnumber CPUs), then sleeps. Nothing allocates or locks unless the group fails.
// A failed group stays failed: every call returns the first error at once. Once a rank has been given an error, nobody
// reads its memory any more.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace moesaic {

class ThreadGroup {
 public:
  // `name` appears in messages; `setting` is the option that changes the deadline.
  ThreadGroup(int size, int64_t timeout_ms, int spin_us, std::string_view name, std::string_view setting);

  int size() const { return size_; }

  absl::Status arrive(int rank);
  // `what` names the operation in messages. Error: DEADLINE_EXCEEDED that names the ranks that have not arrived.
  absl::Status wait(int rank, std::string_view what);

  // Brackets reading memory that belongs to another rank: while it runs, no rank returns an error, after which it may
  // free that memory. Never wait or arrive in between. Error: the group has failed; nothing may be read.
  absl::Status begin_reading(int rank);
  void end_reading(int rank);

  // The group fails with `status` unless it failed before; wakes everybody. Returns error().
  absl::Status fail(const absl::Status& status);
  // The error of the failed group, once nobody is reading any more.
  absl::Status error() const;

 private:
  // One cache line a rank, so that ranks do not disturb each other.
  struct alignas(64) Member {
    std::atomic<uint32_t> arrivals{0};
    std::atomic<bool> reading{false};
  };

  std::vector<std::string> silent_ranks(uint32_t phase) const;
  bool is_complete(uint32_t word, uint32_t phase) const { return (word >> 1) == (phase & 0x7fffffffu); }
  void wake_all();

  const int size_;
  const int64_t timeout_ms_;
  const int spin_us_;
  const bool
      yields_;  // more ranks than CPUs: let the others run; halves the time of a meeting against sleeping at once
  const std::string name_;
  const std::string setting_;
  std::vector<Member> members_;
  alignas(64) std::atomic<uint64_t> arrivals_{0};
  // Completed meetings in the upper 31 bits, 1 in the lowest once the group has failed: the one word that ranks sleep
  // on, so neither news can be missed.
  alignas(64) std::atomic<uint32_t> word_{0};
  std::atomic<int> num_sleeping_{0};
  mutable std::mutex mutex_;  // guards error_
  absl::Status error_;
};

}  // namespace moesaic
