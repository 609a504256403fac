// Runs several LinearPanels jobs (the groups of a grouped linear, the heads of a head linear, or one linear) in one
// parallel region, each thread a share of about equal cost. How work is split never changes a result.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/thread.h"
#include "kernels/cpu/linear_kernels.h"

namespace moesaic {

// Multiply-adds below which a second thread does not pay for the hand-over (about 1 us of work; handing over takes 0.15
// us while the workers spin).
inline constexpr int64_t kMinParallelWork = 16 * 1024;
// Rows below which cutting a job further costs more decoding than it balances.
inline constexpr int64_t kMinRowChunk = 32;
// Panels of a unit of work: the widest strip.
inline constexpr int64_t kUnitPanels = 2;
// Cost of decoding a weight, in units of using it for one row.
inline constexpr int64_t kDecodeCost = 1;

struct JobCut {
  int64_t num_chunks;  // of rows
  int64_t num_units;   // of panels, per chunk
  int64_t unit_cost;
};

inline JobCut cut_job(const LinearPanels& job, int64_t rows_per_chunk) {
  const int64_t num_chunks = (job.m + rows_per_chunk - 1) / rows_per_chunk;
  if (num_chunks == 0) return {0, 0, 0};
  const int64_t rows = (job.m + num_chunks - 1) / num_chunks;
  return {num_chunks, (job.weight->num_panels() + kUnitPanels - 1) / kUnitPanels,
          (rows + kDecodeCost) * job.weight->k()};
}

// Units of `job` whose cost, counted from `cost`, starts in [begin, end).
inline void run_job_share(const LinearPanels& job, const JobCut& cut, int64_t cost, int64_t begin, int64_t end) {
  for (int64_t chunk = 0; chunk < cut.num_chunks; ++chunk, cost += cut.num_units * cut.unit_cost) {
    const auto unit_at = [&](int64_t limit) {
      return std::clamp<int64_t>((limit - cost + cut.unit_cost - 1) / cut.unit_cost, 0, cut.num_units);
    };
    const int64_t first = unit_at(begin), last = unit_at(end);
    if (first >= last) continue;
    LinearPanels part = job;
    const int64_t row = job.m * chunk / cut.num_chunks;
    part.m = job.m * (chunk + 1) / cut.num_chunks - row;
    part.x += row * job.x_stride;
    part.y += row * job.y_stride;
    linear_panels(part, first * kUnitPanels, std::min(last * kUnitPanels, job.weight->num_panels()));
  }
}

// job_of(i) -> LinearPanels for i in [0, num_jobs); m may be 0.
template <typename JobOf>
void run_linear_jobs(ThreadPool& pool, int64_t num_jobs, const JobOf& job_of) {
  int64_t work = 0, units = 0;
  for (int64_t i = 0; i < num_jobs; ++i) {
    const LinearPanels job = job_of(i);
    const JobCut cut = cut_job(job, kRowChunk);
    work += job.m * job.weight->n() * job.weight->k();
    units += cut.num_chunks * cut.num_units;
  }
  if (work == 0) return;
  const int64_t num_threads = pool.num_threads();
  if (num_threads == 1 || work < kMinParallelWork) {
    for (int64_t i = 0; i < num_jobs; ++i) {
      const LinearPanels job = job_of(i);
      if (job.m > 0) linear_panels(job, 0, job.weight->num_panels());
    }
    return;
  }
  int64_t rows_per_chunk = kRowChunk;
  for (; rows_per_chunk > kMinRowChunk && units < 4 * num_threads; units *= 2) rows_per_chunk /= 2;
  int64_t total = 0;
  for (int64_t i = 0; i < num_jobs; ++i) {
    const JobCut cut = cut_job(job_of(i), rows_per_chunk);
    total += cut.num_chunks * cut.num_units * cut.unit_cost;
  }
  pool.run([&](int worker) {
    const int64_t begin = total * worker / num_threads, end = total * (worker + 1) / num_threads;
    int64_t cost = 0;
    for (int64_t i = 0; i < num_jobs && cost < end; ++i) {
      const LinearPanels job = job_of(i);
      const JobCut cut = cut_job(job, rows_per_chunk);
      const int64_t job_cost = cut.num_chunks * cut.num_units * cut.unit_cost;
      if (cost + job_cost > begin) run_job_share(job, cut, cost, begin, end);
      cost += job_cost;
    }
  });
}

}  // namespace moesaic
