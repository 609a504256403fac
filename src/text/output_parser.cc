#include "text/output_parser.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "text/tool_tags.h"

namespace moesaic {

namespace {

constexpr std::string_view kThinkOpen = "<think>";
constexpr std::string_view kThinkClose = "</think>";
constexpr std::string_view kSpace = " \t\r\n";
// A function's name is at most 64 characters in the OpenAI API; what goes on for longer is no call.
constexpr size_t kMaxHeadBytes = 512;

struct Found {
  size_t at = std::string_view::npos;
  std::string_view tag;
};

Found find_first(std::string_view text, std::initializer_list<std::string_view> tags) {
  Found first;
  for (const std::string_view tag : tags) {
    const size_t at = text.find(tag);
    if (at < first.at) first = {at, tag};
  }
  return first;
}

// Bytes at the end of `text` that may still become one of the tags.
size_t held_suffix(std::string_view text, std::initializer_list<std::string_view> tags) {
  size_t held = 0;
  for (const std::string_view tag : tags) {
    for (size_t n = std::min(tag.size() - 1, text.size()); n > held; --n) {
      if (text.ends_with(tag.substr(0, n))) held = n;
    }
  }
  return held;
}

bool may_become(std::string_view text, std::string_view tag) {
  return text.size() < tag.size() && tag.starts_with(text);
}

std::string_view trim_right(std::string_view text) {
  const size_t last = text.find_last_not_of(kSpace);
  return last == std::string_view::npos ? std::string_view() : text.substr(0, last + 1);
}

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpace);
  return first == std::string_view::npos ? std::string_view() : trim_right(text.substr(first));
}

}  // namespace

struct OutputParser::Impl {
  enum class State : uint8_t {
    kStart,
    kReasoning,
    kContent,
    kBetweenCalls,
    kHead,
    kArgumentsStart,
    kArguments,
    kAfterCalls
  };

  explicit Impl(OutputParserOptions given) : options(std::move(given)) {
    state = options.parse_reasoning ? State::kStart : State::kContent;
  }

  OutputParserOptions options;
  State state;
  std::string text;       // not yet decided
  std::string arguments;  // of the open call, to judge it if the stream ends inside
  int next_index = 0;
  int num_complete = 0;
  std::vector<OutputDelta> out;

  bool tools() const { return options.tool_format != ToolFormat::kNone; }
  void drop(size_t bytes) { text.erase(0, bytes); }

  void put_reasoning(std::string_view piece) {
    if (piece.empty()) return;
    if (out.empty() || out.back().reasoning.empty()) out.emplace_back();
    out.back().reasoning += piece;
  }
  void put_content(std::string_view piece) {
    if (piece.empty()) return;
    if (out.empty() || out.back().content.empty()) out.emplace_back();
    out.back().content += piece;
  }
  void open_call(std::string_view name) {
    arguments.clear();
    OutputDelta delta;
    delta.tool_calls.push_back(
        {next_index, options.tool_call_id_prefix + std::to_string(next_index), std::string(name), ""});
    ++next_index;
    out.push_back(std::move(delta));
  }
  void put_arguments(std::string_view piece) {
    if (piece.empty()) return;
    arguments += piece;
    if (!out.empty() && !out.back().tool_calls.empty() && out.back().tool_calls.back().index == next_index - 1) {
      out.back().tool_calls.back().arguments += piece;
      return;
    }
    OutputDelta delta;
    delta.tool_calls.push_back({next_index - 1, "", "", std::string(piece)});
    out.push_back(std::move(delta));
  }

  bool step_start(bool final);
  bool step_reasoning();
  bool step_content();
  bool step_between(bool final);
  bool step_head();
  bool step_arguments_start(bool final);
  bool step_arguments();
  bool step_after_calls();
  void end_arguments(std::string_view rest);
  bool step(bool final);
  std::vector<OutputDelta> take() { return std::exchange(out, {}); }
};

