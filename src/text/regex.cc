#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include <pcre2.h>

#include <algorithm>

#include "base/clock.h"

namespace moesaic {

namespace {

// Steps of one match attempt at one position. The patterns in use need a few steps per character of the subject.
constexpr uint64_t kStepsPerByte = 1000;
constexpr uint64_t kMinSteps = 100'000;
constexpr uint64_t kMaxSteps = 10'000'000;
// A search is cut into windows of start positions, and the clock is read between windows and every so many matches.
constexpr size_t kWindowBytes = 256;
constexpr int kMatchesPerClock = 4096;
constexpr int64_t kMaxSearchNs = 3'000'000'000;

template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* p) const {
    Free(p);
  }
};
template <typename T, auto Free>
using Handle = std::unique_ptr<T, Deleter<Free>>;

// Per thread: PCRE2's match state is not shareable.
struct MatchState {
  Handle<pcre2_match_data, pcre2_match_data_free> data{pcre2_match_data_create(1, nullptr)};
  Handle<pcre2_match_context, pcre2_match_context_free> context{pcre2_match_context_create(nullptr)};
  Handle<pcre2_jit_stack, pcre2_jit_stack_free> jit_stack{pcre2_jit_stack_create(32 << 10, 1 << 20, nullptr)};

  MatchState() {
    if (!context) return;
    pcre2_set_heap_limit(context.get(), 64 << 10);  // KiB
    if (jit_stack) pcre2_jit_stack_assign(context.get(), nullptr, jit_stack.get());
  }
  bool ok() const { return data && context; }
};

// `at`, or the next start of a character behind it.
size_t next_character(std::string_view text, size_t at) {
  while (at < text.size() && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) ++at;
  return std::min(at, text.size());
}

// What Ruby syntax and PCRE2 read differently, or "".
std::string_view foreign_construct(std::string_view pattern) {
  bool in_class = false;
  size_t class_start = 0;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const std::string_view rest = pattern.substr(i);
    if (rest[0] == '\\') {
      if (rest.size() > 1 && (rest[1] == 'h' || rest[1] == 'H'))
        return "\\h (a hexadecimal digit in one, space in the other)";
      if (rest.size() > 1 && rest[1] == 'Q') return "\\Q";
      // \p{L}, \x{3000}: the braces are no repetition.
      const bool braced =
          rest.size() > 2 && rest[2] == '{' && std::string_view("pPxkg").find(rest[1]) != std::string_view::npos;
      const size_t close = braced ? pattern.find('}', i) : std::string_view::npos;
      i = close != std::string_view::npos ? close : i + 1;
    } else if (!in_class) {
      in_class = rest[0] == '[';
      class_start = i + 1;
      if (in_class && rest.substr(0, 2) == "[^") class_start = i + 2;
      if (rest.starts_with("}+")) return "{n,m}+ (a repeated repetition in one, possessive in the other)";
      if (rest.starts_with("(*")) return "(*VERB)";
    } else if (rest[0] == ']' && i > class_start) {
      in_class = false;
    } else if (rest.starts_with("[:")) {
      const size_t end = rest.find(":]");
      if (end == std::string_view::npos) return "[: in a class";
      i += end + 1;
    } else if (rest[0] == '[') {
      return "a class inside a class";
    } else if (rest.starts_with("&&")) {
      return "&& in a class";
    }
  }
  return "";
}

}  // namespace

struct Regex::Impl {
  Handle<pcre2_code, pcre2_code_free> code;
  bool jit = false;
};

Regex::Regex(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

absl::StatusOr<Regex> Regex::compile(std::string_view pattern, bool literal) {
  if (pattern.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(
        str_cat("expected a pattern of at most ", kMaxPatternBytes, " bytes, found ", pattern.size()));
  }
  if (!literal) {
    const std::string_view foreign = foreign_construct(pattern);
    if (!foreign.empty()) {
      return absl::UnimplementedError(
          str_cat("the pattern uses ", foreign, ", which is not supported: ", pattern.substr(0, 200)));
    }
  }
  Handle<pcre2_compile_context, pcre2_compile_context_free> context(pcre2_compile_context_create(nullptr));
  if (!context) return absl::ResourceExhaustedError("no memory for a regular expression");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), 100);
  // Ruby's ^ and $ are line anchors; its dot does not match \n.
  uint32_t options = PCRE2_UTF | PCRE2_USE_OFFSET_LIMIT;
  options |= literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto impl = std::make_unique<Impl>();
  impl->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error, &offset,
                                 context.get()));
  if (!impl->code) {
    unsigned char message[256] = {};
    pcre2_get_error_message(error, message, sizeof message);
    return absl::InvalidArgumentError(str_cat("bad regular expression at byte ", offset, ": ",
                                              reinterpret_cast<const char*>(message), ": ", pattern.substr(0, 200)));
  }
  impl->jit = pcre2_jit_compile(impl->code.get(), PCRE2_JIT_COMPLETE) == 0;
  return Regex(std::move(impl));
}

bool Regex::find_all(std::string_view subject, std::vector<Match>& matches) const {
  static thread_local MatchState state;
  if (!state.ok()) return false;
  pcre2_match_context* const context = state.context.get();
  const uint64_t steps = std::min(kMaxSteps, kMinSteps + kStepsPerByte * subject.size());
  pcre2_set_match_limit(context, static_cast<uint32_t>(steps));
  const PCRE2_SPTR text = reinterpret_cast<PCRE2_SPTR>(subject.data());
  const pcre2_code* const code = impl_->code.get();
  const PCRE2_SIZE* const found = pcre2_get_ovector_pointer(state.data.get());
  int64_t deadline_ns = 0;
  int until_clock = 1;
  size_t at = 0;
  while (at < subject.size()) {
    const size_t window_end = next_character(subject, std::min(at + kWindowBytes, subject.size()));
    pcre2_set_offset_limit(context, window_end);
    int rc = pcre2_match(code, text, subject.size(), at, PCRE2_NO_UTF_CHECK, state.data.get(), context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      rc = pcre2_match(code, text, subject.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, state.data.get(), context);
    }
    if (rc == PCRE2_ERROR_NOMATCH) {
      at = window_end;
      until_clock = std::min(until_clock, 1);
    } else if (rc < 0 || found[0] < at || found[1] < found[0]) {
      return false;
    } else {
      matches.push_back({static_cast<uint32_t>(found[0]), static_cast<uint32_t>(found[1])});
      at = found[0] < found[1] ? found[1] : next_character(subject, found[1] + 1);
    }
    if (--until_clock > 0) continue;
    until_clock = kMatchesPerClock;
    const int64_t now_ns = real_clock().now_ns();
    if (deadline_ns == 0) deadline_ns = now_ns + kMaxSearchNs;
    if (now_ns > deadline_ns) return false;
  }
  return true;
}

}  // namespace moesaic
