#include "plan/queue_check.h"

#include <algorithm>
#include <cmath>

#include "base/distribution.h"
#include "plan/simulator.h"

namespace moesaic {
namespace {

// A check takes about half a second: the simulator makes some two million tokens a second.
constexpr int64_t kDecodeTokens = 1'000'000;
constexpr int64_t kPromptTokens = 24'000'000;
constexpr int64_t kRequestInTokens = 20;           // what a request costs beside its tokens: of output ...
constexpr int64_t kRequestInPromptTokens = 1'000;  // ... and of a prompt
constexpr int64_t kLeastRequests = 400;
constexpr int64_t kFullSteps = 60;  // of a prefill instance: as long as its queue remembers
constexpr double kWarmUp = 0.2;     // of a prefill instance's requests
constexpr int64_t kLeastGroups = 4;
// Waits that grow by so much of the time, and so many times, never stop growing.
constexpr double kLeastGrowth = 0.02;
constexpr double kLeastRise = 1.25;

// Steps of a decode instance: prompts come with their KV cache, and what the engine takes for their last step is their
// first decode step.
class DecodeTimer final : public StepTimer {
 public:
  explicit DecodeTimer(CostStepTimer timer) : timer_(std::move(timer)) {}
  double step_s(const StepWork& work) const override { return timer_.step_s(without_prompts(work)); }
  double draft_level_s(const StepWork& work) const override { return timer_.draft_level_s(without_prompts(work)); }
  std::string source() const override { return timer_.source(); }