// The model may write <think> itself, whether or not the prompt has opened the block.
bool OutputParser::Impl::step_start(bool final) {
  const State next = options.starts_in_reasoning ? State::kReasoning : State::kContent;
  const size_t first = std::min(text.find_first_not_of(kSpace), text.size());
  const std::string_view rest = std::string_view(text).substr(first);
  if (rest.starts_with(kThinkOpen)) {
    drop(first + kThinkOpen.size());
    state = State::kReasoning;
  } else if (!final && may_become(rest, kThinkOpen)) {
    return false;
  } else {
    state = next;
  }
  return true;
}

bool OutputParser::Impl::step_reasoning() {
  const Found found = find_first(text, {kThinkClose});
  if (found.at == std::string_view::npos) {
    const size_t ready = text.size() - held_suffix(text, {kThinkClose});
    put_reasoning(std::string_view(text).substr(0, ready));
    drop(ready);
    return false;
  }
  put_reasoning(std::string_view(text).substr(0, found.at));
  drop(found.at + found.tag.size());
  state = State::kContent;
  return true;
}

bool OutputParser::Impl::step_content() {
  Found found;
  size_t held = 0;
  if (tools()) {
    found = find_first(text, {kCallsBegin, kCallBegin});
    held = held_suffix(text, {kCallsBegin, kCallBegin});
  }
  if (found.at == std::string_view::npos) {
    put_content(std::string_view(text).substr(0, text.size() - held));
    drop(text.size() - held);
    return false;
  }
  put_content(std::string_view(text).substr(0, found.at));
  drop(found.at);
  if (found.tag == kCallsBegin) drop(kCallsBegin.size());
  state = State::kBetweenCalls;
  return true;
}

// Space between calls is dropped; any other text ends the list of calls and is content.
bool OutputParser::Impl::step_between(bool final) {
  drop(std::min(text.find_first_not_of(kSpace), text.size()));
  if (text.starts_with(kCallBegin)) {
    drop(kCallBegin.size());
    state = State::kHead;
  } else if (text.starts_with(kCallsEnd)) {
    drop(kCallsEnd.size());
    state = State::kAfterCalls;
  } else if (!final && (may_become(text, kCallBegin) || may_become(text, kCallsEnd))) {
    return false;
  } else {
    state = State::kContent;
  }
  return true;
}

bool OutputParser::Impl::step_after_calls() {
  drop(std::min(text.find_first_not_of(kSpace), text.size()));
  if (text.empty()) return false;
  state = State::kContent;
  return true;
}

// "function<sep>NAME\n" (V3) or "NAME<sep>" (V3.1). What cannot be a head is content, with its opening tag.
bool OutputParser::Impl::step_head() {
  // Only this window is read, so that the decision does not depend on how much has arrived.
  const std::string_view head = std::string_view(text).substr(0, kMaxHeadBytes);
  const Found found = find_first(head, {kCallSep, kCallBegin, kCallEnd, kCallsEnd});
  bool ready = found.at != std::string_view::npos;
  std::string_view name;
  size_t end = 0;
  if (found.tag == kCallSep) {
    name = trim(head.substr(0, found.at));
    end = found.at + kCallSep.size();
    if (options.tool_format == ToolFormat::kDeepseekV3) {
      end = std::min(head.find_first_not_of(kSpace, end), head.size());
      // The name's line ends at a newline; a fence or a tag ends it too.
      const std::string_view line = head.substr(end);
      const Found stop = find_first(line, {"\n", kFence, kCallEnd, kCallsEnd, kCallBegin});
      ready = stop.at != std::string_view::npos;
      name = trim(line.substr(0, stop.at));
      end += ready ? stop.at : 0;
    }
  }
  if (!ready && text.size() < kMaxHeadBytes) return false;
  if (!ready || name.empty()) {
    put_content(kCallBegin);
    state = State::kContent;
    return true;
  }
  open_call(name);
  drop(end);
  state = State::kArgumentsStart;
  return true;
}

