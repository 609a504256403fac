// Traffic: the requests of a simulated or measured load: made from a seed, or read from a trace. Lengths and times
// only; the tokens of a prompt are drawn when it is sent, so that a million requests fit. Pure.
//
// A trace has one JSON object a line, in order of time:
//   {"time": 0.25, "input": 812, "output": 96, "prefix": 7, "prefix_tokens": 512}
// "time": seconds from the start. "prefix" (optional): requests with equal ids begin with the same tokens, the first
// "prefix_tokens" of them (without it: as many as the prompt has).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "base/status.h"
#include "plan/arrivals.h"

namespace moesaic {

struct TrafficRequest {
  int64_t due_ns = 0;      // from the start
  int32_t num_input = 1;   // tokens of the prompt
  int32_t num_output = 1;  // max_tokens
  int64_t prefix_id = -1;  // -1 = none
  int32_t num_prefix = 0;  // leading tokens that come from the prefix
};

struct TrafficOptions {
  int64_t num_prompts = 1000;
  ArrivalOptions arrivals;  // its seed is the seed of everything
  int64_t input_len = 1024;
  int64_t output_len = 128;
  double range_ratio = 0.0;  // lengths are uniform in [len (1 - r), len (1 + r)]
  int64_t num_prefixes = 0;  // a request's prefix is one of so many, drawn evenly; 0 = none is shared
  int64_t prefix_len = 0;    // tokens before the input_len ones
};

// In order of time.
std::vector<TrafficRequest> make_traffic(const TrafficOptions& options);

// At most max_requests lines; empty lines are skipped. Errors name the line and the field.
absl::StatusOr<std::vector<TrafficRequest>> parse_trace(std::string_view lines, int64_t max_requests);
// A line of a trace, with its newline.
std::string trace_line(const TrafficRequest& request);

// The prompt of request `index`: ids from 0 to vocab_size - 1 (at least 2), depending on the arguments alone.
std::vector<int32_t> prompt_tokens(const TrafficRequest& request, int64_t index, uint64_t seed, int64_t vocab_size);

// A random length, uniform in [length (1 - ratio), length (1 + ratio)], at least 1.
int64_t draw_length(Rng& rng, int64_t length, double ratio);

}  // namespace moesaic
