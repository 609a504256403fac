#include "serve/http/openai_response.h"

#include "serve/http/json.h"
#include "text/utf8.h"

namespace moesaic {
namespace {

void append_bytes(std::string& out, std::string_view bytes) {
  out += '[';
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i > 0) out += ',';
    out += str_cat(static_cast<int>(static_cast<unsigned char>(bytes[i])));
  }
  out += ']';
}

void append_token(std::string& out, int32_t id, float logprob, const Tokenizer& tokenizer) {
  out += "{\"token\":";
  append_json_string(out, token_string(tokenizer, id));
  out += ",\"logprob\":";
  append_json_number(out, logprob);
  out += ",\"bytes\":";
  append_bytes(out, tokenizer.token_bytes(id));
}

void append_top_of(std::string& out, const CompletionLogprob& token, const Tokenizer& tokenizer) {
  if (!token.has_logprob) {
    out += "null";
    return;
  }
  out += '{';
  bool has_own = false;
  bool first = true;
  const auto add = [&](int32_t id, float logprob) {
    if (!first) out += ',';
    first = false;
    append_json_string(out, token_string(tokenizer, id));
    out += ':';
    append_json_number(out, logprob);
  };
  for (const auto& [id, logprob] : token.logprob.top) {
    has_own |= id == token.logprob.id;
    add(id, logprob);
  }
  if (!has_own) add(token.logprob.id, token.logprob.logprob);
  out += '}';
}

}  // namespace

std::string_view finish_reason_name(FinishReason reason, bool has_tool_calls) {
  switch (reason) {
    case FinishReason::kStop:
      return has_tool_calls ? "tool_calls" : "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    default:
      return "error";
  }
}

std::string token_string(const Tokenizer& tokenizer, int32_t id) {
  static constexpr char kHex[] = "0123456789abcdef";
  const std::string_view bytes = tokenizer.token_bytes(id);
  if (is_valid_utf8(bytes)) return std::string(bytes);
  std::string out = "bytes:";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    out += "\\x";
    out += kHex[byte >> 4];
    out += kHex[byte & 15];
  }
  return out;
}

void append_usage(std::string& out, const Usage& usage) {
  out += str_cat("{\"prompt_tokens\":", usage.prompt_tokens, ",\"completion_tokens\":", usage.completion_tokens,
                 ",\"total_tokens\":", usage.prompt_tokens + usage.completion_tokens,
                 ",\"prompt_tokens_details\":{\"cached_tokens\":", usage.cached_tokens, "}}");
}

void append_chat_logprobs(std::string& out, std::span<const TokenLogprob> tokens, const Tokenizer& tokenizer) {
  out += "{\"content\":[";
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) out += ',';
    append_token(out, tokens[i].id, tokens[i].logprob, tokenizer);
    out += ",\"top_logprobs\":[";
    for (size_t k = 0; k < tokens[i].top.size(); ++k) {
      if (k > 0) out += ',';
      append_token(out, tokens[i].top[k].first, tokens[i].top[k].second, tokenizer);
      out += '}';
    }
    out += "]}";
  }
  out += "],\"refusal\":null}";
}

void append_completion_logprobs(std::string& out, std::span<const CompletionLogprob> tokens,
                                const Tokenizer& tokenizer) {
  const auto list = [&](std::string_view name, auto&& append_item) {
    out += str_cat("\"", name, "\":[");
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0) out += ',';
      append_item(tokens[i]);
    }
    out += ']';
  };
  out += '{';
  list("tokens", [&](const CompletionLogprob& token) { append_json_string(out, token.token); });
  out += ',';
  list("token_logprobs", [&](const CompletionLogprob& token) {
    if (token.has_logprob) {
      append_json_number(out, token.logprob.logprob);
    } else {
      out += "null";
    }
  });
  out += ',';
  list("top_logprobs", [&](const CompletionLogprob& token) { append_top_of(out, token, tokenizer); });
  out += ',';
  list("text_offset", [&](const CompletionLogprob& token) { out += str_cat(token.text_offset); });
  out += '}';
}

void append_stop_reason(std::string& out, const RequestOutput& last) {
  std::string value = "null";
  if (last.finish_reason == FinishReason::kStop) {
    if (!last.stop_string.empty()) {
      value = json_string(last.stop_string);
    } else if (last.stop_token_id >= 0) {
      value = str_cat(last.stop_token_id);
    }
  }
  out += str_cat(",\"matched_stop\":", value, ",\"stop_reason\":", value);
}

void append_tool_call_deltas(std::string& out, std::span<const ToolCallDelta> calls) {
  out += '[';
  for (size_t i = 0; i < calls.size(); ++i) {
    if (i > 0) out += ',';
    out += str_cat("{\"index\":", calls[i].index);
    if (!calls[i].id.empty()) out += str_cat(",\"id\":", json_string(calls[i].id), ",\"type\":\"function\"");
    out += ",\"function\":{";
    if (!calls[i].name.empty()) out += str_cat("\"name\":", json_string(calls[i].name), ",");
    out += "\"arguments\":";
    append_json_string(out, calls[i].arguments);
    out += "}}";
  }
  out += ']';
}

std::string response_start(const ResponseHead& head) {
  return str_cat("{\"id\":", json_string(head.id), ",\"object\":", json_string(head.object),
                 ",\"created\":", head.created, ",\"model\":", json_string(head.model), ",\"choices\":[");
}

}  // namespace moesaic
