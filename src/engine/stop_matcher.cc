#include "engine/stop_matcher.h"

#include <algorithm>

#include "base/check.h"

namespace moesaic {

StopMatcher::StopMatcher(const std::vector<std::string>& stops) {
  for (const std::string& stop : stops) {
    MOESAIC_CHECK(!stop.empty());
    Pattern& pattern = patterns_.emplace_back();
    pattern.text = stop;
    pattern.fallback.assign(stop.size() + 1, 0);
    uint32_t border = 0;
    for (size_t i = 1; i < stop.size(); ++i) {
      while (border > 0 && stop[i] != stop[border]) border = pattern.fallback[border];
      if (stop[i] == stop[border]) ++border;
      pattern.fallback[i + 1] = border;
    }
  }
}

bool StopMatcher::advance(char byte) {
  for (size_t i = 0; i < patterns_.size(); ++i) {
    Pattern& pattern = patterns_[i];
    while (pattern.state > 0 && pattern.text[pattern.state] != byte) pattern.state = pattern.fallback[pattern.state];
    if (pattern.text[pattern.state] == byte) ++pattern.state;
    if (pattern.state < pattern.text.size()) continue;
    if (matched_ < 0 || pattern.text.size() > patterns_[matched_].text.size()) matched_ = static_cast<int>(i);
  }
  return matched_ >= 0;
}

bool StopMatcher::push(std::string_view text, std::string* out) {
  if (matched()) return true;
  if (patterns_.empty()) {
    out->append(text);
    return false;
  }
  for (size_t i = 0; i < text.size(); ++i) {
    if (!advance(text[i])) continue;
    held_.append(text.substr(0, i + 1));
    out->append(held_, 0, held_.size() - match().size());
    held_.clear();
    return true;
  }
  held_.append(text);
  size_t num_kept = 0;
  for (const Pattern& pattern : patterns_) num_kept = std::max<size_t>(num_kept, pattern.state);
  out->append(held_, 0, held_.size() - num_kept);
  held_.erase(0, held_.size() - num_kept);
  return false;
}

void StopMatcher::flush(std::string* out) {
  if (matched()) return;
  out->append(held_);
  held_.clear();
  for (Pattern& pattern : patterns_) pattern.state = 0;
}

}  // namespace moesaic
