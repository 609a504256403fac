#include "cli/model_host.h"

#include <algorithm>
#include <fstream>

#include "base/clock.h"
#include "base/log.h"
#include "cli/memory_report.h"
#include "engine/model_executor.h"

namespace moesaic {
namespace {

constexpr int64_t kDefaultContexts = 16;         // of the default KV pool, over all groups
constexpr int64_t kDefaultTokensPerStep = 2048;  // over all groups: more gains nothing on a CPU
constexpr int64_t kMinTokensPerStep = 256;
constexpr int kDefaultDraftDepth = 3;
constexpr int64_t kPromptLogitRows = 64;  // of a step, beside those that all running requests may need
constexpr int64_t kMiB = 1 << 20;

absl::StatusOr<int> pick_draft_depth(const ModelSettings& settings, const ModelConfig& config) {
  if (config.num_nextn_predict_layers > 0) {
    return settings.speculative_num_steps >= 0 ? settings.speculative_num_steps : kDefaultDraftDepth;
  }
  if (settings.speculative_num_steps <= 0) return 0;
  return absl::InvalidArgumentError(str_cat("--speculative-num-steps ", settings.speculative_num_steps,
                                            " needs an MTP module, but the model stores none "
                                            "(num_nextn_predict_layers is 0); leave it at 0"));
}

// Settings that each make sense and together do not.
absl::Status check_settings(const ModelSettings& settings, int max_draft_depth) {
  if (settings.chunked_prefill_size > 0 && settings.chunked_prefill_size < settings.max_running_requests) {
    return absl::InvalidArgumentError(
        str_cat("--chunked-prefill-size ", settings.chunked_prefill_size, " is less than --max-running-requests ",
                settings.max_running_requests,
                ", each of which may need a token in a step; raise the first or lower the second"));
  }
  if (settings.synthetic_acceptance >= 0.0f && max_draft_depth == 0) {
    return absl::InvalidArgumentError(
        "--synthetic-acceptance needs drafts, and there are none (--speculative-num-steps 0, or no MTP module)");
  }
  return absl::OkStatus();
}

int64_t blocks_for(int64_t tokens, int64_t block_tokens) {
  return (tokens + block_tokens - 1) / block_tokens;
}

}  // namespace

absl::StatusOr<int64_t> pick_context(const ModelSettings& settings, const ModelConfig& config) {
  const int64_t longest = config.max_position_embeddings;
  if (settings.context_length <= longest) return settings.context_length > 0 ? settings.context_length : longest;
  return absl::InvalidArgumentError(str_cat("--context-length: at most the model's max_position_embeddings ", longest,
                                            ", found ", settings.context_length));
}

int64_t available_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string name, unit; file >> name;) {
    int64_t kib = 0;
    if (!(file >> kib)) break;
    if (name == "MemAvailable:") return kib * 1024;
    std::getline(file, unit);
  }
  return 4096 * kMiB;
}

