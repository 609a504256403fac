// The answers of /v1/chat/completions and /v1/completions, whole and as SSE chunks, written by hand: a chunk a token is
// the server's hot path. Pure functions that append to a string.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace moesaic {

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
};

// What all chunks of one answer share.
struct ResponseHead {
  std::string id;
  std::string object;
  int64_t created = 0;
  std::string model;
};

// One token in the text-completion form.
struct CompletionLogprob {
  std::string token;        // the text that became complete with it; joined they are the text
  size_t text_offset = 0;   // in code points
  bool has_logprob = true;  // false: the first prompt token
  TokenLogprob logprob;
};

// "stop", "length", "abort"; tool calls make "stop" into "tool_calls".
std::string_view finish_reason_name(FinishReason reason, bool has_tool_calls);
// A token's own text; where its bytes are no text by themselves "bytes:\xf0\x9f", as OpenAI writes it.
std::string token_string(const Tokenizer& tokenizer, int32_t id);

void append_usage(std::string& out, const Usage& usage);
// {"content":[{token, logprob, bytes, top_logprobs}, ...]}
void append_chat_logprobs(std::string& out, std::span<const TokenLogprob> tokens, const Tokenizer& tokenizer);
// {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
void append_completion_logprobs(std::string& out, std::span<const CompletionLogprob> tokens,
                                const Tokenizer& tokenizer);
// "matched_stop" (SGLang) and "stop_reason" (vLLM): the stop string, the stop token's id, or null.
void append_stop_reason(std::string& out, const RequestOutput& last);
// [{"index","id","type","function":{"name","arguments"}}, ...]; later deltas of a call have only index and arguments.
void append_tool_call_deltas(std::string& out, std::span<const ToolCallDelta> calls);

// {"id":...,"object":...,"created":...,"model":...,"choices":[ : the start of an answer or chunk.
std::string response_start(const ResponseHead& head);

}  // namespace moesaic
