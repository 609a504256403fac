#include "serve/http/sse_parser.h"

#include <algorithm>

namespace moesaic {

bool SseParser::feed(std::string_view bytes, const std::function<void(std::string_view data)>& on_event) {
  while (!bytes.empty() && !overflowed_) {
    if (after_cr_ && bytes.front() == '\n') bytes.remove_prefix(1);
    after_cr_ = false;
    const size_t end = bytes.find_first_of("\r\n");
    line_ += bytes.substr(0, end);
    overflowed_ = line_.size() + data_.size() > max_event_bytes_;
    if (end == std::string_view::npos) break;
    after_cr_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    if (!overflowed_) end_line(on_event);
  }
  return !overflowed_;
}

void SseParser::end_line(const std::function<void(std::string_view data)>& on_event) {
  std::string_view line = line_;
  if (line.empty()) {
    if (has_data_) on_event(data_);
    data_.clear();
    has_data_ = false;
  } else if (line.starts_with("data:") || line == "data") {
    line.remove_prefix(std::min<size_t>(line.size(), 5));
    if (line.starts_with(' ')) line.remove_prefix(1);
    if (has_data_) data_ += '\n';
    data_ += line;
    has_data_ = true;
  }
  line_.clear();
}

}  // namespace moesaic
