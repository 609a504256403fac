#include "engine/open_request.h"

#include <algorithm>
#include <utility>

namespace moesaic {
namespace {

void set_bit(int32_t id, std::span<uint64_t> mask) {
  mask[id >> 6] |= uint64_t{1} << (id & 63);
}

bool contains(std::span<const int32_t> ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

OpenRequest::OpenRequest(const Request& request, OutputSink sink, const Tokenizer* tokenizer,
                         std::span<const int32_t> eos_token_ids, int64_t queued_ns, GrammarMatchers* matchers)
    : sink_(std::move(sink)),
      matcher_(request.stop),
      matchers_(matchers),
      eos_token_ids_(eos_token_ids),
      include_stop_(request.include_stop_in_output) {
  if (tokenizer != nullptr) detokenizer_.emplace(*tokenizer, request.skip_special_tokens);
  output_.id = request.id;
  output_.num_prompt_tokens = static_cast<int32_t>(request.prompt_ids.size());
  output_.times = {.arrival_ns = request.arrival_ns > 0 ? request.arrival_ns : queued_ns, .queued_ns = queued_ns};
}

std::span<const uint64_t> OpenRequest::allowed_tokens(const Request& request) {
  if (!request.grammar) return {};
  if (!grammar_) {
    grammar_ = matchers_->start(request.grammar);
    mask_.resize(matchers_->num_mask_words());
  }
  grammar_->fill_mask(mask_);
  if (!grammar_->is_complete()) return mask_;
  for (const int32_t id : request.stop_token_ids) set_bit(id, mask_);
  if (request.ignore_eos) return mask_;
  for (const int32_t id : eos_token_ids_) set_bit(id, mask_);
  return mask_;
}

absl::Status OpenRequest::no_token_error() const {
  const bool none_allowed =
      grammar_ && std::all_of(mask_.begin(), mask_.end(), [](uint64_t word) { return word == 0; });
  if (!none_allowed) return absl::InternalError("the model's logits are not numbers (all NaN)");
  return absl::InvalidArgumentError(
      "no token may follow in the constrained output: its grammar is too ambiguous to be followed, or asks for a byte "
      "that the vocabulary does not have");
}

FinishReason OpenRequest::add_token(const Request& request, int32_t id) {
  output_.token_ids.push_back(id);
  ++output_.num_output_tokens;
  const bool is_eos = contains(eos_token_ids_, id);
  const bool is_stop = contains(request.stop_token_ids, id);
  if (is_stop || (is_eos && !request.ignore_eos)) {
    if (!is_eos && include_stop_ && detokenizer_) add_text(request, detokenizer_->add(id));
    output_.stop_token_id = id;
    finish(FinishReason::kStop);
    return FinishReason::kStop;
  }
  if (grammar_ && !grammar_->accept(id)) {
    finish(FinishReason::kError, absl::InternalError(str_cat("the constrained output does not allow token ", id)));
    return FinishReason::kError;
  }
  // EOS has no text even where it is ignored; a broken character before it ends there.
  if (detokenizer_) add_text(request, is_eos ? detokenizer_->flush() : detokenizer_->add(id));
  const bool whole = grammar_ && grammar_->is_complete() && !grammar_->can_continue();
  if (matcher_.matched() || whole) {
    finish(FinishReason::kStop);
  } else if (output_.num_output_tokens >= request.max_tokens) {
    finish(FinishReason::kLength);
  }
  return output_.finish_reason;
}

void OpenRequest::add_text(const Request& request, std::string_view text) {
  // Stop strings count from min_tokens on; text before can no longer be part of one.
  if (output_.num_output_tokens < request.sampling.min_tokens) {
    output_.text += text;
    return;
  }
  matcher_.push(text, &output_.text);
}

void OpenRequest::finish(FinishReason reason, absl::Status error) {
  if (detokenizer_) matcher_.push(detokenizer_->flush(), &output_.text);
  matcher_.flush(&output_.text);
  output_.finish_reason = reason;
  output_.error = std::move(error);
  if (!matcher_.matched() || reason == FinishReason::kAbort || reason == FinishReason::kError) return;
  output_.finish_reason = FinishReason::kStop;
  output_.stop_token_id = -1;
  output_.stop_string = matcher_.match();
  if (include_stop_) output_.text += matcher_.match();
}

void OpenRequest::stamp(int64_t now_ns) {
  if (prompt_done_ && output_.times.prompt_done_ns == 0) output_.times.prompt_done_ns = now_ns;
  output_.times.output_ns = now_ns;
}

void OpenRequest::deliver() {
  sink_(std::move(output_));
  // Identity, counts, times and the reason stay.
  output_.text.clear();
  output_.token_ids.clear();
  output_.logprobs.clear();
  output_.prompt_logprobs.clear();
  output_.error = absl::OkStatus();
  output_.stop_token_id = -1;
  output_.stop_string.clear();
}

}  // namespace moesaic
