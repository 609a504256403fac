// What a server keeps of the requests that it has answered: nothing. Counts the heap of the whole process, so it is a
// program of its own.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "base/rng.h"
#include "serve/http/http_test_util.h"

namespace {

std::atomic<int64_t> g_live_bytes{0};

// The size stands in front of the memory, within one unit of its alignment.
void* allocate(size_t num_bytes, size_t alignment) {
  const size_t total = (num_bytes + 2 * alignment - 1) / alignment * alignment;
  auto* block = static_cast<char*>(std::aligned_alloc(alignment, total));
  if (block == nullptr) std::abort();
  *reinterpret_cast<size_t*>(block) = num_bytes;
  g_live_bytes.fetch_add(static_cast<int64_t>(num_bytes), std::memory_order_relaxed);
  return block + alignment;
}

void release(void* data, size_t alignment) {
  if (data == nullptr) return;
  char* block = static_cast<char*>(data) - alignment;
  g_live_bytes.fetch_sub(static_cast<int64_t>(*reinterpret_cast<size_t*>(block)), std::memory_order_relaxed);
  std::free(block);
}

constexpr size_t kAlignment = __STDCPP_DEFAULT_NEW_ALIGNMENT__;

}  // namespace

void* operator new(size_t num_bytes) {
  return allocate(num_bytes, kAlignment);
}
void* operator new(size_t num_bytes, std::align_val_t alignment) {
  return allocate(num_bytes, std::max(kAlignment, static_cast<size_t>(alignment)));
}
void operator delete(void* data) noexcept {
  release(data, kAlignment);
}
void operator delete(void* data, size_t) noexcept {
  release(data, kAlignment);
}
void operator delete(void* data, std::align_val_t alignment) noexcept {
  release(data, std::max(kAlignment, static_cast<size_t>(alignment)));
}
void operator delete(void* data, size_t, std::align_val_t alignment) noexcept {
  release(data, std::max(kAlignment, static_cast<size_t>(alignment)));
}

namespace moesaic {
namespace {

constexpr int kWave = 24;  // requests at once

std::string random_body(Rng& rng) {
  std::string prompt;
  for (uint64_t words = 1 + rng.below(40); words > 0; --words) prompt += str_cat("word ", rng.below(100), " ");
  std::string body =
      str_cat(R"({"prompt":")", prompt, R"(","max_tokens":)", 1 + rng.below(24), R"(,"ignore_eos":true)");
  if (rng.below(2) == 0) body += R"(,"stream":true)";
  if (rng.below(4) == 0) body += R"(,"n":2,"logprobs":3)";
  if (rng.below(4) == 0) body += R"(,"stop":["a","zz"])";
  if (rng.below(4) == 0) body += str_cat(R"(,"cache_salt":"user )", rng.next_u64(), "\"");
  if (rng.below(4) == 0) body += R"(,"regex":"[a-f]{1,9}(x|yz)*","temperature":1)";
  if (rng.below(8) == 0) body += R"(,"top_p":7)";  // refused
  return body + "}";
}

// All open at once; some clients leave without a word.
void send_wave(int port, Rng& rng) {
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < kWave; ++i) {
    clients.push_back(std::make_unique<RawClient>(port));
    clients.back()->send(http_request("POST", "/v1/completions", random_body(rng), "Connection: close\r\n"));
  }
  for (const auto& client : clients) {
    if (rng.below(6) == 0) {
      client->reset();
      continue;
    }
    const HttpAnswer answer = read_answer(*client);
    EXPECT_TRUE(answer.status == 200 || answer.status == 400) << answer.head << answer.body;
  }
}

// Vectors that grow to the largest step or answer and stay, and caches that fill, have done so in the first waves.
TEST(HttpMemory, NothingStaysOfAnsweredRequests) {
  constexpr uint64_t kSeed = 1;
  constexpr int kFirstWaves = 50, kWaves = 150;
  constexpr int64_t kMaxBytesPerRequest = 8;                                  // the smallest entry of a map takes 24
  const TestServer server({.num_kv_blocks = 24, .max_running_requests = 8});  // some sequences are preempted
  Rng rng(kSeed);
  int64_t before = 0;
  for (int wave = 0; wave < kFirstWaves + kWaves; ++wave) {
    send_wave(server.port(), rng);
    ASSERT_TRUE(eventually([&] { return server.engine->check_at_rest().ok(); }));
    if (wave + 1 == kFirstWaves) before = g_live_bytes.load();
  }
  const int64_t limit = before + kMaxBytesPerRequest * kWaves * kWave;
  EXPECT_TRUE(eventually([&] { return g_live_bytes.load() <= limit; }))
      << "seed " << kSeed << ": " << before << " bytes grew to " << g_live_bytes.load();
  EXPECT_GT(server.engine->stats().preemptions_total, 0);
}

}  // namespace
}  // namespace moesaic
