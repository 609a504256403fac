#include "serve/http/api.h"

#include <algorithm>
#include <utility>

#include "serve/http/json.h"
#include "serve/http/openai_error.h"

namespace moesaic {
namespace {

constexpr std::string_view kVersion = MOESAIC_VERSION;
constexpr std::string_view kIndexText =
    "Moesaic, an OpenAI-compatible server.\n"
    "POST /v1/chat/completions  POST /v1/completions  GET /v1/models\n"
    "POST /tokenize  POST /detokenize  GET /health  GET /health_generate  GET /metrics  GET /version\n"
    "POST /start_profile  POST /stop_profile\n";

// One greedy token from a one-token prompt: the whole path through the engine.
PreparedRequest health_request(const ServedModel& model) {
  PreparedRequest out;
  const int32_t bos = model.tokenizer == nullptr ? 0 : std::max(model.tokenizer->bos_id(), 0);
  out.prompts.push_back({.ids = {bos}, .max_tokens = 1});
  out.request.sampling.temperature = 0.0f;
  return out;
}

std::string model_json(const ServedModel& model, int64_t created) {
  return str_cat("{\"id\":", json_string(model.name), ",\"object\":\"model\",\"created\":", created,
                 ",\"owned_by\":\"moesaic\",\"root\":", json_string(model.root),
                 ",\"parent\":null,\"max_model_len\":", model.engine->options().context_length, "}");
}

absl::Status loading_error() {
  return absl::UnavailableError("the model is still loading; try again soon");
}

}  // namespace

void Api::start(ServedModel model) {
  auto made = std::make_shared<Loaded>();
  made->metrics = std::make_shared<ServerMetrics>(model.name, model.engine->options());
  made->created = clock_.unix_s();
  made->model = std::move(model);
  const std::lock_guard lock(mutex_);
  loaded_ = std::move(made);
}

std::shared_ptr<const Api::Loaded> Api::loaded() const {
  const std::lock_guard lock(mutex_);
  return loaded_;
}

ApiReply Api::health() const {
  const auto now = loaded();
  if (now == nullptr) return error_reply(loading_error());
  if (draining()) return error_reply(absl::UnavailableError("the server is shutting down"));
  if (!now->model.engine->healthy()) return error_reply(absl::UnavailableError("the engine has failed; see the log"));
  return {.body = "{\"status\":\"ok\"}"};
}

ApiReply Api::models(const Loaded& loaded) const {
  return {.body = str_cat("{\"object\":\"list\",\"data\":[", model_json(loaded.model, loaded.created), "]}")};
}

ApiReply Api::model(const Loaded& loaded, std::string_view path) const {
  const std::string_view name = path.substr(kModelPrefix.size());
  if (name != loaded.model.name) return error_reply(unknown_model(name, loaded.model.name));
  return {.body = model_json(loaded.model, loaded.created)};
}

ApiReply Api::profile(Endpoint endpoint, const Loaded& loaded) const {
  if (endpoint == Endpoint::kStartProfile) {
    const absl::Status started = loaded.model.engine->start_profile();
    return started.ok() ? ApiReply{.body = "{\"status\":\"recording; POST /stop_profile gives the trace\"}"}
                        : error_reply(started);
  }
  absl::StatusOr<std::string> trace = loaded.model.engine->stop_profile();
  return trace.ok() ? ApiReply{.body = *std::move(trace)} : error_reply(trace.status());
}

ApiReply Api::answer(Endpoint endpoint, std::string_view path, std::string_view body) const {
  if (endpoint == Endpoint::kIndex) return {.body = std::string(kIndexText), .content_type = "text/plain"};
  if (endpoint == Endpoint::kVersion) return {.body = str_cat("{\"version\":\"", kVersion, "\"}")};
  if (endpoint == Endpoint::kHealth) return health();
  const auto now = loaded();
  if (now == nullptr) return error_reply(loading_error());
  if (endpoint == Endpoint::kModels) return models(*now);
  if (endpoint == Endpoint::kModel) return model(*now, path);
  if (endpoint == Endpoint::kMetrics) {
    return {.body = now->metrics->text(now->model.engine->stats(), clock_.now_ns()),
            .content_type = "text/plain; version=0.0.4; charset=utf-8"};
  }
  if (endpoint == Endpoint::kStartProfile || endpoint == Endpoint::kStopProfile) return profile(endpoint, *now);
  auto json = endpoint == Endpoint::kTokenize ? tokenize_json(body, now->model) : detokenize_json(body, now->model);
  if (!json.ok()) return error_reply(json.status());
  return {.body = *std::move(json)};
}

absl::StatusOr<std::unique_ptr<CompletionJob>> Api::make_job(Endpoint endpoint, std::string_view body,
                                                             int64_t arrival_ns, std::function<void()> wake) {
  const auto now = loaded();
  if (now == nullptr) return loading_error();
  if (draining()) return absl::UnavailableError("the server is shutting down");
  if (!now->model.engine->healthy()) return absl::UnavailableError("the engine has failed; see the log");
  absl::StatusOr<PreparedRequest> prepared = endpoint == Endpoint::kChat         ? prepare_chat(body, now->model)
                                             : endpoint == Endpoint::kCompletion ? prepare_completion(body, now->model)
                                                                                 : health_request(now->model);
  if (!prepared.ok()) return prepared.status();
  auto job = std::make_unique<CompletionJob>(CompletionJob::Options{.prepared = *std::move(prepared),
                                                                    .model = now->model,
                                                                    .metrics = now->metrics,
                                                                    .next_request_id = &next_request_id_,
                                                                    .max_buffer_bytes = max_stream_buffer_bytes_,
                                                                    .arrival_ns = arrival_ns,
                                                                    .clock = &clock_});
  MOESAIC_RETURN_IF_ERROR(job->submit(std::move(wake)));
  return job;
}

}  // namespace moesaic
