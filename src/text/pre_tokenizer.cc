#include "text/pre_tokenizer.h"

#include "text/unicode_classes.h"

namespace moesaic {

namespace {

using Piece = PreTokenizer::Piece;

// Collects the parts of one piece, matching and not, and joins them as the behaviour asks.
class PartCollector {
 public:
  PartCollector(const SplitStep& step, std::vector<Piece>& out) : step_(step), out_(out), first_(out.size()) {}

  void add(uint32_t begin, uint32_t end, bool matched) {
    const bool is_match = matched != step_.invert;
    // An empty match still separates its neighbours, so it takes part here and is dropped in finish().
    const bool empty_list = out_.size() == first_;
    switch (step_.behavior) {
      case SplitBehavior::kRemoved:
        if (!is_match) out_.push_back({begin, end});
        break;
      case SplitBehavior::kIsolated:
        out_.push_back({begin, end});
        break;
      case SplitBehavior::kContiguous:
        extend_or_push(!empty_list && is_match == previous_match_, begin, end);
        break;
      case SplitBehavior::kMergedWithPrevious:
        extend_or_push(!empty_list && is_match && !previous_match_, begin, end);
        break;
      case SplitBehavior::kMergedWithNext:
        extend_or_push(!empty_list && !is_match && previous_match_, begin, end);
        break;
    }
    previous_match_ = is_match;
  }

  void finish() {
    size_t kept = first_;
    for (size_t i = first_; i < out_.size(); ++i) {
      if (out_[i].begin < out_[i].end) out_[kept++] = out_[i];
    }
    out_.resize(kept);
  }

 private:
  void extend_or_push(bool extend, uint32_t begin, uint32_t end) {
    if (extend) {
      out_.back().end = end;
    } else {
      out_.push_back({begin, end});
    }
  }

  const SplitStep& step_;
  std::vector<Piece>& out_;
  size_t first_;
  bool previous_match_ = false;
};

}  // namespace

void PreTokenizer::apply(const SplitStep& step, std::string_view text, Scratch& scratch) {
  scratch.next.clear();
  for (const Piece& piece : scratch.pieces) {
    scratch.matches.clear();
    // If a bound was hit, the matches so far count and the rest of the piece stays whole.
    step.regex.find_all(text.substr(piece.begin, piece.end - piece.begin), scratch.matches);
    PartCollector parts(step, scratch.next);
    uint32_t at = piece.begin;
    for (const Regex::Match& match : scratch.matches) {
      if (at < piece.begin + match.begin) parts.add(at, piece.begin + match.begin, false);
      parts.add(piece.begin + match.begin, piece.begin + match.end, true);
      at = piece.begin + match.end;
    }
    if (at < piece.end) parts.add(at, piece.end, false);
    parts.finish();
  }
  scratch.pieces.swap(scratch.next);
}

std::string_view PreTokenizer::prefix_pieces(std::string_view text, Scratch& scratch) {
  scratch.prefixed.clear();
  for (Piece& piece : scratch.pieces) {
    const std::string_view old = text.substr(piece.begin, piece.end - piece.begin);
    piece.begin = static_cast<uint32_t>(scratch.prefixed.size());
    if (!old.starts_with(' ')) scratch.prefixed += ' ';
    scratch.prefixed += old;
    piece.end = static_cast<uint32_t>(scratch.prefixed.size());
  }
  return scratch.prefixed;
}

std::string_view PreTokenizer::split(std::string_view text, Scratch& scratch) const {
  scratch.pieces.clear();
  if (!text.empty()) scratch.pieces.push_back({0, static_cast<uint32_t>(text.size())});
  std::string_view seen = with_reference_classes(text, scratch.shadow);
  for (int i = 0; i <= static_cast<int>(steps_.size()); ++i) {
    if (i == prefix_space_before_) {
      text = prefix_pieces(text, scratch);
      seen = with_reference_classes(text, scratch.shadow);
    }
    if (i < static_cast<int>(steps_.size())) apply(steps_[i], seen, scratch);
  }
  return text;
}

}  // namespace moesaic
