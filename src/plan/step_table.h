// StepTable: how long the steps of one model take on one machine, as `moesaic bench steps` measured them, and as a
// StepTimer: time by decode and prompt tokens, bilinear between the measured points and beyond them, and linear in what
// attention reads. A value; a const one may be used by any thread. Groups run side by side: the largest one counts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "plan/step_timer.h"

namespace moesaic {

struct StepTable {
  std::string device;  // as people call it
  std::string model;
  std::string layout;
  int num_threads = 1;
  // Ascending from 0. [decode][prompt] seconds without what attention reads; nothing runs at (0, 0).
  std::vector<int64_t> decode_tokens;
  std::vector<int64_t> prefill_tokens;
  std::vector<double> step_s;
  // A query of a generated token meeting a row, where so many decode.
  std::vector<double> decode_pair_s;
  double prefill_pair_s = 0.0;    // a query of a prompt token meeting a row
  double prefill_cached_s = 0.0;  // a row before a chunk
  // Planning, sampling and delivering: what passes between two executions.
  double host_step_s = 0.0;
  double host_logit_row_s = 0.0;

  double step_seconds(const StepWork& work) const;
  std::string to_json() const;  // with a newline
  // Errors name the field.
  static absl::StatusOr<StepTable> parse(std::string_view json);
};

class TableStepTimer final : public StepTimer {
 public:
  explicit TableStepTimer(StepTable table) : table_(std::move(table)) {}
  double step_s(const StepWork& work) const override { return table_.step_seconds(work); }
  double draft_level_s(const StepWork&) const override { return 0.0; }  // not measured: drafts are refused before
  std::string source() const override;

 private:
  const StepTable table_;
};

}  // namespace moesaic