absl::StatusOr<EnginePlan> plan_engine(const ModelSettings& settings, const ModelConfig& config,
                                       int64_t available_bytes) {
  EnginePlan plan;
  MOESAIC_ASSIGN_OR_RETURN(plan.model, model_options(settings));
  MOESAIC_ASSIGN_OR_RETURN(plan.context_length, pick_context(settings, config));
  MOESAIC_ASSIGN_OR_RETURN(plan.max_draft_depth, pick_draft_depth(settings, config));
  MOESAIC_RETURN_IF_ERROR(check_settings(settings, plan.max_draft_depth));
  plan.model.load_mtp = plan.max_draft_depth > 0;
  const ParallelLayout& layout = plan.model.layout;
  const int64_t block_tokens = plan.model.kv_block_tokens;
  // The latent cache is replicated on the TP ranks of a group.
  const int64_t block_bytes =
      block_tokens * kv_layers(config, plan.model) * kv_row_bytes(config, plan.model.kv_dtype) * layout.world_size();
  const int64_t fit =
      static_cast<int64_t>(static_cast<double>(available_bytes) * static_cast<double>(settings.mem_fraction_static)) /
      block_bytes;
  const int64_t context_blocks = blocks_for(plan.context_length, block_tokens);
  if (settings.max_total_tokens > 0) {
    plan.num_kv_blocks = blocks_for(settings.max_total_tokens, block_tokens);
  } else {
    int64_t contexts = std::max(kDefaultContexts / layout.dp_size, int64_t{1});
    // Nothing stays of those that have run.
    if (settings.disable_radix_cache) contexts = std::min<int64_t>(contexts, settings.max_running_requests);
    plan.num_kv_blocks = std::min(contexts * context_blocks, fit);
  }
  if (plan.num_kv_blocks < 1) {
    return absl::InvalidArgumentError(str_cat("no memory for a KV cache: one block of all ranks takes ", block_bytes,
                                              " bytes, --mem-fraction-static allows ", settings.mem_fraction_static,
                                              " of ", available_bytes));
  }
  if (plan.num_kv_blocks < context_blocks) {
    if (settings.context_length > 0) {
      return absl::InvalidArgumentError(
          str_cat("--context-length ", plan.context_length, " needs ", context_blocks * block_tokens,
                  " tokens of KV cache in each group, found ", plan.num_kv_blocks * block_tokens,
                  "; lower it, or raise --max-total-tokens or --mem-fraction-static"));
    }
    plan.context_length = plan.num_kv_blocks * block_tokens;
  }
  plan.kv_bytes = plan.num_kv_blocks * block_bytes;
  plan.model.num_kv_blocks = plan.num_kv_blocks;
  plan.model.max_position = plan.context_length;
  plan.model.max_decode_tokens = settings.max_running_requests;
  const int64_t share = std::max(kDefaultTokensPerStep / layout.dp_size, kMinTokensPerStep);
  set_step_tokens(settings.chunked_prefill_size > 0 ? settings.chunked_prefill_size : share, &plan);
  return plan;
}

void set_step_tokens(int64_t num_tokens, EnginePlan* plan) {
  ModelOptions& model = plan->model;
  const int64_t max_running = model.max_decode_tokens;
  model.max_tokens_per_step = std::max(num_tokens, max_running);
  model.max_logit_rows =
      std::min(model.max_tokens_per_step, max_running * (1 + plan->max_draft_depth) + kPromptLogitRows);
  // A preempted sequence is recomputed in pieces of at most 8 tokens.
  model.max_chunks = max_running + model.max_tokens_per_step / 8 + 1;
}

namespace {

// Before anything large is read: what will be held, and whether it fits.
absl::Status report_memory(const std::string& model_path, const ModelConfig& config, const EnginePlan& plan,
                           int64_t available_bytes) {
  MOESAIC_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::open(model_path));
  MOESAIC_ASSIGN_OR_RETURN(const MemoryPlan memory, plan_memory(*checkpoint, config, plan.model));
  std::string warning;
  MOESAIC_RETURN_IF_ERROR(check_memory(*checkpoint, config, plan, memory, available_bytes, &warning));
  warning.empty() ? log_info(memory_line(memory, available_bytes)) : log_warn(warning);
  return absl::OkStatus();
}

}  // namespace

std::function<void(int64_t, int64_t)> progress_printer(std::function<void(const std::string&)> print) {
  return [print = std::move(print), last = int64_t{-1}](int64_t done, int64_t total) mutable {
    const int64_t tenth = total > 0 ? done * 10 / total : 10;
    if (tenth == last) return;
    last = tenth;
    print(str_cat(tenth * 10, " % of ", total / kMiB, " MiB"));
  };
}

