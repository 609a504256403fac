#include "serve/http/openai_request.h"

#include <algorithm>
#include <limits>

#include "serve/http/fields.h"
#include "serve/http/openai_error.h"

namespace moesaic {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

void read_sampling(Fields& fields, const SamplingDefaults& defaults, SamplingParams* out) {
  out->temperature = defaults.temperature;
  out->top_p = defaults.top_p;
  out->min_p = defaults.min_p;
  out->repetition_penalty = defaults.repetition_penalty;
  fields.number("temperature", 0.0, 2.0, &out->temperature);
  fields.number("top_p", 0.0, 1.0, &out->top_p);
  if (out->top_p == 0.0f) fields.fail(invalid_param("top_p", "must be above 0 and at most 1, got 0"));
  int64_t top_k = defaults.top_k;
  fields.integer("top_k", -1, kMaxInt32, &top_k);
  out->top_k = static_cast<int32_t>(std::max<int64_t>(top_k, 0));
  fields.number("min_p", 0.0, 1.0, &out->min_p);
  fields.number("frequency_penalty", -2.0, 2.0, &out->frequency_penalty);
  fields.number("presence_penalty", -2.0, 2.0, &out->presence_penalty);
  fields.number("repetition_penalty", 0.0, 2.0, &out->repetition_penalty);
  if (out->repetition_penalty == 0.0f) {
    fields.fail(invalid_param("repetition_penalty", "must be above 0 and at most 2, got 0"));
  }
  int64_t min_tokens = 0;
  fields.integer("min_tokens", 0, kMaxInt32, &min_tokens);
  out->min_tokens = static_cast<int32_t>(min_tokens);
}

void read_seed(Fields& fields, CompletionRequest* out) {
  const Json* seed = fields.find("seed");
  if (seed == nullptr) return;
  if (seed->is_number_unsigned()) {
    out->sampling.seed = seed->get<uint64_t>();
  } else {
    int64_t value = 0;
    fields.integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(), &value);
    out->sampling.seed = static_cast<uint64_t>(value);
  }
  out->has_seed = true;
}

bool parse_token_key(std::string_view key, int64_t* id) {
  const char* end = key.data() + key.size();
  const auto parsed = std::from_chars(key.data(), end, *id);
  return parsed.ec == std::errc() && parsed.ptr == end;
}

void read_logit_bias(Fields& fields, int64_t vocab_size, SamplingParams* out) {
  const Json* bias = fields.find("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object()) {
    return fields.fail(invalid_param("logit_bias", "must be an object of token ids and numbers"));
  }
  for (const auto& [key, value] : bias->get_ref<const Json::object_t&>()) {
    int64_t id = 0;
    if (!parse_token_key(key, &id) || id < 0 || id >= vocab_size) {
      return fields.fail(
          invalid_param("logit_bias", str_cat("has the token id ", json_string(key.substr(0, 64)), ", expected 0 to ",
                                              vocab_size - 1, " (vocabulary size ", vocab_size, ")")));
    }
    const double number = value.is_number() ? value.get<double>() : 1e9;
    if (!(number >= -100.0 && number <= 100.0)) {
      return fields.fail(invalid_param("logit_bias", str_cat("of token ", id, " must be a number from -100 to 100")));
    }
    out->logit_bias.emplace_back(static_cast<int32_t>(id), static_cast<float>(number));
  }
}

void add_stop(Fields& fields, const Json& item, std::vector<std::string>* out) {
  if (!item.is_string()) {
    return fields.fail(invalid_param("stop", str_cat("must hold strings, got ", json_type_name(item))));
  }
  const auto& text = item.get_ref<const std::string&>();
  if (text.empty()) return fields.fail(invalid_param("stop", "must not hold empty strings"));
  if (text.size() > kMaxStopBytes) {
    return fields.fail(
        invalid_param("stop", str_cat("has a string of ", text.size(), " bytes, the limit is ", kMaxStopBytes)));
  }
  out->push_back(text);
}

void read_stop(Fields& fields, int64_t vocab_size, CompletionRequest* out) {
  if (const Json* stop = fields.find("stop")) {
    if (stop->is_array() && stop->size() > kMaxStopStrings) {
      fields.fail(invalid_param("stop", str_cat("has ", stop->size(), " strings, the limit is ", kMaxStopStrings)));
    } else if (stop->is_array()) {
      for (const Json& item : *stop) add_stop(fields, item, &out->stop);
    } else {
      add_stop(fields, *stop, &out->stop);
    }
  }
  const Json* ids = fields.find("stop_token_ids");
  if (ids == nullptr) return;
  if (ids->is_array() && ids->size() > kMaxStopTokenIds) {
    return fields.fail(
        invalid_param("stop_token_ids", str_cat("has ", ids->size(), " ids, the limit is ", kMaxStopTokenIds)));
  }
  auto parsed = parse_token_ids("stop_token_ids", *ids, vocab_size);
  if (!parsed.ok()) return fields.fail(parsed.status());
  out->stop_token_ids = *std::move(parsed);
}

