// LoadReport: what a load measured, with the definitions, the table and the JSON names of `vllm bench serve`. Pure.
//   TTFT  from the request's start to its first piece of output
//   TPOT  (last piece - first piece) / (output tokens - 1), one value a request with two tokens or more
//   ITL   the gaps between pieces of output, all requests' together
//   E2EL  from the request's start to its last piece
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/distribution.h"
#include "base/status.h"
#include "cli/load_record.h"
#include "plan/slo.h"

namespace moesaic {

struct LoadSettings {   // what was asked for, as the report repeats it
  std::string backend;  // "openai" or "openai-chat"
  std::string model;
  double request_rate = 0.0;
  double burstiness = 1.0;
  int64_t max_concurrency = 0;  // 0: no limit
  Slo slo;
  std::vector<double> percents;
  int64_t date_unix_s = 0;
};

struct LoadReport {
  LoadSettings settings;
  double duration_s = 0.0;
  int64_t num_prompts = 0;
  int64_t completed = 0;
  int64_t failed = 0;
  int64_t without_usage = 0;  // completed requests whose tokens are counted pieces
  int64_t total_input_tokens = 0;
  int64_t total_output_tokens = 0;
  int64_t total_cached_tokens = 0;
  double request_throughput = 0.0;  // a second, as all of these
  double request_goodput = 0.0;
  double output_throughput = 0.0;
  double total_token_throughput = 0.0;
  double max_output_tokens_per_s = 0.0;  // the best second
  int64_t max_concurrent_requests = 0;
  Distribution ttft_ms;
  Distribution tpot_ms;
  Distribution itl_ms;
  Distribution e2el_ms;
  struct Errors {
    int64_t count = 0;
    std::string first;
  };
  std::map<std::string, Errors> errors;  // by kind
};

LoadReport make_report(const LoadSettings& settings, std::span<const RequestRecord> records, double duration_s);
std::string report_table(const LoadReport& report);
// One line. With `records`, each request's figures too, under vLLM's names.
std::string report_json(const LoadReport& report, std::span<const RequestRecord> records);

}  // namespace moesaic
