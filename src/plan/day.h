// A day of a service: what it needed and earned by the hour (data/deepseek_diurnal.csv: DeepSeek's of 2025-02-27/28),
// and the same day again under policies that give nodes to training at night and take them back. The totals are
// arithmetic; a DayRun is simulated: fluid load on whole units that take time to load.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "plan/autoscale.h"

namespace moesaic {

struct DayHour {
  std::string label;  // "12:00"
  double nodes = 0;   // that served, mean of the hour
  double income_usd = 0;
  double share = 0;  // of the day's tokens
};

// Lines of a CSV with the header hour_utc8,avg_nodes,income_usd,share_of_day. Errors (INVALID_ARGUMENT) name source,
// line and field: 24 hours, numbers from 0, shares that add up to 1 within 0.5 %.
absl::StatusOr<std::vector<DayHour>> parse_day(std::string_view csv, const std::string& source);

// Defaults: DeepSeek's published day.
struct DayTraffic {
  double input_hit_tokens = 342e9;   // found in the cache
  double input_miss_tokens = 266e9;  // computed
  double output_tokens = 168e9;
  double usd_per_million_hit = 0.14;
  double usd_per_million_miss = 0.55;
  double usd_per_million_output = 2.19;
  double usd_per_gpu_hour = 2.0;
  int gpus_per_node = 8;
};

struct DayTotals {
  double node_hours = 0;
  double mean_nodes = 0;
  double cost_usd = 0;
  double income_usd = 0;         // of the hours
  double income_tokens_usd = 0;  // tokens times prices: the same up to the rounding of the published tokens
  double margin = 0;             // (income - cost) / cost
};
DayTotals day_totals(const std::vector<DayHour>& hours, const DayTraffic& traffic);

// Defaults: DeepSeek's deployment units, the 278 nodes that it had at most, and its mean rates of a node.
struct DayFleet {
  int prefill_unit_nodes = 4;  // EP32
  int decode_unit_nodes = 18;  // EP144
  int prefill_units = 29;      // at most; the fixed policy runs all
  int decode_units = 9;
  double prefill_rate = 73'700;  // input tokens/s of a node with cache hits, mean of the day
  double decode_rate = 14'800;   // output tokens/s of a node, mean of the day
  // What a node serves within its SLO, as part of its mean rate. Not published: 1.2 means that the busiest hour used 91
  // % of the 278 nodes; below 1.1 they could not have served it.
  double capacity = 1.2;
  int num_nodes() const { return prefill_units * prefill_unit_nodes + decode_units * decode_unit_nodes; }
  double prefill_load_s = 600;  // from asking training for a node until it serves
  double decode_load_s = 600;
  double slo_wait_s = 2;   // tokens that wait longer miss their SLO
  double noise = 0.03;     // deviation of a minute's load from the curve, slow: it changes over half an hour
  double day_level = 1.0;  // today's load over the usual day's
  uint64_t seed = 1;
};

struct DayRun {
  ScalePolicy policy = ScalePolicy::kFixed;
  double node_hours = 0;           // serving and loading
  double training_node_hours = 0;  // of the whole fleet
  double cost_usd = 0;
  double miss_share = 0;    // of tokens: the worse of prefill and decode in each minute
  int64_t num_changes = 0;  // decisions that changed a pool
  int least_nodes = 0, most_nodes = 0;
  struct Minute {
    int needed_nodes = 0;  // load over capacity, whole units
    int nodes = 0;         // serving and loading
  };
  std::vector<Minute> minutes;  // 1440
};

// Units that the busiest hour needs: {prefill, decode}; perhaps more than the fleet has.
std::array<int, 2> peak_units(const std::vector<DayHour>& hours, const DayTraffic& traffic, const DayFleet& fleet);

// Minute by minute; the day before has warmed up the policy. The same settings give the same run.
DayRun simulate_day(const std::vector<DayHour>& hours, const DayTraffic& traffic, const DayFleet& fleet,
                    ScalePolicy policy);

}  // namespace moesaic