void read_stream(Fields& fields, CompletionRequest* out) {
  fields.boolean("stream", &out->stream);
  const Json* options = fields.find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) return fields.fail(invalid_param("stream_options", "must be an object"));
  if (!out->stream) return fields.fail(invalid_param("stream_options", "is only allowed with stream: true"));
  Fields inner(*options);
  inner.boolean("include_usage", &out->include_usage);
  inner.boolean("continuous_usage_stats", &out->continuous_usage);
  fields.fail(inner.status());
}

// false, null and what is empty ask for nothing.
bool asks(const Json* value) {
  if (value == nullptr || *value == false) return false;
  return !((value->is_string() && value->get_ref<const std::string&>().empty()) ||
           (value->is_array() && value->empty()));
}

// Fields of OpenAI, vLLM and SGLang that would change what the caller gets. Ignoring them would be a wrong answer.
void refuse_unsupported(Fields& fields) {
  int64_t best_of = 1;
  fields.integer("best_of", 1, kMaxInt32, &best_of);
  if (best_of > 1) fields.fail(invalid_param("best_of", "above 1 is not supported; use n"));
  for (const char* name :
       {"allowed_token_ids", "audio", "bad_words", "chat_template", "custom_logit_processor", "functions",
        "guided_whitespace_pattern", "logits_processors", "lora_path", "prompt_embeds", "prompt_logprobs", "stop_regex",
        "structural_tag", "truncate_prompt_tokens", "use_beam_search"}) {
    if (asks(fields.find(name))) fields.fail(invalid_param(name, "is not supported"));
  }
}

void read_common(Fields& fields, const RequestLimits& limits, CompletionRequest* out) {
  read_sampling(fields, limits.defaults, &out->sampling);
  read_seed(fields, out);
  read_logit_bias(fields, limits.vocab_size, &out->sampling);
  read_stop(fields, limits.vocab_size, out);
  read_stream(fields, out);
  read_output_format(fields, &out->output);
  refuse_unsupported(fields);
  fields.integer("n", 1, kMaxChoices, &out->n);
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {  // the second is the newer name and wins
    int64_t tokens = -1;
    fields.integer(name, 0, kMaxInt32, &tokens);
    if (tokens >= 0) out->max_tokens = tokens;
  }
  if (out->max_tokens.has_value() && out->sampling.min_tokens > *out->max_tokens) {
    fields.fail(invalid_param("min_tokens",
                              str_cat("is ", out->sampling.min_tokens, ", more than max_tokens ", *out->max_tokens)));
  }
  fields.boolean("ignore_eos", &out->ignore_eos);
  fields.boolean("include_stop_str_in_output", &out->include_stop_in_output);
  fields.boolean("no_stop_trim", &out->include_stop_in_output);
  fields.boolean("skip_special_tokens", &out->skip_special_tokens);
  fields.boolean("add_special_tokens", &out->add_special_tokens);
  fields.integer("priority", -kMaxPriority, kMaxPriority, &out->priority);
  fields.text("cache_salt", &out->cache_salt);
  if (fields.has("cache_salt") && (out->cache_salt.empty() || out->cache_salt.size() > kMaxSaltBytes)) {
    fields.fail(invalid_param("cache_salt", str_cat("must have from 1 to ", kMaxSaltBytes, " bytes")));
  }
  fields.boolean("cache_prompt", &out->use_prefix_cache);
}

absl::StatusOr<std::vector<PromptInput>> parse_prompts(const Json* prompt, int64_t vocab_size) {
  if (prompt == nullptr) return invalid_param("prompt", "is missing");
  const auto ids_of = [&](const Json& list) { return parse_token_ids("prompt", list, vocab_size); };
  std::vector<PromptInput> out;
  if (prompt->is_string()) {
    out.emplace_back(prompt->get_ref<const std::string&>());
    return out;
  }
  if (!prompt->is_array() || prompt->empty()) {
    return invalid_param("prompt",
                         "must be a string, a list of strings, a list of token ids or a list of such lists, "
                         "not empty");
  }
  if (prompt->front().is_number()) {
    MOESAIC_ASSIGN_OR_RETURN(auto ids, ids_of(*prompt));
    out.emplace_back(std::move(ids));
    return out;
  }
  if (static_cast<int64_t>(prompt->size()) > kMaxSequences) {
    return invalid_param("prompt", str_cat("has ", prompt->size(), " prompts, the limit is ", kMaxSequences));
  }
  for (const Json& item : *prompt) {
    if (item.type() != prompt->front().type()) return invalid_param("prompt", "must not mix strings and token ids");
    if (item.is_string()) {
      out.emplace_back(item.get_ref<const std::string&>());
      continue;
    }
    MOESAIC_ASSIGN_OR_RETURN(auto ids, ids_of(item));
    out.emplace_back(std::move(ids));
  }
  return out;
}

