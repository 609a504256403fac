// The three ways of `moesaic eval`. Each prints its result to standard output.
#pragma once

#include <string>

#include "cli/model_settings.h"

namespace moesaic {

struct EvalConfig {
  ModelSettings model;
  std::string ids;
  std::string out;
  bool mtp = false;
  std::string text;
  int64_t window = 0;
  std::string tasks;
  int32_t max_tokens = 256;
  double min_accuracy = 0.0;
  bool json = false;
};

// For every i32 tensor NAME [n] of `ids`, f32 NAME.logits [n, vocab] in `out`, and with `mtp` NAME.mtp_logits
// [n - 1, vocab].
absl::Status eval_ids(const EvalConfig& config);
// Perplexity of a text file, in windows that each start with BOS.
absl::Status eval_text(const EvalConfig& config);
// Share of the tasks whose greedy text equals the answer. Error FAILED_PRECONDITION below min_accuracy.
absl::Status eval_tasks(const EvalConfig& config);

}  // namespace moesaic
