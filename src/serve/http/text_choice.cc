#include <utility>
#include <vector>

#include "serve/http/choice_writer.h"
#include "serve/http/json.h"
#include "serve/http/openai_response.h"
#include "text/detokenizer.h"

namespace moesaic {
namespace {

class TextChoice final : public ChoiceWriter {
 public:
  TextChoice(int64_t index, const PreparedRequest& prepared, const PreparedPrompt& prompt, const ServedModel& model)
      : index_(index),
        has_logprobs_(prepared.request.num_logprobs >= 0),
        echo_(prepared.request.echo),
        include_stop_(prepared.request.include_stop_in_output),
        prompt_(prompt),
        tokenizer_(*model.tokenizer),
        pieces_(tokenizer_, prepared.request.skip_special_tokens) {}

  void add(RequestOutput output, const EmitChoice& emit) override {
    if (std::exchange(echo_, false)) add_echo(output.prompt_logprobs);
    text_ += output.text;
    const bool finished = output.finish_reason != FinishReason::kNone;
    if (has_logprobs_) add_tokens(output, finished);
    if (emit && (!text_.empty() || !tokens_.empty())) emit(chunk());
    if (!finished) return;
    last_ = std::move(output);
    if (emit) {
      emit(str_cat("{\"index\":", index_, ",\"text\":\"\",\"logprobs\":null,\"finish_reason\":", finish_reason(), "}"));
    }
  }

  void append_choice(std::string& out) const override {
    append_start(out);
    out += str_cat(",\"finish_reason\":", finish_reason(), "}");
  }

 private:
  std::string finish_reason() const {
    std::string out = json_string(finish_reason_name(last_.finish_reason, false));
    append_stop_reason(out, last_);
    return out;
  }

  void append_start(std::string& out) const {
    out += str_cat("{\"index\":", index_, ",\"text\":", json_string(text_), ",\"logprobs\":");
    if (has_logprobs_) {
      append_completion_logprobs(out, tokens_, tokenizer_);
    } else {
      out += "null";
    }
  }

  std::string chunk() {
    std::string out;
    append_start(out);
    out += ",\"finish_reason\":null}";
    text_.clear();
    tokens_.clear();
    return out;
  }

  void add_piece(std::string piece, TokenLogprob logprob, bool has_logprob) {
    const size_t length = count_code_points(piece);
    tokens_.push_back({std::move(piece), text_offset_, has_logprob, std::move(logprob)});
    text_offset_ += length;
  }

  // The prompt as its tokens spell it, so that the joined tokens are the text. A BOS that we added is no part of it.
  void add_echo(std::vector<TokenLogprob>& logprobs) {
    Detokenizer pieces(tokenizer_, /*skip_special_tokens=*/false);
    for (size_t i = 0; i < prompt_.ids.size(); ++i) {
      std::string piece = i == 0 && prompt_.bos_added ? std::string() : pieces.add(prompt_.ids[i]);
      if (i + 1 == prompt_.ids.size()) piece += pieces.flush();
      text_ += piece;
      if (!has_logprobs_) continue;
      const bool known = i > 0 && i - 1 < logprobs.size();  // nothing comes before the first token
      TokenLogprob logprob = known ? std::move(logprobs[i - 1]) : TokenLogprob{.id = prompt_.ids[i]};
      add_piece(std::move(piece), std::move(logprob), known);
    }
  }

  void add_tokens(RequestOutput& output, bool finished) {
    for (size_t i = 0; i < output.logprobs.size(); ++i) {
      const int32_t id = output.logprobs[i].id;
      const bool last = finished && i + 1 == output.logprobs.size();
      // The token that ended the text has none itself, unless asked for.
      const bool silent = last && id == output.stop_token_id && !include_stop_;
      std::string piece = silent ? std::string() : pieces_.add(id);
      if (last) piece += pieces_.flush();
      add_piece(std::move(piece), std::move(output.logprobs[i]), true);
    }
  }

  const int64_t index_;
  const bool has_logprobs_;
  bool echo_;
  const bool include_stop_;
  const PreparedPrompt& prompt_;
  const Tokenizer& tokenizer_;
  Detokenizer pieces_;
  std::string text_;  // not yet sent, as tokens_
  std::vector<CompletionLogprob> tokens_;
  size_t text_offset_ = 0;
  RequestOutput last_;
};

}  // namespace

std::unique_ptr<ChoiceWriter> make_text_choice(int64_t index, const PreparedRequest& prepared,
                                               const PreparedPrompt& prompt, const ServedModel& model) {
  return std::make_unique<TextChoice>(index, prepared, prompt, model);
}

}  // namespace moesaic
