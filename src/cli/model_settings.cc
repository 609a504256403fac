#include "cli/model_settings.h"

namespace moesaic {

ConfigField& add_model_path(ConfigFields& fields, std::string* model_path) {
  return fields.add("model-path", model_path)
      .alias("model")
      .alias("m")
      .positional()
      .doc("Hugging Face directory of the model");
}

void add_parallel_fields(ConfigFields& fields, int32_t* ep_size, int32_t* dp_size, int32_t* tp_size) {
  fields.add("ep-size", ep_size)
      .alias("ep")
      .alias("expert-parallel-size")
      .range(0, 1024)
      .unit("ranks")
      .default_text("DP x TP")
      .doc("Expert-parallel ranks: every rank holds its share of the experts");
  fields.add("dp-size", dp_size)
      .alias("dp")
      .alias("data-parallel-size")
      .range(0, 1024)
      .unit("groups")
      .default_text("EP / TP")
      .doc("Data-parallel attention groups, each with its own sequences and KV cache");
  fields.add("tp-size", tp_size)
      .alias("tp")
      .alias("tensor-parallel-size")
      .range(0, 1024)
      .unit("ranks")
      .default_text("EP / DP")
      .doc("Ranks that share the attention heads of one group");
}

void add_layout_fields(ConfigFields& fields, ModelSettings& settings) {
  add_parallel_fields(fields, &settings.ep_size, &settings.dp_size, &settings.tp_size);
  fields.add("moe-dense-tp-size", &settings.moe_dense_tp_size)
      .range(1, 1024)
      .unit("ranks")
      .doc("Neighbouring ranks of a TP group that split the hidden layer of a dense FFN; 1 splits tokens only");
  fields.add("activations", &settings.activations)
      .choices({"f32", "fp8"})
      .doc(
          "How activations enter FP8 linears: as they are, or quantised per token and 128 channels as DeepSeek-V3 "
          "was trained");
  fields.add("kv-cache-dtype", &settings.kv_cache_dtype)
      .choices({"auto", "f32", "bf16", "bfloat16", "fp8", "fp8_e4m3", "fp8_ds_mla"})
      .doc(
          "Number format of the latent KV cache; auto is bf16 (f32 in `eval`, which measures against exact "
          "references), "
          "fp8 (all its names) e4m3 latents with one f32 scale per 128 and bf16 rotated keys");
  fields.add("threads", &settings.num_threads)
      .alias("t")
      .range(0, 4096)
      .default_text("one a CPU")
      .doc("Threads for the operations of all ranks together");
  fields.add("step-timeout-ms", &settings.step_timeout_ms)
      .alias("watchdog-timeout-ms")
      .range(1, 86'400'000)
      .unit("ms")
      .doc("Longest wait of a rank for another; then the group ends and names the silent rank");
}

namespace {

void add_scheduling_fields(ConfigFields& fields, ModelSettings& settings) {
  fields.add("disable-radix-cache", &settings.disable_radix_cache)
      .alias("no-enable-prefix-caching")
      .doc("Computes every prompt anew instead of sharing the KV cache of equal beginnings");
  fields.add("enable-mixed-chunk", &settings.enable_mixed_chunk)
      .doc("Prompt chunks run in the same steps as decode tokens; otherwise steps of the two take turns");
  fields.add("prefill-delayer-max-delay-passes", &settings.prefill_delay_steps)
      .range(0, 10'000)
      .unit("steps")
      .doc(
          "While some group decodes, how long new prompts may wait until there is one for every data-parallel group, "
          "so that they slow the same steps down");
  fields.add("priority-aging-steps", &settings.priority_aging_steps)
      .range(1, 1e9)
      .unit("steps")
      .doc("Waiting that makes up for one level of priority");
  fields.add("queue-timeout-ms", &settings.queue_timeout_ms)
      .range(0, 86'400'000)
      .unit("ms")
      .default_text("no bound")
      .doc("Longest wait of a request for its start; then it fails with 408");
}

void add_speculation_fields(ConfigFields& fields, ModelSettings& settings) {
  fields.add("speculative-num-steps", &settings.speculative_num_steps)
      .alias("num-speculative-tokens")
      .range(-1, 7)
      .unit("tokens")
      .default_text("3 if the model has an MTP module")
      .doc("Tokens that the MTP module may guess in a step; 0 switches speculation off. Output does not depend on it");
  fields.add("speculative-adaptive", &settings.speculative_adaptive)
      .doc("Guess as many tokens as pay, by batch size and acceptance; otherwise always --speculative-num-steps");
  fields.add("synthetic-acceptance", &settings.synthetic_acceptance)
      .range(-1, 1)
      .default_text("off")
      .doc("Benchmarks only: guesses count as right with this probability, and the text is not the model's");
}

}  // namespace

void add_sequence_fields(ConfigFields& fields, ModelSettings& settings) {
  fields.add("context-length", &settings.context_length)
      .alias("max-model-len")
      .range(0, 1 << 30)
      .unit("tokens")
      .default_text("the model's max_position_embeddings")
      .doc("Longest prompt and output together");
  fields.add("mem-fraction-static", &settings.mem_fraction_static)
      .alias("gpu-memory-utilization")
      .range(0.01, 1)
      .doc("Share of the available memory that the default KV cache may take");
  fields.add("chunked-prefill-size", &settings.chunked_prefill_size)
      .alias("max-num-batched-tokens")
      .range(0, 1 << 20)
      .unit("tokens")
      .default_text("2048, shared by the groups")
      .doc("Token budget of a step of each data-parallel group; longer prompts run in chunks");
  add_speculation_fields(fields, settings);
}

void add_engine_fields(ConfigFields& fields, ModelSettings& settings) {
  add_sequence_fields(fields, settings);
  fields.add("max-total-tokens", &settings.max_total_tokens)
      .range(0, 1e12)
      .unit("tokens")
      .default_text("16 contexts over all groups, at least one each, as memory allows")
      .doc("KV cache of each data-parallel group, in tokens");
  fields.add("max-running-requests", &settings.max_running_requests)
      .alias("max-num-seqs")
      .range(1, 65536)
      .unit("requests")
      .doc("Requests that run at once in each data-parallel group");
  fields.add("max-queued-requests", &settings.max_queued_requests)
      .range(1, 1e6)
      .unit("requests")
      .doc("Waiting requests; further ones are refused");
  add_scheduling_fields(fields, settings);
}

absl::StatusOr<ModelOptions> model_options(const ModelSettings& settings) {
  ModelOptions options;
  MOESAIC_ASSIGN_OR_RETURN(options.layout, ParallelLayout::make(settings.ep_size, settings.dp_size, settings.tp_size,
                                                                settings.moe_dense_tp_size));
  options.activations = settings.activations == "fp8" ? ActivationMode::kFp8 : ActivationMode::kF32;
  const std::string& kv_dtype = settings.kv_cache_dtype;
  if (kv_dtype == "auto" || kv_dtype == "bf16" || kv_dtype == "bfloat16") options.kv_dtype = DType::kBF16;
  if (kv_dtype.starts_with("fp8")) options.kv_dtype = DType::kE4M3;
  return options;
}

}  // namespace moesaic
