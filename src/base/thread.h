// Thread helpers: named threads that join on destruction, and the ThreadPool that runs one parallel region at a time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace moesaic {

// A joining std::thread with a name (at most 15 characters; shown by top and gdb).
class Thread {
 public:
  Thread() = default;
  Thread(std::string name, std::function<void()> body);
  Thread(Thread&&) = default;
  Thread& operator=(Thread&&) = default;
  ~Thread() { join(); }
  void join() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::thread thread_;
};

// Number of CPUs that this process may use.
int num_cpus();

// num_threads workers, the caller being one of them. run() is called by one thread at a time (the pool's owner),
// returns when every worker has finished, and allocates nothing. Workers spin for spin_us between regions, then sleep.
class ThreadPool {
 public:
  explicit ThreadPool(int num_threads, int spin_us = 200);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // body(share) for share = 0 .. num_threads-1, each once, on any of the threads.
  template <typename Body>
  void run(Body&& body) {
    if (num_threads_ == 1) return body(0);
    run_region([](void* context, int share) { (*static_cast<std::remove_reference_t<Body>*>(context))(share); },
               const_cast<void*>(static_cast<const void*>(&body)));
  }

  // body(begin, end) over [0, count) in one contiguous share a worker; shares start at multiples of `align`.
  template <typename Body>
  void parallel_for(int64_t count, int64_t align, Body&& body) {
    const int64_t units = (count + align - 1) / align;
    if (num_threads_ == 1 || units <= 1) {
      if (count > 0) body(int64_t{0}, count);
      return;
    }
    run([&](int worker) {
      const int64_t begin = units * worker / num_threads_ * align;
      const int64_t end = std::min(units * (worker + 1) / num_threads_ * align, count);
      if (begin < end) body(begin, end);
    });
  }

  // body(index) for index in [0, count), handed out one by one: for work of uneven size.
  template <typename Body>
  void parallel_each(int64_t count, Body&& body) {
    if (num_threads_ == 1 || count <= 1) {
      for (int64_t i = 0; i < count; ++i) body(i);
      return;
    }
    std::atomic<int64_t> next{0};
    run([&](int) {
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(i);
    });
  }

 private:
  using Region = void (*)(void* context, int share);
  void run_region(Region region, void* context);
  void worker_loop();
  void finish_share(int share);
  // Claims and does shares of region `generation` until none is left.
  void do_shares(uint32_t generation);

  static constexpr int kCacheLineBytes = 64;
  const int num_threads_;
  const int spin_us_;
  // What a worker needs to begin comes to it in one cache line, what it reports goes back in another.
  // Generation of the region in the upper half, shares claimed so far in the lower: one word, so that a late thread can
  // never claim a share of a region that it does not know.
  alignas(kCacheLineBytes) std::atomic<uint64_t> claims_{0};
  Region region_ = nullptr;
  void* context_ = nullptr;
  alignas(kCacheLineBytes) std::atomic<int> num_done_{0};
  alignas(kCacheLineBytes) std::atomic<int> num_sleeping_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Thread> workers_;
};

}  // namespace moesaic
