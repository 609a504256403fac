// Communicator: what the ranks of a group say to each other besides expert traffic. One object per rank, used by that
// rank's thread only; every rank calls the same operations in the same order. Every wait has a deadline: a timeout is
// DEADLINE_EXCEEDED and names the silent ranks; after any error the group is dead and every later call fails at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "tensor/tensor.h"

namespace moesaic {

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual absl::Status barrier() = 0;
  // `record` of every rank, in rank order, into `all` (size() * record.size() bytes). At most kMaxRecordBytes a record.
  static constexpr size_t kMaxRecordBytes = 512;
  virtual absl::Status all_gather(std::span<const std::byte> record, std::span<std::byte> all) = 0;
  // x = sum over ranks, added in rank order on every rank, so all get the same bits. f32, contiguous, equal shape on
  // all ranks.
  virtual absl::Status all_reduce_sum(const Tensor& x) = 0;
  // y [size() * m, n] = x [m, n] of every rank in rank order.
  virtual absl::Status all_gather_rows(const Tensor& x, const Tensor& y) = 0;

  // The group fails with `why`: a rank that cannot go on tells the others, which would otherwise wait for the deadline.
  virtual void abort(const absl::Status& why) = 0;

  // Test hook: this rank never arrives again (its next call returns an error); the others must time out naming it.
  virtual void stop_for_test() = 0;
};

struct ThreadGroupOptions {
  int64_t timeout_ms = 30'000;
  int spin_us = 20;  // spin (or yield, where ranks outnumber CPUs) this long before sleeping
};

// The members of one group of threads in this process, by rank. They may outlive each other. 1 <= size <= kMaxRanks.
std::vector<std::unique_ptr<Communicator>> make_thread_communicators(int size, const ThreadGroupOptions& options);
// Bytes that each member of such a group adds to its buffers.
int64_t thread_communicator_bytes();

}  // namespace moesaic