bool OutputParser::Impl::step_arguments_start(bool final) {
  drop(std::min(text.find_first_not_of(kSpace), text.size()));
  if (options.tool_format == ToolFormat::kDeepseekV3) {
    if (text.starts_with(kJsonFence)) {
      drop(kJsonFence.size());
    } else if (!final && may_become(text, kJsonFence)) {
      return false;
    } else if (text.starts_with(kFence)) {
      drop(kFence.size());
    }
    state = State::kArguments;
    return true;
  }
  if (text.empty()) return false;
  state = State::kArguments;
  return true;
}

// The end of the arguments: without the closing fence and the space around it.
void OutputParser::Impl::end_arguments(std::string_view rest) {
  rest = trim_right(rest);
  if (options.tool_format == ToolFormat::kDeepseekV3 && rest.ends_with(kFence))
    rest = trim_right(rest.substr(0, rest.size() - kFence.size()));
  put_arguments(rest);
}

bool OutputParser::Impl::step_arguments() {
  if (arguments.empty()) drop(std::min(text.find_first_not_of(kSpace), text.size()));
  const Found found = find_first(text, {kCallEnd, kCallsEnd, kCallBegin});
  if (found.at == std::string_view::npos) {
    // The closing fence and space may be the end: hold the whole run of them.
    const size_t ready = text.size() - held_suffix(text, {kCallEnd, kCallsEnd, kCallBegin});
    const size_t last = std::string_view(text).substr(0, ready).find_last_not_of(" \t\r\n`");
    const size_t keep = last == std::string_view::npos ? 0 : last + 1;
    put_arguments(std::string_view(text).substr(0, keep));
    drop(keep);
    return false;
  }
  end_arguments(std::string_view(text).substr(0, found.at));
  ++num_complete;
  drop(found.at);
  if (found.tag == kCallEnd) drop(kCallEnd.size());
  state = State::kBetweenCalls;
  return true;
}

bool OutputParser::Impl::step(bool final) {
  switch (state) {
    case State::kStart:
      return step_start(final);
    case State::kReasoning:
      return step_reasoning();
    case State::kContent:
      return step_content();
    case State::kBetweenCalls:
      return step_between(final);
    case State::kHead:
      return step_head();
    case State::kArgumentsStart:
      return step_arguments_start(final);
    case State::kArguments:
      return step_arguments();
    case State::kAfterCalls:
      return step_after_calls();
  }
  return false;
}

OutputParser::OutputParser(OutputParserOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
OutputParser::~OutputParser() = default;

std::vector<OutputDelta> OutputParser::feed(std::string_view text) {
  impl_->text += text;
  while (!impl_->text.empty() && impl_->step(/*final=*/false)) {
  }
  return impl_->take();
}

std::vector<OutputDelta> OutputParser::finish() {
  Impl& impl = *impl_;
  while (!impl.text.empty() && impl.step(/*final=*/true)) {
  }
  switch (impl.state) {
    case Impl::State::kReasoning:
      impl.put_reasoning(impl.text);
      break;
    case Impl::State::kStart:
    case Impl::State::kContent:
      impl.put_content(impl.text);
      break;
    case Impl::State::kArgumentsStart:
    case Impl::State::kArguments:
      // Without its end tag a call counts if its arguments are whole. A piece of an end tag is no argument.
      impl.text.resize(impl.text.size() - held_suffix(impl.text, {kCallEnd, kCallsEnd, kCallBegin}));
      impl.end_arguments(impl.text);
      if (nlohmann::json::accept(impl.arguments)) ++impl.num_complete;
      break;
    default:
      break;  // a call whose name is not complete leaves nothing
  }
  impl.text.clear();
  impl.state = Impl::State::kContent;
  return impl.take();
}

int OutputParser::num_tool_calls() const {
  return impl_->num_complete;
}

ToolFormat OutputParser::detect_tool_format(std::string_view chat_template) {
  if (chat_template.find(kCallBegin) == std::string_view::npos) return ToolFormat::kNone;
  return chat_template.find(kJsonFence) != std::string_view::npos ? ToolFormat::kDeepseekV3 : ToolFormat::kDeepseekV31;
}

}  // namespace moesaic
