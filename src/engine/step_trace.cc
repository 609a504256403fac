#include "engine/step_trace.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace moesaic {
namespace {

constexpr const char* kPhases[StepTrace::kNumPhases] = {"plan", "forward", "sample", "draft", "deliver"};
constexpr const char* kReasons[] = {"open", "stop", "length", "abort", "error"};
constexpr int kSteps = 1;  // the two tracks, as processes
constexpr int kRequests = 2;

}  // namespace

// Builds the JSON. Times are microseconds from start().
struct StepTrace::Writer {
  // What is known of a request at the end.
  struct Request {
    Event last;  // all zero: only its chunks are known
    int64_t end_ns = 0;
    std::vector<const Event*> chunks;
    std::vector<const Event*> preemptions;
  };

  void write(const Event& step) {
    span("step", step.times_ns[0], step.times_ns[kNumPhases],
         str_cat(",\"args\":{\"step\":", step.id, ",\"prompt_tokens\":", step.numbers[0],
                 ",\"decode_tokens\":", step.numbers[1], "}"));
    for (int phase = 0; phase < kNumPhases; ++phase)
      span(kPhases[phase], step.times_ns[phase], step.times_ns[phase + 1], "");
  }

  void write(RequestId id, const Request& request) {
    const auto [queued_ns, admitted_ns, prompt_done_ns] =
        std::tuple(request.last.times_ns[0], request.last.times_ns[1], request.last.times_ns[2]);
    const int64_t end_ns = request.end_ns;
    async('b', id, str_cat("request ", id), std::max(queued_ns, begin_ns),
          str_cat(",\"args\":{\"end\":\"", kReasons[static_cast<size_t>(request.last.reason)],
                  "\",\"tokens\":", request.last.numbers[0], "}"));
    if (queued_ns != 0) part(id, "queued", queued_ns, admitted_ns != 0 ? admitted_ns : end_ns, "");
    for (const Event* chunk : request.chunks) {
      part(id, chunk->kind == Kind::kReplay ? "replay" : "prefill", chunk->times_ns[1], chunk->times_ns[2],
           str_cat(",\"args\":{\"first\":", chunk->numbers[0], ",\"tokens\":", chunk->numbers[1], "}"));
    }
    for (const Event* event : request.preemptions) async('n', id, "preempted", event->times_ns[0], "");
    if (prompt_done_ns != 0) part(id, "decode", prompt_done_ns, end_ns, "");
    if (request.last.kind == Kind::kEnded) async('n', id, "end", end_ns, "");
    async('e', id, str_cat("request ", id), end_ns, "");
  }

  // What lies before start() is cut off.
  void part(RequestId id, std::string_view name, int64_t from_ns, int64_t to_ns, std::string_view more) {
    if (to_ns < begin_ns) return;
    async('b', id, name, std::max(from_ns, begin_ns), more);
    async('e', id, name, to_ns, "");
  }

  void span(std::string_view name, int64_t from_ns, int64_t to_ns, std::string_view more) {
    open("X", name, kSteps, from_ns);
    out += str_cat(",\"tid\":1,\"dur\":", static_cast<double>(to_ns - from_ns) * 1e-3, more, "}");
  }
  void async(char phase, RequestId id, std::string_view name, int64_t at_ns, std::string_view more) {
    open(std::string_view(&phase, 1), name, kRequests, at_ns);
    out += str_cat(",\"tid\":1,\"cat\":\"request\",\"id\":", id, more, "}");
  }
  void open(std::string_view phase, std::string_view name, int track, int64_t at_ns) {
    out += str_cat(",\n{\"ph\":\"", phase, "\",\"name\":\"", name, "\",\"pid\":", track,
                   ",\"ts\":", static_cast<double>(std::max(at_ns, begin_ns) - begin_ns) * 1e-3);
  }

  int64_t begin_ns = 0;
  std::string out;
};

absl::Status StepTrace::start() {
  const std::lock_guard lock(mutex_);
  if (is_on()) return absl::FailedPreconditionError("a profile is being recorded already");
  events_.reserve(max_events_);
  num_dropped_ = 0;
  begin_ns_ = clock_.now_ns();
  on_.store(true);
  return absl::OkStatus();
}

absl::StatusOr<std::string> StepTrace::stop() {
  std::vector<Event> events;
  Writer writer;
  int64_t num_dropped = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!is_on()) return absl::FailedPreconditionError("no profile is being recorded");
    on_.store(false);
    events = std::exchange(events_, {});
    writer.begin_ns = begin_ns_;
    num_dropped = num_dropped_;
  }
  const int64_t end_ns = clock_.now_ns();
  writer.out = str_cat("{\"displayTimeUnit\":\"ms\",\"otherData\":{\"dropped_events\":", num_dropped,
                       "},\"traceEvents\":[\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":", kSteps,
                       ",\"args\":{\"name\":\"steps\"}},\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":", kRequests,
                       ",\"args\":{\"name\":\"requests\"}}");
  std::map<RequestId, Writer::Request> requests;
  for (const Event& event : events) {
    if (event.kind == Kind::kStep) {
      writer.write(event);
      continue;
    }
    Writer::Request& request = requests.try_emplace(event.id, Writer::Request{.end_ns = end_ns}).first->second;
    if (event.kind == Kind::kPrefill || event.kind == Kind::kReplay) {
      request.chunks.push_back(&event);
    } else if (event.kind == Kind::kPreempted) {
      request.preemptions.push_back(&event);
    } else {
      request.last = event;
      if (event.kind == Kind::kEnded) request.end_ns = event.times_ns[3];
    }
  }
  for (const auto& [id, request] : requests) writer.write(id, request);
  return writer.out + "\n]}\n";
}

void StepTrace::add(const Event& event) {
  if (!is_on()) return;  // stopped meanwhile
  if (events_.size() == max_events_) {
    ++num_dropped_;
  } else {
    events_.push_back(event);
  }
}

void StepTrace::record_step(const StepPlan& plan) {
  const std::lock_guard lock(mutex_);
  Event step{.kind = Kind::kStep, .id = static_cast<uint64_t>(plan.step_id)};
  std::copy(std::begin(phase_ends_ns_), std::end(phase_ends_ns_), step.times_ns);
  if (step.times_ns[0] < begin_ns_) return;  // of a step that began before another start()
  for (const GroupPlan& group : plan.groups) {
    step.numbers[0] += group.num_prefill_tokens;
    step.numbers[1] += group.num_decode_tokens;
    for (const RequestId id : group.preempted) {
      Event event{.kind = Kind::kPreempted, .id = id};
      event.times_ns[0] = step.times_ns[0];
      add(event);
    }
    for (const PlannedChunk& chunk : group.chunks) {
      if (!chunk.is_prefill && chunk.num_tokens() == 1) continue;
      Event event = step;
      event.kind = chunk.is_prefill ? Kind::kPrefill : Kind::kReplay;
      event.id = chunk.request_id;
      event.numbers[0] = chunk.kv_begin;
      event.numbers[1] = chunk.num_tokens();
      add(event);
    }
  }
  add(step);
}

void StepTrace::record_request(Kind kind, RequestId id, const RequestTimes& times, int64_t num_tokens,
                               FinishReason reason) {
  const std::lock_guard lock(mutex_);
  add({.kind = kind,
       .reason = reason,
       .id = id,
       .times_ns = {times.queued_ns, times.admitted_ns, times.prompt_done_ns, times.output_ns},
       .numbers = {num_tokens}});
}

}  // namespace moesaic
