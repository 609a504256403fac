#include "serve/http/completion_job.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/rng.h"
#include "serve/http/json.h"
#include "serve/http/openai_error.h"

namespace moesaic {
namespace {

constexpr size_t kChoiceBufferBytes = 16 << 10;

std::string random_hex() {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (uint64_t bits : {entropy_seed(), entropy_seed()}) {
    for (int i = 0; i < 16; ++i, bits >>= 4) out += kHex[bits & 15];
  }
  return out;
}

ResponseHead response_head(const PreparedRequest& prepared, const std::string& model, int64_t created) {
  const bool chat = prepared.request.chat.has_value();
  std::string object = "text_completion";
  if (chat) object = prepared.request.stream ? "chat.completion.chunk" : "chat.completion";
  return {str_cat(chat ? "chatcmpl-" : "cmpl-", random_hex()), std::move(object), created, model};
}

}  // namespace

CompletionJob::CompletionJob(Options options)
    : prepared_(std::move(options.prepared)),
      model_(std::move(options.model)),
      metrics_(std::move(options.metrics)),
      next_request_id_(options.next_request_id),
      max_buffer_bytes_(options.max_buffer_bytes),
      arrival_ns_(options.arrival_ns),
      clock_(*options.clock),
      stream_(prepared_.request.stream),
      start_(response_start(response_head(prepared_, model_.name, clock_.unix_s()))),
      prompt_cached_tokens_(prepared_.prompts.size(), 0) {
  for (size_t prompt = 0; prompt < prepared_.prompts.size(); ++prompt) {
    for (int64_t choice = 0; choice < prepared_.request.n; ++choice) {
      const auto index = static_cast<int64_t>(choices_.size());
      choices_.push_back({.prompt = prompt,
                          .writer = prepared_.request.chat
                                        ? make_chat_choice(index, prepared_, model_)
                                        : make_text_choice(index, prepared_, prepared_.prompts[prompt], model_)});
    }
  }
  num_open_ = choices_.size();
}

CompletionJob::~CompletionJob() {
  cancel();
}

absl::Status CompletionJob::submit(std::function<void()> wake) {
  // A step gives every choice an output at once: room for some steps, however many choices there are.
  const size_t max_bytes =
      stream_ ? max_buffer_bytes_ + choices_.size() * kChoiceBufferBytes : std::numeric_limits<size_t>::max();
  inbox_ = std::make_shared<OutputInbox>(max_bytes, std::move(wake));
  for (size_t i = 0; i < choices_.size(); ++i) {
    Request request = engine_request(prepared_, choices_[i].prompt, static_cast<int64_t>(i) % prepared_.request.n);
    request.id = next_request_id_->fetch_add(1);
    request.arrival_ns = arrival_ns_;
    const RequestId id = request.id;
    auto sink = [i, inbox = inbox_, metrics = metrics_,
                 timer = RequestTimer(metrics_.get(), request.max_tokens)](RequestOutput output) mutable {
      timer.observe(output);
      inbox->push(i, std::move(output));
    };
    if (absl::Status status = model_.engine->submit(std::move(request), std::move(sink)); !status.ok()) {
      cancel();
      return status;
    }
    choices_[i].id = id;
  }
  return absl::OkStatus();
}

void CompletionJob::cancel() {
  if (inbox_) inbox_->close();
  for (Choice& choice : choices_) {
    if (choice.id != 0 && !std::exchange(choice.done, true)) model_.engine->abort(choice.id);
  }
}

void CompletionJob::poll(std::string* body) {
  if (finished_) return;
  for (OutputInbox::Item& item : inbox_->take()) {
    handle(item.choice, std::move(item.output), body);
    if (finished_) return;
  }
}

void CompletionJob::handle(size_t index, RequestOutput output, std::string* body) {
  if (output.finish_reason == FinishReason::kError) {
    absl::Status error = output.error.ok() ? absl::InternalError("generation failed") : output.error;
    return fail(error, body);
  }
  Choice& choice = choices_[index];
  choice.output_tokens = output.num_output_tokens;
  if (index % prepared_.request.n == 0) prompt_cached_tokens_[choice.prompt] = output.num_cached_tokens;
  if (output.finish_reason != FinishReason::kNone) {
    choice.done = true;
    --num_open_;
  }
  EmitChoice emit;
  if (stream_) {
    status_ = 200;
    emit = [&](std::string_view json) { append_event(json, body); };
  }
  choice.writer->add(std::move(output), emit);
  if (num_open_ > 0) return;
  finished_ = true;
  if (stream_) return end_stream(body);
  status_ = 200;
  *body += start_;
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (i > 0) *body += ',';
    choices_[i].writer->append_choice(*body);
  }
  *body += "],\"usage\":";
  append_usage(*body, usage());
  *body += '}';
}

void CompletionJob::append_event(std::string_view choices, std::string* body) const {
  *body += "data: ";
  *body += start_;
  *body += choices;
  *body += ']';
  if (prepared_.request.continuous_usage) {
    *body += ",\"usage\":";
    append_usage(*body, usage());
  } else if (prepared_.request.include_usage) {
    *body += ",\"usage\":null";
  }
  *body += "}\n\n";
}

void CompletionJob::end_stream(std::string* body) {
  if (prepared_.request.include_usage) {
    *body += str_cat("data: ", start_, "],\"usage\":");
    append_usage(*body, usage());
    *body += "}\n\n";
  }
  *body += "data: [DONE]\n\n";
}

void CompletionJob::fail(const absl::Status& status, std::string* body) {
  if (std::exchange(finished_, true)) return;
  cancel();
  if (status_ == 0) {
    status_ = http_status(status);
    *body = error_json(status);
    return;
  }
  *body += str_cat("data: ", error_json(status), "\n\ndata: [DONE]\n\n");
}

Usage CompletionJob::usage() const {
  Usage out;
  for (const PreparedPrompt& prompt : prepared_.prompts) out.prompt_tokens += static_cast<int64_t>(prompt.ids.size());
  for (const int64_t cached : prompt_cached_tokens_) out.cached_tokens += cached;
  for (const Choice& choice : choices_) out.completion_tokens += choice.output_tokens;
  return out;
}

}  // namespace moesaic
