// SseParser: takes the bytes of a text/event-stream in pieces of any size and gives the data of each event. Line ends
// may be LF, CR or CRLF; comments (keep-alives) and fields other than data are dropped; several data lines of one event
// are joined with LF; an event that no blank line ends is none, as the standard has it. One thread.
//
//   parser.feed(bytes, [&](std::string_view data) { ... });
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace moesaic {

class SseParser {
 public:
  explicit SseParser(size_t max_event_bytes = 16 << 20) : max_event_bytes_(max_event_bytes) {}
  // `data` is valid during the call. False once an event is larger than max_event_bytes; then it takes no more.
  bool feed(std::string_view bytes, const std::function<void(std::string_view data)>& on_event);

 private:
  void end_line(const std::function<void(std::string_view data)>& on_event);

  const size_t max_event_bytes_;
  std::string line_;
  std::string data_;
  bool has_data_ = false;
  bool after_cr_ = false;  // an LF now belongs to that CR
  bool overflowed_ = false;
};

}  // namespace moesaic
