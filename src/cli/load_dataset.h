// The prompts of a load: made from a seed, or read from a file. Pure but for reading the file. Prompts are token ids,
// or the same number of common words where the server takes text only; equal ids give equal words, so shared prefixes
// stay.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace moesaic {

struct LoadPrompt {
  std::vector<int32_t> ids;  // empty: `text`
  std::string text;
  int64_t output_len = 0;  // max_tokens
  double due_s = -1.0;     // of a trace: seconds from the start; below 0: as the arrivals say
};

struct DatasetOptions {
  std::string name = "random";  // random, generated-shared-prefix, custom, mooncake, trace
  std::string path;             // of custom, mooncake and trace
  int64_t num_prompts = 1000;   // at most so many of a file
  uint64_t seed = 0;
  int64_t vocab_size = 4000;  // random ids are below
  int64_t random_input_len = 1024;
  int64_t random_output_len = 128;
  double random_range_ratio = 0.0;  // lengths are uniform in [len (1 - r), len (1 + r)]
  int64_t gsp_num_groups = 64;      // shared prefixes
  int64_t gsp_system_prompt_len = 2048;
  int64_t gsp_question_len = 128;
  int64_t gsp_output_len = 256;
  int64_t custom_output_len = 256;  // of lines that name none
  double mooncake_slowdown_factor = 1.0;
};

// Errors: INVALID_ARGUMENT naming the setting or the line; NOT_FOUND for a missing file.
absl::StatusOr<std::vector<LoadPrompt>> load_dataset(const DatasetOptions& options);
// Lines {"prompt": text or ids, "output_tokens": n}.
absl::StatusOr<std::vector<LoadPrompt>> parse_custom(std::string_view lines, const DatasetOptions& options);
// Lines {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [one of each 512 tokens]}: equal hash ids
// are equal tokens.
absl::StatusOr<std::vector<LoadPrompt>> parse_mooncake(std::string_view lines, const DatasetOptions& options);

// As many words as ids, joined by spaces.
std::string words_of(const std::vector<int32_t>& ids);

}  // namespace moesaic
