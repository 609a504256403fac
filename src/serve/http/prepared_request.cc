#include "serve/http/prepared_request.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/rng.h"
#include "serve/http/openai_error.h"
#include "text/messages.h"

namespace moesaic {
namespace {

constexpr int64_t kDefaultCompletionTokens = 16;  // OpenAI's default for text completions
constexpr std::string_view kThinkClose = "</think>";
constexpr std::string_view kGoOnHere = "<moesaic goes on here>";  // stands behind a message that is to be continued

absl::Status too_long(std::string_view field, int64_t limit, int64_t prompt, int64_t max_tokens) {
  return invalid_param(
      field,
      str_cat("is too long: the context length is ", limit, " tokens (--context-length), the prompt has ", prompt,
              " tokens and max_tokens asks for ", max_tokens),
      "context_length_exceeded");
}

// A request above the context is refused, never clamped; without max_tokens a chat fills the context, a text
// completion takes 16 tokens or what is left.
absl::Status settle_length(const CompletionRequest& request, int64_t limit, PreparedPrompt* prompt) {
  const std::string_view field = request.chat ? "messages" : "prompt";
  const auto length = static_cast<int64_t>(prompt->ids.size());
  if (length == 0) return invalid_param(field, "has no tokens; at least one is needed");
  const int64_t rest = limit - length;
  if (!request.max_tokens.has_value()) {
    if (rest <= 0) return too_long(field, limit, length, 1);
    prompt->max_tokens = static_cast<int32_t>(request.chat ? rest : std::min(rest, kDefaultCompletionTokens));
    return absl::OkStatus();
  }
  if (*request.max_tokens > rest) return too_long(field, limit, length, *request.max_tokens);
  prompt->max_tokens = static_cast<int32_t>(*request.max_tokens);
  return absl::OkStatus();
}

// The model is made to call by starting the call for it, at the end of the prompt.
absl::StatusOr<std::string> forced_tool_prefix(const ChatInput& chat, ToolFormat format, bool in_reasoning) {
  if (chat.tool_choice != ToolChoice::kRequired && chat.tool_choice != ToolChoice::kNamed) return std::string();
  if (format == ToolFormat::kNone)
    return invalid_param("tool_choice", "can only be none: this model has no tool format");
  if (in_reasoning) return invalid_param("tool_choice", "can only be none or auto while the model thinks");
  if (!chat.add_generation_prompt) return invalid_param("tool_choice", "needs add_generation_prompt");
  return forced_call(format, chat.tool_name);
}

absl::StatusOr<std::shared_ptr<const Grammar>> grammar_of(const RequestedFormat& asked, bool in_reasoning,
                                                          const ToolCalls& calls) {
  auto grammar = output_grammar(asked.format, in_reasoning ? kThinkClose : "", calls);
  if (grammar.ok()) return grammar;
  return invalid_param(asked.param.empty() ? "tools" : asked.param,
                       str_cat("cannot be used: ", grammar.status().message()));
}

}  // namespace

RequestLimits limits_of(const ServedModel& model) {
  return {.served_name = model.name, .vocab_size = model.engine->options().vocab_size, .defaults = model.defaults};
}

absl::StatusOr<std::string> render_chat(const ChatInput& chat, const ServedModel& model) {
  if (model.chat_template == nullptr) {
    return absl::InvalidArgumentError("this model has no chat template (tokenizer_config.json); use /v1/completions");
  }
  Json variables = chat.template_variables;
  Json& messages = variables["messages"] = chat.messages;
  if (chat.continue_final_message) messages.back()["content"].get_ref<std::string&>() += kGoOnHere;
  variables["tools"] = chat.tools;
  variables["add_generation_prompt"] = chat.add_generation_prompt;
  auto rendered = render_messages(*model.chat_template, std::move(variables));
  if (!rendered.ok()) return invalid_param("messages", str_cat("cannot be rendered: ", rendered.status().message()));
  if (!chat.continue_final_message) return rendered;
  // The message itself may also stand in what the template puts behind it.
  const size_t at = rendered->rfind(kGoOnHere);
  if (at == std::string::npos) {
    return invalid_param("continue_final_message", "is impossible: the template leaves the last message out");
  }
  return rendered->substr(0, at);
}

PreparedPrompt encode_text(std::string_view text, bool add_special_tokens, const Tokenizer& tokenizer) {
  PreparedPrompt out;
  out.ids = tokenizer.encode(text);
  const int32_t bos = tokenizer.bos_id();
  if (!add_special_tokens || !tokenizer.add_bos_token() || bos < 0) return out;
  if (!out.ids.empty() && out.ids.front() == bos) return out;
  out.ids.insert(out.ids.begin(), bos);
  out.bos_added = true;
  return out;
}

absl::StatusOr<PreparedRequest> prepare_chat(std::string_view body, const ServedModel& model) {
  PreparedRequest out;
  MOESAIC_ASSIGN_OR_RETURN(out.request, parse_chat_request(body, limits_of(model)));
  const ChatInput& chat = *out.request.chat;
  MOESAIC_ASSIGN_OR_RETURN(std::string rendered, render_chat(chat, model));
  out.starts_in_reasoning = ChatTemplate::opens_reasoning(rendered);
  if (!chat.tools.is_null()) out.tool_format = model.tool_format;
  MOESAIC_ASSIGN_OR_RETURN(out.forced_prefix, forced_tool_prefix(chat, model.tool_format, out.starts_in_reasoning));
  const bool is_forced = !out.forced_prefix.empty();
  if (!chat.tools.is_null() && (is_forced || !out.request.output.param.empty())) {
    const absl::Status strict = check_strict_tools(chat.tools);
    if (!strict.ok()) return invalid_param("tools", str_cat("cannot be used: ", strict.message()));
  }
  const ToolCalls calls{
      .format = out.tool_format, .tools = &chat.tools, .is_forced = is_forced, .name = chat.tool_name};
  MOESAIC_ASSIGN_OR_RETURN(out.grammar, grammar_of(out.request.output, out.starts_in_reasoning, calls));
  rendered += out.forced_prefix;
  // The template wrote BOS where it belongs; nothing is added.
  out.prompts.push_back(encode_text(rendered, /*add_special_tokens=*/false, *model.tokenizer));
  // The tool-call tags are special tokens; the parser needs to see them.
  if (out.tool_format != ToolFormat::kNone) out.request.skip_special_tokens = false;
  MOESAIC_RETURN_IF_ERROR(settle_length(out.request, model.engine->options().context_length, &out.prompts.front()));
  return out;
}

absl::StatusOr<PreparedRequest> prepare_completion(std::string_view body, const ServedModel& model) {
  PreparedRequest out;
  MOESAIC_ASSIGN_OR_RETURN(out.request, parse_completion_request(body, limits_of(model)));
  MOESAIC_ASSIGN_OR_RETURN(out.grammar, grammar_of(out.request.output, /*in_reasoning=*/false, ToolCalls()));
  for (PromptInput& input : out.request.prompts) {
    PreparedPrompt prompt;
    if (const auto* text = std::get_if<std::string>(&input)) {
      prompt = encode_text(*text, out.request.add_special_tokens, *model.tokenizer);
    } else {
      prompt.ids = std::get<std::vector<int32_t>>(std::move(input));
    }
    MOESAIC_RETURN_IF_ERROR(settle_length(out.request, model.engine->options().context_length, &prompt));
    out.prompts.push_back(std::move(prompt));
  }
  out.request.prompts.clear();
  return out;
}

Request engine_request(const PreparedRequest& prepared, size_t prompt, int64_t choice) {
  const CompletionRequest& from = prepared.request;
  Request out;
  out.prompt_ids = prepared.prompts[prompt].ids;
  out.sampling = from.sampling;
  out.grammar = prepared.grammar;
  // Choices differ, and the first of n is what n = 1 gives.
  out.sampling.seed = from.has_seed ? from.sampling.seed + static_cast<uint64_t>(choice) : entropy_seed();
  out.max_tokens = prepared.prompts[prompt].max_tokens;
  out.sampling.min_tokens = std::min(out.sampling.min_tokens, out.max_tokens);
  out.stop = from.stop;
  out.stop_token_ids = from.stop_token_ids;
  out.ignore_eos = from.ignore_eos;
  out.include_stop_in_output = from.include_stop_in_output;
  out.skip_special_tokens = from.skip_special_tokens;
  out.num_logprobs = from.num_logprobs;
  out.prompt_logprobs = from.echo && from.num_logprobs >= 0;
  out.priority = static_cast<int32_t>(from.priority);
  out.cache_salt = from.cache_salt;
  out.use_prefix_cache = from.use_prefix_cache;
  return out;
}

}  // namespace moesaic
