// /tokenize and /detokenize. vLLM asks with "prompt" or "messages" and reads "prompt" back; SGLang may send lists and
// reads "text": each answer holds both spellings.
#include <span>

#include "serve/http/api.h"
#include "serve/http/fields.h"
#include "serve/http/json.h"
#include "serve/http/openai_error.h"

namespace moesaic {
namespace {

void append_ids(std::string& out, std::span<const int32_t> ids) {
  out += '[';
  for (size_t i = 0; i < ids.size(); ++i) out += str_cat(i > 0 ? "," : "", ids[i]);
  out += ']';
}

std::string token_strings(std::span<const int32_t> ids, const Tokenizer& tokenizer) {
  std::string out = "[";
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out += ',';
    append_json_string(out, token_string(tokenizer, ids[i]));
  }
  return out + "]";
}

std::string tokenized(std::span<const int32_t> ids, bool with_strings, const ServedModel& model) {
  std::string out = "{\"tokens\":";
  append_ids(out, ids);
  out += str_cat(",\"count\":", ids.size(), ",\"max_model_len\":", model.engine->options().context_length,
                 ",\"token_strs\":", with_strings ? token_strings(ids, *model.tokenizer) : "null", "}");
  return out;
}

absl::StatusOr<std::string> tokenize_list(const Json& prompts, bool add_special_tokens, const ServedModel& model) {
  std::string tokens;
  std::string counts;
  for (const Json& prompt : prompts) {
    if (!prompt.is_string()) return invalid_param("prompt", "must be a string or a list of strings");
    const PreparedPrompt encoded =
        encode_text(prompt.get_ref<const std::string&>(), add_special_tokens, *model.tokenizer);
    const char* comma = tokens.empty() ? "" : ",";
    tokens += comma;
    append_ids(tokens, encoded.ids);
    counts += str_cat(comma, encoded.ids.size());
  }
  return str_cat("{\"tokens\":[", tokens, "],\"count\":[", counts,
                 "],\"max_model_len\":", model.engine->options().context_length, "}");
}

absl::StatusOr<std::string> decode_list(const Json& ids, bool skip_special_tokens, const ServedModel& model) {
  MOESAIC_ASSIGN_OR_RETURN(auto parsed, parse_token_ids("tokens", ids, model.engine->options().vocab_size));
  return json_string(model.tokenizer->decode(parsed, skip_special_tokens));
}

}  // namespace

absl::StatusOr<std::string> tokenize_json(std::string_view body, const ServedModel& model) {
  MOESAIC_ASSIGN_OR_RETURN(Json json, parse_body(body, model.name));
  Fields fields(json);
  bool add_special_tokens = true;
  bool with_strings = false;
  fields.boolean("add_special_tokens", &add_special_tokens);
  fields.boolean("return_token_strs", &with_strings);
  MOESAIC_RETURN_IF_ERROR(fields.status());
  if (fields.has("messages")) {
    MOESAIC_ASSIGN_OR_RETURN(ChatInput chat, parse_chat_input(json));
    MOESAIC_ASSIGN_OR_RETURN(std::string rendered, render_chat(chat, model));
    return tokenized(model.tokenizer->encode(rendered), with_strings, model);
  }
  const Json* prompt = fields.find("prompt");
  if (prompt == nullptr) return invalid_param("prompt", "is missing");
  if (prompt->is_array()) return tokenize_list(*prompt, add_special_tokens, model);
  if (!prompt->is_string()) return invalid_param("prompt", "must be a string or a list of strings");
  const auto& text = prompt->get_ref<const std::string&>();
  return tokenized(encode_text(text, add_special_tokens, *model.tokenizer).ids, with_strings, model);
}

absl::StatusOr<std::string> detokenize_json(std::string_view body, const ServedModel& model) {
  MOESAIC_ASSIGN_OR_RETURN(Json json, parse_body(body, model.name));
  Fields fields(json);
  bool skip_special_tokens = false;
  fields.boolean("skip_special_tokens", &skip_special_tokens);
  MOESAIC_RETURN_IF_ERROR(fields.status());
  const Json* tokens = fields.find("tokens");
  if (tokens == nullptr) return invalid_param("tokens", "is missing");
  std::string text;
  if (tokens->is_array() && !tokens->empty() && tokens->front().is_array()) {
    for (const Json& ids : *tokens) {
      MOESAIC_ASSIGN_OR_RETURN(std::string decoded, decode_list(ids, skip_special_tokens, model));
      text += str_cat(text.empty() ? "[" : ",", decoded);
    }
    text += ']';
  } else {
    MOESAIC_ASSIGN_OR_RETURN(text, decode_list(*tokens, skip_special_tokens, model));
  }
  return str_cat("{\"prompt\":", text, ",\"text\":", text, "}");
}

}  // namespace moesaic
