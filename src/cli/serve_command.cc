#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/command.h"
#include "cli/generation_defaults.h"
#include "cli/model_host.h"
#include "cli/signals.h"
#include "serve/http/http_server.h"

namespace moesaic {
namespace {

constexpr int64_t kPollMs = 200;
constexpr int64_t kFailedStopMs = 1'000;

struct ServeConfig {
  ModelSettings model;
  HttpServerOptions http;
  std::string served_model_name;
  std::string tool_call_parser = "auto";
  std::string reasoning_parser = "auto";
  int64_t shutdown_timeout_ms = 30'000;
  std::string test_script;
  FaultOptions faults;
};

void declare_http(ConfigFields& fields, ServeConfig& config) {
  fields.add("host", &config.http.host).doc("Address to listen on");
  fields.add("port", &config.http.port).alias("p").range(0, 65535).doc("TCP port; 0 takes any free one");
  fields.add("api-key", &config.http.api_key).doc("Key that clients must send as \"Authorization: Bearer KEY\"");
  fields.add("max-connections", &config.http.max_connections)
      .range(1, 1e6)
      .unit("connections")
      .doc("Open connections; further ones get 503");
  fields.add("request-timeout-ms", &config.http.request_timeout_ms)
      .range(1, 1e12)
      .unit("ms")
      .doc("Longest life of a request");
  fields.add("shutdown-timeout-ms", &config.shutdown_timeout_ms)
      .range(0, 86'400'000)
      .unit("ms")
      .doc("How long running requests may take to end after SIGINT or SIGTERM");
}

void declare(ConfigFields& fields, ServeConfig& config) {
  add_model_path(fields, &config.model.model_path).required();
  fields.add("served-model-name", &config.served_model_name)
      .default_text("the directory's name")
      .doc("Name that clients ask for");
  declare_http(fields, config);
  add_layout_fields(fields, config.model);
  add_engine_fields(fields, config.model);
  fields.add("tool-call-parser", &config.tool_call_parser)
      .choices({"auto", "none", "deepseekv3", "deepseek_v3", "deepseekv31", "deepseek_v31"})
      .doc("Format of tool calls; auto reads it from the chat template");
  fields.add("reasoning-parser", &config.reasoning_parser)
      .choices({"auto", "none", "deepseek-r1", "deepseek_r1", "deepseek-v3", "deepseek_v3"})
      .doc("Whether <think> ... </think> becomes reasoning_content; auto and all names but none do");
  fields.add("test-script", &config.test_script).hidden().doc("JSON list of token ids that every request gets");
  fields.add("test-fail-at-step", &config.faults.fail_at_step).hidden();
  fields.add("test-delay-at-step", &config.faults.delay_at_step).hidden();
  fields.add("test-delay-ms", &config.faults.delay_ms).hidden();
}

absl::StatusOr<TestHooks> test_hooks(const ServeConfig& config) {
  TestHooks hooks{.script = {}, .faults = config.faults};
  if (config.test_script.empty()) return hooks;
  const nlohmann::json list = nlohmann::json::parse(config.test_script, nullptr, /*allow_exceptions=*/false);
  if (!list.is_array()) return absl::InvalidArgumentError("--test-script expects a JSON list of token ids");
  for (const nlohmann::json& id : list) {
    if (!id.is_number_unsigned()) return absl::InvalidArgumentError("--test-script expects a JSON list of token ids");
    hooks.script.push_back(id.get<int32_t>());
  }
  return hooks;
}

ToolFormat tool_format(const ServeConfig& config, const ChatTemplate* chat_template) {
  const std::string& name = config.tool_call_parser;
  if (name == "none") return ToolFormat::kNone;
  if (name == "deepseekv3" || name == "deepseek_v3") return ToolFormat::kDeepseekV3;
  if (name == "deepseekv31" || name == "deepseek_v31") return ToolFormat::kDeepseekV31;
  return chat_template ? OutputParser::detect_tool_format(chat_template->source()) : ToolFormat::kNone;
}

std::string directory_name(const std::string& path) {
  const std::filesystem::path normal = std::filesystem::path(path).lexically_normal();
  return normal.has_filename() ? normal.filename().string() : normal.parent_path().filename().string();
}

void print_address(const ServeConfig& config, const ModelHost& host, int port) {
  const EnginePlan& plan = host.plan();
  std::fputs(str_cat("Serving ", config.served_model_name, " on http://", config.http.host, ":", port, "/v1 (",
                     plan.model.layout.to_string(), ", context ", plan.context_length, ", KV cache ",
                     plan.num_kv_blocks * plan.model.kv_block_tokens, " tokens a group)\n")
                 .c_str(),
             stdout);
  std::fflush(stdout);
}

absl::Status run(ServeConfig& config) {
  StopSignals signals;
  MOESAIC_ASSIGN_OR_RETURN(const TestHooks hooks, test_hooks(config));
  // The port first: a busy one is found before the model loads.
  MOESAIC_ASSIGN_OR_RETURN(const std::unique_ptr<HttpServer> server, HttpServer::bind(config.http));
  MOESAIC_ASSIGN_OR_RETURN(const SamplingDefaults defaults, load_sampling_defaults(config.model.model_path));
  MOESAIC_ASSIGN_OR_RETURN(const std::unique_ptr<ModelHost> host, ModelHost::load(config.model, hooks));
  if (config.served_model_name.empty()) config.served_model_name = directory_name(config.model.model_path);
  signals.expect_drain();
  server->start({.name = config.served_model_name,
                 .root = config.model.model_path,
                 .engine = &host->engine(),
                 .tokenizer = &host->tokenizer(),
                 .chat_template = host->chat_template(),
                 .tool_format = tool_format(config, host->chat_template()),
                 .parse_reasoning = config.reasoning_parser != "none",
                 .defaults = defaults});
  print_address(config, *host, server->port());
  while (!signals.wait(kPollMs)) {
    if (host->engine().healthy()) continue;
    // The ranks are one fault domain: open requests have got their error; what restarts processes takes over.
    server->stop(kFailedStopMs);
    return absl::InternalError("the engine has failed; the log names the rank and the step");
  }
  log_info("draining; a second signal ends at once");
  server->stop(config.shutdown_timeout_ms);
  return absl::OkStatus();
}

}  // namespace

Command serve_command() {
  return make_command<ServeConfig, declare, run>("serve", "Serves a model through an OpenAI-compatible HTTP API.");
}

}  // namespace moesaic
