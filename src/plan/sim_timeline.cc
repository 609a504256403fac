#include "plan/sim_timeline.h"

#include <algorithm>

namespace moesaic {
namespace {

constexpr size_t kMaxIntervals = 400;

void add_scaled(const SimTimeline::Interval& from, double scale, SimTimeline::Interval* to) {
  to->busy_s += from.busy_s * scale;
  to->num_steps += from.num_steps * scale;
  to->num_running += from.num_running * scale;
  to->num_queued += from.num_queued * scale;
  to->kv_use += from.kv_use * scale;
  to->token_balancedness += from.token_balancedness * scale;
  to->decode_tokens += from.decode_tokens * scale;
  to->prefill_tokens += from.prefill_tokens * scale;
}

}  // namespace

void SimTimeline::add(const SimStep& step) {
  const int64_t end_ns = step.begin_ns + step.duration_ns;
  while ((end_ns - 1) / width_ns_ >= static_cast<int64_t>(kMaxIntervals)) halve();
  const auto last = static_cast<size_t>((end_ns - 1) / width_ns_);
  if (intervals_.size() <= last) intervals_.resize(last + 1);
  const double seconds = static_cast<double>(step.duration_ns) * 1e-9;
  const Interval whole{.busy_s = seconds,
                       .num_steps = 1.0,
                       .num_running = step.num_running * seconds,
                       .num_queued = step.num_queued * seconds,
                       .kv_use = step.kv_use * seconds,
                       .token_balancedness = step.token_balancedness * seconds,
                       .decode_tokens = step.decode_tokens,
                       .prefill_tokens = step.prefill_tokens};
  for (auto i = static_cast<size_t>(step.begin_ns / width_ns_); i <= last; ++i) {
    const int64_t begin = std::max(step.begin_ns, static_cast<int64_t>(i) * width_ns_);
    const int64_t end = std::min(end_ns, static_cast<int64_t>(i + 1) * width_ns_);
    add_scaled(whole, static_cast<double>(end - begin) / static_cast<double>(step.duration_ns), &intervals_[i]);
  }
}

void SimTimeline::halve() {
  width_ns_ *= 2;
  for (size_t i = 0; i < intervals_.size(); ++i) {
    const Interval from = intervals_[i];
    intervals_[i] = {};
    add_scaled(from, 1.0, &intervals_[i / 2]);
  }
  intervals_.resize((intervals_.size() + 1) / 2);
}

std::vector<SimTimeline::Interval> SimTimeline::intervals() const {
  std::vector<Interval> means = intervals_;
  for (Interval& interval : means) {
    if (interval.busy_s <= 0.0) continue;
    for (double* mean : {&interval.num_running, &interval.num_queued, &interval.kv_use, &interval.token_balancedness}) {
      *mean /= interval.busy_s;
    }
  }
  return means;
}

}  // namespace moesaic