 private:
  static StepWork without_prompts(StepWork work) {
    for (GroupWork& g : work.groups) {
      g.num_decode_seqs += g.num_prefill_seqs;
      g.num_decode_tokens += g.num_prefill_seqs;
      g.decode_kv_tokens += g.prefill_kv_tokens;
      g.decode_pairs += static_cast<double>(g.prefill_kv_tokens);
      g.num_prefill_seqs = g.num_prefill_tokens = g.prefill_kv_tokens = 0;
      g.prefill_pairs = 0;
    }
    return work;
  }
  CostStepTimer timer_;
};

EngineOptions engine_options(const LayoutCandidate& candidate, const Traffic& t) {
  const Deployment& d = candidate.deployment;
  const EngineLimits limits = engine_limits(candidate);
  EngineOptions engine{.dp_size = d.layout.dp_size,
                       .num_kv_blocks = static_cast<int>(limits.kv_tokens / 64),
                       .kv_block_tokens = 64,
                       .max_running_requests = static_cast<int>(limits.max_running_requests),
                       .max_queued_requests = 100'000'000,
                       .max_tokens_per_step = limits.max_step_tokens,
                       .prefix_cache = t.cached_share > 0,
                       .max_draft_depth = static_cast<int>(d.num_draft),
                       .adaptive_draft_depth = false,  // as serve_config() has it
                       .synthetic_acceptance = d.num_draft > 0 ? candidate.point.acceptance : -1.0};
  engine.context_length =
      static_cast<int64_t>(std::ceil(static_cast<double>(t.input_len + t.output_len) * (1 + t.range_ratio)) + 2);
  return engine;
}

// What one group has in flight at a load that it serves, by Little's law: sequences to decode, or tokens to prefill, as
// many as arrive (decode: and stay) during the steps that so many make.
double in_flight(const CostModel& cost, const LayoutCandidate& c, double tokens_per_s) {
  const bool decode = c.point.phase == Phase::kDecode;
  OperatingPoint point = c.point;
  int64_t& size = decode ? point.batch : point.chunk_tokens;
  const int64_t most = size;
  const double tokens = decode ? tokens_per_verify(c.deployment.num_draft, c.point.acceptance) : 1;
  const auto needed = [&](int64_t of) {
    size = of;
    const GroupWork work = uniform_work(point, c.deployment.num_draft);
    return tokens_per_s * cost.step({&work, 1}).seconds / tokens;
  };
  int64_t low = 1, high = most;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (needed(middle) <= static_cast<double>(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return std::min(static_cast<double>(most), needed(low));
}

// A request that is in flight at the start and has `done` (0 to 1) of its answer: a moment meets long ones more often.
TrafficRequest met_request(const TrafficOptions& from, double done, Rng& rng) {
  const double longest = static_cast<double>(from.output_len) * (1 + from.range_ratio) + 1;
  int64_t output = from.output_len;
  do {
    output = draw_length(rng, from.output_len, from.range_ratio);
  } while (rng.uniform() * longest > static_cast<double>(output));
  const auto num_done = static_cast<int64_t>(done * static_cast<double>(output));
  return {.num_input = static_cast<int32_t>(draw_length(rng, from.input_len, from.range_ratio) + num_done),
          .num_output = static_cast<int32_t>(output - num_done)};
}

// Where more arrives than is served, who comes a second later waits longer by a fixed part of it: from the first to the
// last quarter of requests [first, last), which arrive one after the other.
double served_share(const SimResult& result, int64_t first, int64_t last) {
  const int64_t quarter = std::max<int64_t>(1, (last - first) / 4);
  const auto mean = [&](int64_t begin, const auto& value) {
    double sum = 0;
    for (int64_t i = begin; i < begin + quarter; ++i) sum += static_cast<double>(value(result.records[i]));
    return sum / static_cast<double>(quarter);
  };
  const auto start = [](const SimRecord& r) { return r.start_ns; };
  const auto wait = [](const SimRecord& r) { return r.first_ns - r.start_ns; };
  const double before = mean(first, wait), after = mean(last - quarter, wait);
  const double growth = (after - before) / (mean(last - quarter, start) - mean(first, start));
  return growth > kLeastGrowth && after > kLeastRise * before ? 1 / (1 + growth) : 1.0;
}

absl::Status all_served(const SimResult& result) {
  if (result.errors.empty()) return absl::OkStatus();
  const auto& [message, count] = *result.errors.begin();
  return absl::FailedPreconditionError(str_cat("simulated requests failed: ", count, " x ", message));
}

// Requests [first, last) show whether the queue grows.
QueueFigures figures_of(const SimResult& result, std::vector<double> latencies, int64_t first, int64_t last,
                        double slo_percent) {
  QueueFigures out{.num_requests = std::ssize(latencies)};
  std::sort(latencies.begin(), latencies.end());
  out.p50_ms = percentile(latencies, 50);
  out.p99_ms = percentile(latencies, 99);
  out.slo_ms = percentile(latencies, slo_percent);
  out.served_share = served_share(result, first, last);
  out.preempted_share =
      static_cast<double>(result.stats.preemptions_total) / static_cast<double>(result.records.size());
  return out;
}

absl::StatusOr<QueueFigures> check_prefill(const LayoutCandidate& c, const Traffic& t, const CostModel& cost,
                                           CostStepTimer timer, double slo_percent, uint64_t seed) {
  const OperatingPoint& p = c.point;
  const int64_t fresh = p.prompt_len - p.cached_len, dp = c.deployment.layout.dp_size;
  const double rate = t.requests_per_s * static_cast<double>(fresh) / static_cast<double>(dp);  // tokens of a group
  const double waiting = in_flight(cost, c, rate) * static_cast<double>(dp) / static_cast<double>(fresh);
  const int64_t enough =
      std::min(kFullSteps * p.chunk_tokens * dp / fresh, kPromptTokens / (t.input_len + kRequestInPromptTokens));
  std::vector<TrafficRequest> traffic = make_traffic({.num_prompts = std::max(kLeastRequests, enough),
                                                      .arrivals = {.request_rate = t.requests_per_s, .seed = seed},
                                                      .input_len = fresh,
                                                      .output_len = 1,
                                                      .range_ratio = t.range_ratio,
                                                      .num_prefixes = p.cached_len > 0 ? 1 : 0,
                                                      .prefix_len = p.cached_len});
  // Those that would be waiting arrive at once.
  const auto num_met = static_cast<size_t>(std::min(waiting, static_cast<double>(traffic.size() / 2)));
  const int64_t begin_ns = traffic[num_met].due_ns;
  for (TrafficRequest& request : traffic) request.due_ns = std::max<int64_t>(0, request.due_ns - begin_ns);
  MOESAIC_ASSIGN_OR_RETURN(const SimResult result,
                           simulate({.engine = engine_options(c, t), .seed = seed}, traffic, timer));
  MOESAIC_RETURN_IF_ERROR(all_served(result));
  std::vector<double> ttfts;
  const auto last = std::ssize(traffic), first = static_cast<int64_t>(kWarmUp * static_cast<double>(last));
  for (int64_t i = first; i < last; ++i) {
    ttfts.push_back(static_cast<double>(result.records[i].first_ns - result.records[i].start_ns) * 1e-6);
  }
  QueueFigures out = figures_of(result, std::move(ttfts), first, last, slo_percent);
  out.num_groups = c.deployment.layout.dp_size;
  out.fill = result.totals.mean_step_tokens / static_cast<double>(result.totals.num_steps * p.chunk_tokens);
  return out;
}

absl::StatusOr<QueueFigures> check_decode(const LayoutCandidate& c, const Traffic& t, const CostModel& cost,
                                          CostStepTimer timer, double slo_percent, uint64_t seed) {
  // The first token comes from prefill.
  const int64_t output = std::max<int64_t>(1, t.output_len - 1), dp = c.deployment.layout.dp_size;
  const double rate = t.requests_per_s / static_cast<double>(dp);  // of a group
  const double each = in_flight(cost, c, rate * static_cast<double>(output));
  // What is in flight at the start, what counts, and as many again while that ends: 2.5 answers for each in flight.
  const int64_t budget = kDecodeTokens * 2 / 5 / (output + kRequestInTokens);
  const auto groups = std::clamp<int64_t>(static_cast<int64_t>(static_cast<double>(budget) / std::max(each, 1e-3)),
                                          std::min(kLeastGroups, dp), dp);
  const auto num_met = std::llround(each * static_cast<double>(groups));
  const int64_t num_counted = std::max<int64_t>(num_met, std::min(kLeastRequests, budget));
  const TrafficOptions options{.num_prompts = num_counted + num_met,
                               // Placement deals the instance's arrivals out to all groups: these get every so many-th.
                               .arrivals = {.request_rate = rate * static_cast<double>(groups),
                                            .burstiness = static_cast<double>(dp) / static_cast<double>(groups),
                                            .seed = seed},
                               .input_len = t.input_len,
                               .output_len = output,
                               .range_ratio = t.range_ratio};
  std::vector<TrafficRequest> traffic(num_met);
  Rng rng(seed, /*position=*/uint64_t{1} << 32);  // not where the arrivals begin
  for (int64_t i = 0; i < num_met; ++i) {
    traffic[i] = met_request(options, (static_cast<double>(i) + rng.uniform()) / static_cast<double>(num_met), rng);
  }
  const std::vector<TrafficRequest> arriving = make_traffic(options);
  traffic.insert(traffic.end(), arriving.begin(), arriving.end());
  SimOptions sim{.engine = engine_options(c, t), .seed = seed};
  sim.engine.dp_size = static_cast<int>(groups);
  sim.engine.prefix_cache = false;
  // Prompts take no time: all that come start.
  sim.engine.max_tokens_per_step =
      sim.engine.max_running_requests * (sim.engine.context_length + 1 + c.deployment.num_draft);
  MOESAIC_ASSIGN_OR_RETURN(const SimResult result, simulate(sim, traffic, DecodeTimer(std::move(timer))));
  MOESAIC_RETURN_IF_ERROR(all_served(result));
  std::vector<double> tpots;
  double residence_s = 0;
  for (int64_t i = num_met; i < num_met + num_counted; ++i) {
    const SimRecord& r = result.records[i];
    tpots.push_back(static_cast<double>(r.last_ns - r.start_ns) * 1e-6 / r.num_output);
    residence_s += static_cast<double>(r.last_ns - r.start_ns) * 1e-9;
  }
  QueueFigures out = figures_of(result, std::move(tpots), num_met, std::ssize(traffic), slo_percent);
  out.num_groups = static_cast<int>(groups);
  const double running = rate * residence_s / static_cast<double>(num_counted);  // Little's law, with those that wait
  out.fill = std::min(1.0, running / static_cast<double>(c.point.batch));
  return out;
}

}  // namespace

absl::StatusOr<QueueFigures> check_queue(const LayoutCandidate& candidate, const Traffic& share, double slo_percent,
                                         uint64_t seed) {
  Deployment deployment = candidate.deployment;
  deployment.overlap = OverlapMode::kBest;  // of each step
  MOESAIC_ASSIGN_OR_RETURN(CostStepTimer timer, CostStepTimer::make(deployment));
  MOESAIC_ASSIGN_OR_RETURN(const CostModel cost, CostModel::make(std::move(deployment)));
  if (candidate.point.phase == Phase::kPrefill) {
    return check_prefill(candidate, share, cost, std::move(timer), slo_percent, seed);
  }
  return check_decode(candidate, share, cost, std::move(timer), slo_percent, seed);
}

}  // namespace moesaic
