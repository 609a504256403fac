// PreTokenizer: cuts a text into the words that BPE works on, by the steps of tokenizer.json in the file's order. Each
// step sees every piece of the step before as a text of its own, so lookarounds do not see across pieces.
// Immutable after the loader filled it; any thread (the scratch is the caller's).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/regex.h"

namespace moesaic {

enum class SplitBehavior : uint8_t { kIsolated, kRemoved, kContiguous, kMergedWithPrevious, kMergedWithNext };

struct SplitStep {
  Regex regex;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;
};

class PreTokenizer {
 public:
  struct Piece {
    uint32_t begin;
    uint32_t end;
  };
  struct Scratch {
    std::vector<Piece> pieces;  // the answer; never empty pieces
    std::vector<Piece> next;
    std::vector<Regex::Match> matches;
    std::string shadow;
    std::string prefixed;
  };

  void add_split(SplitStep step) { steps_.push_back(std::move(step)); }
  // Steps added later see pieces that start with a space (ByteLevel's add_prefix_space).
  void add_prefix_space() { prefix_space_before_ = static_cast<int>(steps_.size()); }

  // Cuts `text` (valid UTF-8, below 2 GiB). The pieces in `scratch` refer to the returned text: `text` itself, or a
  // copy with spaces put in.
  std::string_view split(std::string_view text, Scratch& scratch) const;

 private:
  static void apply(const SplitStep& step, std::string_view text, Scratch& scratch);
  static std::string_view prefix_pieces(std::string_view text, Scratch& scratch);

  std::vector<SplitStep> steps_;
  int prefix_space_before_ = -1;  // index of a step; -1 = never
};

}  // namespace moesaic