EngineOptions engine_options(const ModelSettings& settings, const ModelConfig& config, const EnginePlan& plan) {
  return {.dp_size = plan.model.layout.dp_size,
          .context_length = plan.context_length,
          .vocab_size = config.vocab_size,
          .eos_token_ids = config.eos_token_ids,
          .num_kv_blocks = static_cast<int>(plan.num_kv_blocks),
          .kv_block_tokens = static_cast<int>(plan.model.kv_block_tokens),
          .max_running_requests = settings.max_running_requests,
          .max_queued_requests = settings.max_queued_requests,
          .max_tokens_per_step = plan.model.max_tokens_per_step,
          .max_logit_rows_per_step = plan.model.max_logit_rows,
          .prefix_cache = !settings.disable_radix_cache,
          .mixed_steps = settings.enable_mixed_chunk,
          .prefill_delay_steps = settings.prefill_delay_steps,
          .priority_aging_steps = settings.priority_aging_steps,
          .queue_timeout_ms = settings.queue_timeout_ms,
          .max_draft_depth = plan.max_draft_depth,
          .adaptive_draft_depth = settings.speculative_adaptive,
          .synthetic_acceptance = settings.synthetic_acceptance};
}

absl::StatusOr<std::unique_ptr<ModelHost>> ModelHost::load(const ModelSettings& settings, const TestHooks& hooks,
                                                           const WrapExecutor& wrap) {
  std::unique_ptr<ModelHost> host(new ModelHost());
  MOESAIC_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfig::load(settings.model_path));
  const int64_t available_bytes = available_memory_bytes();
  MOESAIC_ASSIGN_OR_RETURN(host->plan_, plan_engine(settings, config, available_bytes));
  const EnginePlan& plan = host->plan_;
  if (settings.context_length == 0 && plan.context_length < config.max_position_embeddings) {
    log_warn(str_cat("context is ", plan.context_length, " tokens, not the model's ", config.max_position_embeddings,
                     ": no more KV cache fits (--mem-fraction-static, --max-total-tokens)"));
  }
  MOESAIC_ASSIGN_OR_RETURN(host->tokenizer_, Tokenizer::load(settings.model_path));
  auto chat_template = ChatTemplate::load(settings.model_path);
  if (chat_template.ok()) {
    host->chat_template_ = *std::move(chat_template);
  } else if (!absl::IsNotFound(chat_template.status())) {
    return chat_template.status();
  }
  MOESAIC_RETURN_IF_ERROR(report_memory(settings.model_path, config, plan, available_bytes));
  const RankGroupOptions group_options = {
      .model_dir = settings.model_path,
      .model = plan.model,
      .num_threads = settings.num_threads,
      .timeout_ms = settings.step_timeout_ms,
      .progress = progress_printer([](const std::string& text) { log_info(str_cat("loading: ", text)); })};
  MOESAIC_ASSIGN_OR_RETURN(host->group_, RankGroup::load(group_options));
  RankGroup* group = host->group_.get();
  const RunRanks run_ranks = [group](const RankBody& body) {
    return group->run([&](int rank) {
      DeepseekModel* model = &group->model(rank);
      return body(group->context(rank),
                  {.forward = [model](const RankContext& context, const ForwardBatch& batch,
                                      ForwardResult* result) { return model->forward(context, batch, result); },
                   .forward_mtp =
                       [model](const RankContext& context, const ForwardBatch& batch, const Tensor& hidden,
                               std::span<const int32_t> next_ids, ForwardResult* result) {
                         return model->forward_mtp(context, batch, hidden, next_ids, result);
                       }});
    });
  };
  EngineOptions options = engine_options(settings, config, plan);
  options.hooks = hooks;
  std::unique_ptr<Executor> executor =
      std::make_unique<ModelExecutor>(ModelExecutorOptions{.layout = plan.model.layout,
                                                           .vocab_size = config.vocab_size,
                                                           .max_low_latency_tokens = plan.model.max_decode_tokens,
                                                           .max_draft_depth = plan.max_draft_depth},
                                      run_ranks);
  if (wrap) executor = wrap(std::move(executor));
  host->engine_ =
      std::make_unique<Engine>(std::move(options), std::move(executor), host->tokenizer_.get(), real_clock());
  return host;
}

ModelHost::~ModelHost() = default;

}  // namespace moesaic
