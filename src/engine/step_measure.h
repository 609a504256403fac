// Measures a StepTable by running steps whose results nobody reads, on an Executor that no request uses meanwhile: the
// rows of its KV cache are overwritten.
#pragma once

#include <cstdint>
#include <limits>

#include "base/clock.h"
#include "base/status.h"
#include "engine/engine.h"
#include "engine/executor.h"
#include "engine/step_table.h"

namespace moesaic {

// The defaults are the engine's, which needs to know at its start what drafts cost.
struct StepMeasureOptions {
  bool prompts = false;               // steps with prompts too; else only those that decode
  int64_t max_decode_tokens = 32;     // further ones are taken to go on as between the last two
  int repetitions = 5;                // the median counts, after one that warms up
  int64_t budget_ns = 1'000'000'000;  // then no more points, but for the first few, are measured
};

// Host times are 0, and device, model and layout left to the caller.
// Errors are the executor's.
absl::StatusOr<StepTable> measure_steps(Executor& executor, const EngineOptions& engine,
                                        const StepMeasureOptions& options, const Clock& clock);

}  // namespace moesaic
