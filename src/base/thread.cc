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
  for (int worker = 1; worker < num_threads; ++worker) {
    workers_.emplace_back("pool-" + std::to_string(worker), [this, worker] { worker_loop(worker); });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_.store(true);
    generation_.fetch_add(1);
  }
  wake_.notify_all();
}

void ThreadPool::run_region(Region region, void* context) {
  region_ = region;
  context_ = context;
  pending_.store(num_threads_ - 1, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_seq_cst);
  if (num_sleeping_.load(std::memory_order_seq_cst) > 0) {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  region(context, 0);
  for (int spins = 0; pending_.load(std::memory_order_acquire) != 0; ++spins) {
    cpu_relax();
    if (spins > 2000) std::this_thread::yield();  // more threads than CPUs: let the others finish
  }
}

void ThreadPool::worker_loop(int worker) {
  uint64_t seen = 0;
  for (;;) {
    const auto spin_end = std::chrono::steady_clock::now() + std::chrono::microseconds(spin_us_);
    for (int spins = 0; generation_.load(std::memory_order_acquire) == seen; ++spins) {
      cpu_relax();
      if (spins % 64 != 63 || std::chrono::steady_clock::now() < spin_end) continue;
      std::unique_lock lock(mutex_);
      num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, [&] { return generation_.load(std::memory_order_seq_cst) != seen; });
      num_sleeping_.fetch_sub(1);
    }
    ++seen;
    if (stop_.load()) return;
    region_(context_, worker);
    pending_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace moesaic
