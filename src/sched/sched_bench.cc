#include "sched/sched_bench.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"
#include "base/strings.h"
#include "sched/scheduler.h"

namespace moesaic {
namespace {

constexpr int kRunning = 256;
constexpr int kWaiting = 2000;
constexpr int32_t kMaxTokens = 200;
constexpr int kCommonTokens = 512;
constexpr int kLongPrompt = 128 * 1024;
constexpr int kBlockTokens = 64;

using Print = std::function<void(const std::string&)>;

uint64_t mix(uint64_t hash, uint64_t value) {
  return (hash ^ value) * 0x100000001b3ull;
}

class Samples {
 public:
  void add(int64_t ns) { ns_.push_back(ns); }
  double quantile_us(double q) {
    std::sort(ns_.begin(), ns_.end());
    return static_cast<double>(ns_[static_cast<size_t>(q * static_cast<double>(ns_.size() - 1))]) / 1e3;
  }

 private:
  std::vector<int64_t> ns_;
};

void report(const SchedBenchOptions& options, const Print& print, const std::string& name, Samples& samples,
            uint64_t hash) {
  char line[512];
  if (options.json) {
    std::snprintf(line, sizeof line,
                  "{\"name\":\"%s\",\"value\":%.1f,\"unit\":\"us\",\"ratio\":null,\"baseline\":null,\"p99\":%.1f,"
                  "\"hash\":\"%016llx\",\"command\":\"%s\"}",
                  name.c_str(), samples.quantile_us(0.5), samples.quantile_us(0.99),
                  static_cast<unsigned long long>(hash), options.command.c_str());
  } else {
    std::snprintf(line, sizeof line, "%-24s %10.1f us   p99 %8.1f us", name.c_str(), samples.quantile_us(0.5),
                  samples.quantile_us(0.99));
  }
  print(line);
}

// A full house: whoever ends is replaced by the first of the queue, and the queue is kept at its length.
class FullHouse {
 public:
  FullHouse()
      : scheduler_({.num_kv_blocks = 16'384,
                    .kv_block_tokens = kBlockTokens,
                    .max_running_requests = kRunning,
                    .max_tokens_per_step = 2048}),
        ids_(kMaxTokens + 1, 7) {
    while (next_id_ < kRunning + kWaiting) add();
  }

  // The step's plan, with the time that plan() and apply() took.
  const StepPlan& step(int64_t* plan_ns, int64_t* apply_ns) {
    while (scheduler_.num_waiting() < kWaiting) add();
    const Clock& clock = real_clock();
    const int64_t begin = clock.now_ns();
    const StepPlan& plan = scheduler_.plan(0);
    *plan_ns = clock.now_ns() - begin;
    results_.clear();
    for (const PlannedChunk& chunk : plan.groups[0].chunks) {
      if (!chunk.samples) continue;
      const auto num_output = static_cast<int32_t>(scheduler_.find(chunk.request_id)->output_ids.size()) + 1;
      const bool finished = num_output == kMaxTokens;
      results_.push_back({chunk.request_id, std::span(ids_).first(1), finished});
    }
    const int64_t applied = clock.now_ns();
    scheduler_.apply(results_);
    *apply_ns = clock.now_ns() - applied;
    return plan;
  }

  bool is_full() const { return scheduler_.num_running() == kRunning; }

 private:
  void add() {
    Request request;
    request.id = next_id_++;
    request.max_tokens = kMaxTokens;
    const auto length = static_cast<int>(kCommonTokens + rng_.below(3000));
    for (int i = 0; i < length; ++i) {
      request.prompt_ids.push_back(static_cast<int32_t>(i < kCommonTokens ? i : rng_.below(100'000)));
    }
    scheduler_.add(std::move(request));
  }

  Rng rng_{1};
  Scheduler scheduler_;
  std::vector<int32_t> ids_;
  std::vector<SampledTokens> results_;
  RequestId next_id_ = 0;
};

void bench_plan(const SchedBenchOptions& options, const Print& print) {
  FullHouse house;
  int64_t plan_ns = 0;
  int64_t apply_ns = 0;
  for (int i = 0; i < 2000 && !house.is_full(); ++i) house.step(&plan_ns, &apply_ns);
  MOESAIC_CHECK(house.is_full());
  Samples plan_times;
  Samples apply_times;
  uint64_t hash = 0xcbf29ce484222325ull;
  for (int i = 0; i < (options.small ? 200 : 2000); ++i) {
    const StepPlan& plan = house.step(&plan_ns, &apply_ns);
    plan_times.add(plan_ns);
    apply_times.add(apply_ns);
    for (const PlannedChunk& chunk : plan.groups[0].chunks) hash = mix(mix(hash, chunk.request_id), chunk.kv_end());
  }
  report(options, print, "sched.plan_us", plan_times, hash);
  report(options, print, "sched.apply_us", apply_times, hash);
}

void bench_lookup(const SchedBenchOptions& options, const Print& print) {
  constexpr int kPrompts = 4;
  constexpr int kBlocks = kLongPrompt / kBlockTokens;
  BlockPool pool(kPrompts * kBlocks, kBlockTokens);
  PrefixIndex index(&pool, {});
  Rng rng(2);
  std::vector<std::vector<int32_t>> prompts(kPrompts);
  for (std::vector<int32_t>& prompt : prompts) {
    for (int i = 0; i < kLongPrompt; ++i) prompt.push_back(static_cast<int32_t>(rng.below(100'000)));
    std::vector<int32_t> table;
    const bool allocated = pool.allocate(kBlocks, &table);
    MOESAIC_CHECK(allocated);
    for (int i = 0; i < kBlocks; ++i) {
      index.insert({}, i == 0 ? -1 : table[i - 1],
                   std::span(prompt).subspan(static_cast<size_t>(i) * kBlockTokens, kBlockTokens), table[i]);
    }
    pool.release(&table);
  }
  Samples samples;
  std::vector<int32_t> found;
  found.reserve(kBlocks);
  for (int i = 0; i < (options.small ? 40 : 400); ++i) {
    found.clear();
    const int64_t begin = real_clock().now_ns();
    index.lookup({}, prompts[i % kPrompts], &found);
    samples.add(real_clock().now_ns() - begin);
    MOESAIC_CHECK_EQ(static_cast<int>(found.size()), kBlocks);
  }
  report(options, print, "kv.prefix_lookup_us", samples, std::accumulate(found.begin(), found.end(), uint64_t{0}, mix));
}

}  // namespace

void run_sched_bench(const SchedBenchOptions& options, const Print& print) {
  bench_plan(options, print);
  bench_lookup(options, print);
}

}  // namespace moesaic
