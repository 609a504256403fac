// StepTrace: the timeline of steps and requests, recorded on demand, as the JSON that ui.perfetto.dev and
// chrome://tracing read. start() and stop() are called by any thread; the rest by the engine thread. While off each
// call is a load and a branch; while on nothing allocates: the buffer is there from start() on, and what no longer fits
// is counted and dropped.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/engine.h"
#include "sched/step_plan.h"

namespace moesaic {

class StepTrace {
 public:
  enum class Phase : uint8_t { kPlan, kForward, kSample, kDraft, kDeliver };
  static constexpr int kNumPhases = 5;

  explicit StepTrace(const Clock& clock, size_t max_events = 1 << 16) : clock_(clock), max_events_(max_events) {}

  absl::Status start();                // FAILED_PRECONDITION while it records
  absl::StatusOr<std::string> stop();  // FAILED_PRECONDITION while it does not

  // Steps: begin_step, end_phase in the order of Phase, end_step. A step that start() or stop() cuts is left out.
  void begin_step(int64_t now_ns) {
    in_step_ = is_on();
    phase_ends_ns_[0] = now_ns;
  }
  void end_phase(Phase phase) {
    if (in_step_) phase_ends_ns_[static_cast<size_t>(phase) + 1] = clock_.now_ns();
  }
  void end_step(const StepPlan& plan) {
    if (in_step_) record_step(plan);
  }
  // Requests. `times` as far as they are known.
  void admitted(RequestId id, const RequestTimes& times) {
    if (is_on()) record_request(Kind::kAdmitted, id, times, 0, FinishReason::kNone);
  }
  void first_token(RequestId id, const RequestTimes& times) {
    if (is_on()) record_request(Kind::kFirstToken, id, times, 1, FinishReason::kNone);
  }
  void ended(RequestId id, const RequestTimes& times, int64_t num_tokens, FinishReason reason) {
    if (is_on()) record_request(Kind::kEnded, id, times, num_tokens, reason);
  }

 private:
  enum class Kind : uint8_t { kStep, kPrefill, kReplay, kPreempted, kAdmitted, kFirstToken, kEnded };
  struct Event {
    Kind kind = Kind::kStep;
    FinishReason reason = FinishReason::kNone;
    uint64_t id = 0;  // step or request
    // Of a step: its begin and the ends of its phases; of a request: RequestTimes' last four.
    int64_t times_ns[kNumPhases + 1]{};
    int64_t numbers[2]{};  // of a step: prompt and decode tokens; of a chunk: first row, tokens; at an end: tokens
  };
  struct Writer;

  bool is_on() const { return on_.load(std::memory_order_relaxed); }
  void record_step(const StepPlan& plan);
  void record_request(Kind kind, RequestId id, const RequestTimes& times, int64_t num_tokens, FinishReason reason);
  void add(const Event& event);  // with mutex_

  const Clock& clock_;
  const size_t max_events_;
  std::atomic<bool> on_{false};
  bool in_step_ = false;                     // the engine thread's, as the next
  int64_t phase_ends_ns_[kNumPhases + 1]{};  // [0]: the begin of the step
  std::mutex mutex_;                         // taken only while it records, and by start() and stop()
  int64_t begin_ns_ = 0;
  int64_t num_dropped_ = 0;
  std::vector<Event> events_;
};

}  // namespace moesaic
