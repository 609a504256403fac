// What a simulated load came to: figures with the definitions and JSON names of `bench serve`, and those that only the
// inside of an engine shows; as text, JSON and Report. Pure.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/distribution.h"
#include "plan/report.h"
#include "plan/simulator.h"
#include "plan/slo.h"

namespace moesaic {

struct SimFigures {
  double duration_s = 0.0;
  int64_t num_requests = 0, completed = 0, failed = 0;
  int64_t total_input_tokens = 0, total_output_tokens = 0, total_cached_tokens = 0;  // of completed requests
  double request_throughput = 0.0;                                                   // a second, as the next
  double request_goodput = 0.0;                                                      // of requests that keep the bounds
  double output_throughput = 0.0;
  double total_token_throughput = 0.0;
  Distribution ttft_ms, tpot_ms, e2el_ms;

  double busy_share = 0.0;    // of the time inside steps
  double mean_running = 0.0;  // over the duration, as the next; sequences of all DP groups
  double mean_queued = 0.0, max_queued = 0.0;
  double mean_kv_use = 0.0, max_kv_use = 0.0;  // share of the KV blocks that sequences hold
  double token_balancedness = 0.0;             // mean over the DP groups' tokens of a step, over the largest
  double kv_balancedness = 0.0;                // the same of the KV rows that their sequences hold
  double mean_step_ms = 0.0;
  double prefill_throughput = 0.0;  // prompt tokens that were computed, a second
  double acceptance = 0.0;          // of drafts; 0 without
};

SimFigures make_figures(const SimResult& result, const Slo& slo, std::span<const double> percents);

// What the command was asked for, as its answer repeats it.
struct SimSettings {
  std::string command;
  std::string timer;                     // StepTimer::source
  std::string traffic;                   // "1000 requests, ..."
  std::vector<std::string> assumptions;  // beyond those that every simulation has
  Slo slo;
};

std::string figures_text(const SimFigures& figures, const SimResult& result, const SimSettings& settings);
// One line. Nothing but the arguments is in it: same seed, same bytes.
std::string figures_json(const SimFigures& figures, const SimResult& result, const SimSettings& settings);
Report sim_report(const SimFigures& figures, const SimResult& result, const SimSettings& settings);

}  // namespace moesaic
