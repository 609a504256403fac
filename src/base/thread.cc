#include "base/thread.h"

#include <pthread.h>
#include <sched.h>

#include <chrono>

#include "base/check.h"

namespace moesaic {
namespace {

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

Thread::Thread(std::string name, std::function<void()> body)
    : thread_([name = std::move(name), body = std::move(body)] {
        pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
        body();
      }) {}

int num_cpus() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return CPU_COUNT(&set);
}

ThreadPool::ThreadPool(int num_threads, int spin_us) : num_threads_(num_threads), spin_us_(spin_us) {
  MOESAIC_CHECK_GE(num_threads, 1);
  claims_.store(static_cast<uint64_t>(num_threads));  // region 0 has nothing left to claim
  for (int worker = 1; worker < num_threads; ++worker) {
    workers_.emplace_back("pool-" + std::to_string(worker), [this] { worker_loop(); });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_.store(true);
  }
  wake_.notify_all();
}

void ThreadPool::run_region(Region region, void* context) {
  // Nobody reads these now: every share of the last region has been done, and only a claim allows reading.
  region_ = region;
  context_ = context;
  num_done_.store(0, std::memory_order_relaxed);
  const uint32_t generation = static_cast<uint32_t>(claims_.load(std::memory_order_relaxed) >> 32) + 1;
  claims_.store((static_cast<uint64_t>(generation) << 32) + 1, std::memory_order_seq_cst);  // share 0 is the caller's
  if (num_sleeping_.load(std::memory_order_seq_cst) > 0) {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  finish_share(0);
  do_shares(generation);
  for (int spins = 0; num_done_.load(std::memory_order_acquire) != num_threads_; ++spins) {
    cpu_relax();
    if (spins > 2000) std::this_thread::yield();  // more threads than CPUs: let the others finish
  }
}

void ThreadPool::finish_share(int share) {
  region_(context_, share);
  num_done_.fetch_add(1, std::memory_order_release);
}

void ThreadPool::do_shares(uint32_t generation) {
  const uint64_t end = (static_cast<uint64_t>(generation) << 32) + num_threads_;
  uint64_t word = claims_.load(std::memory_order_acquire);
  while (word >> 32 == generation && word < end) {
    if (!claims_.compare_exchange_weak(word, word + 1, std::memory_order_acq_rel)) continue;
    finish_share(static_cast<int>(word & 0xffffffffu));
    word = claims_.load(std::memory_order_acquire);
  }
}

void ThreadPool::worker_loop() {
  // All shares of the region in `word` have been claimed: nothing to do.
  const auto is_spent = [&](uint64_t word) { return (word & 0xffffffffu) >= static_cast<uint64_t>(num_threads_); };
  for (;;) {
    const auto spin_end = std::chrono::steady_clock::now() + std::chrono::microseconds(spin_us_);
    for (int spins = 0; is_spent(claims_.load(std::memory_order_acquire)); ++spins) {
      if (stop_.load(std::memory_order_relaxed)) return;
      cpu_relax();
      if (spins % 64 != 63 || std::chrono::steady_clock::now() < spin_end) continue;
      std::unique_lock lock(mutex_);
      num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, [&] { return stop_.load() || !is_spent(claims_.load(std::memory_order_seq_cst)); });
      num_sleeping_.fetch_sub(1);
    }
    do_shares(static_cast<uint32_t>(claims_.load(std::memory_order_acquire) >> 32));
  }
}

}  // namespace moesaic
