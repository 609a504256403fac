// StepTable: how long the steps of one model, and those of its draft module, take on one machine: time by decode and
// prompt tokens, bilinear between the measured points and beyond them, and linear in what attention reads. Measured by
// measure_steps (step_measure.h); the draft depth is chosen by it, and `simulate --steps` runs on it. A value; a const
// one may be used by any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cost/cost_model.h"

namespace moesaic {

// Seconds of the model's forward, or of one level of the draft module.
struct StepTimes {
  std::vector<double> base_s;         // [decode][prefill] without what attention reads
  std::vector<double> decode_pair_s;  // [decode] a query of a generated token meeting a row, where so many decode
  double decode_reuse = 0.0;      // 0 to 1: the share of it that a token and its drafts pay once, not each for itself
  double prefill_pair_s = 0.0;    // a query of a prompt token meeting a row
  double prefill_cached_s = 0.0;  // a row before a chunk
};

struct StepTable {
  std::string device;  // as people call it
  std::string model;
  std::string layout;
  int num_threads = 1;
  // Ascending from 0: tokens of a DP group. Drafts that are verified count as decode tokens.
  std::vector<int64_t> decode_tokens;
  std::vector<int64_t> prefill_tokens;
  StepTimes step;
  StepTimes draft;  // empty without a draft module
  // Planning, sampling and delivering: what passes between two executions.
  double host_step_s = 0.0;
  double host_logit_row_s = 0.0;

  // One linear in the tokens, for tests.
  struct Linear {
    double step = 0.0;
    double decode_token = 0.0;
    double decode_kv_token = 0.0;
    double prefill_token = 0.0;
    double draft_level = 0.0;
    double draft_token = 0.0;
  };
  static StepTable linear(const Linear& seconds);

  bool has_draft() const { return !draft.base_s.empty(); }
  // Seconds of `times` (step or draft) for the largest group; 0 for an idle one.
  double seconds(const StepTimes& times, const GroupWork& group) const;

  std::string to_json() const;
  // Errors name the field.
  static absl::StatusOr<StepTable> parse(std::string_view json);
};

}  // namespace moesaic
