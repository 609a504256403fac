#include <utility>
#include <vector>

#include "serve/http/choice_writer.h"
#include "serve/http/json.h"
#include "serve/http/openai_response.h"
#include "text/output_parser.h"

namespace moesaic {
namespace {

OutputParserOptions parser_options(const PreparedRequest& prepared, const ServedModel& model) {
  OutputParserOptions options;
  options.parse_reasoning = model.parse_reasoning && prepared.request.chat->separate_reasoning;
  options.starts_in_reasoning = options.parse_reasoning && prepared.starts_in_reasoning;
  options.tool_format = prepared.tool_format;
  return options;
}

class ChatChoice final : public ChoiceWriter {
 public:
  ChatChoice(int64_t index, const PreparedRequest& prepared, const ServedModel& model)
      : index_(index),
        has_logprobs_(prepared.request.num_logprobs >= 0),
        one_call_(!prepared.request.chat->parallel_tool_calls),
        tokenizer_(*model.tokenizer),
        parser_(parser_options(prepared, model)),
        forced_prefix_(prepared.forced_prefix) {}

  void add(RequestOutput output, const EmitChoice& emit) override {
    if (emit && !std::exchange(started_, true)) {
      emit(chunk("{\"role\":\"assistant\",\"content\":\"\"}"));
    }
    logprobs_.insert(logprobs_.end(), std::make_move_iterator(output.logprobs.begin()),
                     std::make_move_iterator(output.logprobs.end()));
    if (!forced_prefix_.empty()) take(parser_.feed(std::exchange(forced_prefix_, {})), emit);
    take(parser_.feed(output.text), emit);
    if (output.finish_reason == FinishReason::kNone) return;
    take(parser_.finish(), emit);
    last_ = std::move(output);
    if (emit) emit(str_cat(chunk_start("{}"), ",\"finish_reason\":", finish_reason(), "}"));
  }

  void append_choice(std::string& out) const override {
    out += str_cat("{\"index\":", index_, ",\"message\":{\"role\":\"assistant\",\"content\":");
    out += content_.empty() && !calls_.empty() ? "null" : json_string(content_);
    out += str_cat(",\"reasoning_content\":", reasoning_.empty() ? "null" : json_string(reasoning_));
    if (!calls_.empty()) {
      out += ",\"tool_calls\":";
      append_tool_call_deltas(out, calls_);
    }
    out += "},\"logprobs\":";
    append_logprobs(out);
    out += str_cat(",\"finish_reason\":", finish_reason(), "}");
  }

 private:
  // Quoted, with what ended the text behind it.
  std::string finish_reason() const {
    std::string out = json_string(finish_reason_name(last_.finish_reason, parser_.num_tool_calls() > 0));
    append_stop_reason(out, last_);
    return out;
  }

  void append_logprobs(std::string& out) const {
    if (has_logprobs_) {
      append_chat_logprobs(out, logprobs_, tokenizer_);
    } else {
      out += "null";
    }
  }

  // Without finish_reason. Carries the logprobs that have come since the last chunk.
  std::string chunk_start(std::string_view delta) {
    std::string out = str_cat("{\"index\":", index_, ",\"delta\":", delta, ",\"logprobs\":");
    if (logprobs_.empty()) {
      out += "null";
    } else {
      append_logprobs(out);
      logprobs_.clear();
    }
    return out;
  }

  std::string chunk(std::string_view delta) { return str_cat(chunk_start(delta), ",\"finish_reason\":null}"); }

  void take(std::vector<OutputDelta> deltas, const EmitChoice& emit) {
    for (OutputDelta& delta : deltas) {
      if (one_call_) std::erase_if(delta.tool_calls, [](const ToolCallDelta& call) { return call.index > 0; });
      if (emit) {
        emit_delta(delta, emit);
      } else {
        collect(std::move(delta));
      }
    }
  }

  void emit_delta(const OutputDelta& delta, const EmitChoice& emit) {
    if (!delta.reasoning.empty()) {
      emit(chunk(str_cat("{\"reasoning_content\":", json_string(delta.reasoning), "}")));
    }
    if (!delta.content.empty()) emit(chunk(str_cat("{\"content\":", json_string(delta.content), "}")));
    if (delta.tool_calls.empty()) return;
    std::string calls = "{\"tool_calls\":";
    append_tool_call_deltas(calls, delta.tool_calls);
    emit(chunk(calls + "}"));
  }

  void collect(OutputDelta delta) {
    reasoning_ += delta.reasoning;
    content_ += delta.content;
    for (ToolCallDelta& call : delta.tool_calls) {
      if (!calls_.empty() && calls_.back().index == call.index) {
        calls_.back().arguments += call.arguments;
      } else {
        calls_.push_back(std::move(call));
      }
    }
  }

  const int64_t index_;
  const bool has_logprobs_;
  const bool one_call_;
  const Tokenizer& tokenizer_;
  OutputParser parser_;
  std::string forced_prefix_;
  bool started_ = false;
  std::vector<TokenLogprob> logprobs_;  // not yet sent
  std::string reasoning_;
  std::string content_;
  std::vector<ToolCallDelta> calls_;
  RequestOutput last_;
};

}  // namespace

std::unique_ptr<ChoiceWriter> make_chat_choice(int64_t index, const PreparedRequest& prepared,
                                               const ServedModel& model) {
  return std::make_unique<ChatChoice>(index, prepared, model);
}

}  // namespace moesaic