void read_chat_logprobs(Fields& fields, CompletionRequest* out) {
  bool logprobs = false;
  int64_t top = 0;
  fields.boolean("logprobs", &logprobs);
  fields.integer("top_logprobs", 0, kMaxTopLogprobs, &top);
  if (fields.has("top_logprobs") && top > 0 && !logprobs) {
    fields.fail(invalid_param("top_logprobs", "needs logprobs: true"));
  }
  if (logprobs) out->num_logprobs = static_cast<int32_t>(top);
}

void read_completion_logprobs(Fields& fields, CompletionRequest* out) {
  const Json* value = fields.find("logprobs");
  if (value == nullptr) return;
  if (value->is_boolean()) {
    out->num_logprobs = value->get<bool>() ? 1 : -1;
    return;
  }
  int64_t count = -1;
  fields.integer("logprobs", 0, kMaxTopLogprobs, &count);
  out->num_logprobs = static_cast<int32_t>(count);
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> parse_token_ids(std::string_view field, const Json& list, int64_t vocab_size) {
  if (!list.is_array()) {
    return invalid_param(field, str_cat("must be a list of token ids, got ", json_type_name(list)));
  }
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const Json& item : list) {
    int64_t id = 0;
    if (!item.is_number()) return invalid_param(field, str_cat("must hold token ids, got ", json_type_name(item)));
    if (!to_int64(item, &id) || id < 0 || id >= vocab_size) {
      return invalid_param(field, str_cat("has the token id ", item.dump(), ", expected 0 to ", vocab_size - 1,
                                          " (vocabulary size ", vocab_size, ")"));
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

absl::StatusOr<Json> parse_body(std::string_view body, const std::string& served_name) {
  absl::StatusOr<Json> parsed = parse_json(body);
  if (!parsed.ok()) return absl::InvalidArgumentError(str_cat("body is ", parsed.status().message()));
  Json json = *std::move(parsed);
  if (!json.is_object()) {
    return absl::InvalidArgumentError(str_cat("body must be a JSON object, got ", json_type_name(json)));
  }
  Fields fields(json);
  std::string model;
  fields.text("model", &model);
  MOESAIC_RETURN_IF_ERROR(fields.status());
  if (!model.empty() && model != served_name) return unknown_model(model, served_name);
  return json;
}

absl::StatusOr<CompletionRequest> parse_chat_request(std::string_view body, const RequestLimits& limits) {
  MOESAIC_ASSIGN_OR_RETURN(Json json, parse_body(body, limits.served_name));
  CompletionRequest out;
  Fields fields(json);
  read_common(fields, limits, &out);
  read_chat_logprobs(fields, &out);
  MOESAIC_RETURN_IF_ERROR(fields.status());
  MOESAIC_ASSIGN_OR_RETURN(out.chat, parse_chat_input(json));
  return out;
}

absl::StatusOr<CompletionRequest> parse_completion_request(std::string_view body, const RequestLimits& limits) {
  MOESAIC_ASSIGN_OR_RETURN(Json json, parse_body(body, limits.served_name));
  CompletionRequest out;
  Fields fields(json);
  read_common(fields, limits, &out);
  read_completion_logprobs(fields, &out);
  fields.boolean("echo", &out.echo);
  std::string suffix;
  fields.text("suffix", &suffix);
  if (!suffix.empty()) fields.fail(invalid_param("suffix", "is not supported"));
  MOESAIC_RETURN_IF_ERROR(fields.status());
  MOESAIC_ASSIGN_OR_RETURN(out.prompts, parse_prompts(fields.find("prompt"), limits.vocab_size));
  const int64_t sequences = static_cast<int64_t>(out.prompts.size()) * out.n;
  if (sequences > kMaxSequences) {
    return invalid_param("n", str_cat("times the number of prompts is ", sequences, ", the limit is ", kMaxSequences));
  }
  return out;
}

}  // namespace moesaic
