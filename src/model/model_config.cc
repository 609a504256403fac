#include "model/model_config.h"

#include <algorithm>
#include <cmath>

#include "kernels/ops.h"
#include "model/file_map.h"
#include "model/json_fields.h"

namespace moesaic {
namespace {

constexpr int64_t kMaxConfigBytes = 10 << 20;
// Far above any model; they keep every product of two sizes inside int64.
constexpr int64_t kMaxDim = 1 << 20;
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxExperts = 1 << 16;
constexpr int64_t kMaxPositions = 1 << 28;
constexpr double kMaxFactor = 1e6;

using nlohmann::json;

absl::StatusOr<json> parse_object(std::string_view text, std::string_view where) {
  json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return absl::InvalidArgumentError(str_cat(where, ": not valid JSON"));
  if (!value.is_object()) {
    return absl::InvalidArgumentError(str_cat(where, ": expected a JSON object, found ", describe_json(value)));
  }
  return value;
}

// "DeepseekV3ForCausalLM" from `architectures`, or from model_type where the list is absent.
std::string read_architecture(JsonFields& fields) {
  std::string name;
  if (const json* list = fields.find("architectures")) {
    if (list->is_array() && list->size() == 1 && (*list)[0].is_string()) {
      name = (*list)[0].get<std::string>();
    } else {
      fields.fail(str_cat("field 'architectures': expected a list of one name, found ", describe_json(*list)));
    }
  } else {
    const std::string type = fields.text("model_type");
    name = type == "deepseek_v3" ? "DeepseekV3ForCausalLM" : type == "deepseek_v2" ? "DeepseekV2ForCausalLM" : type;
  }
  if (name != "DeepseekV3ForCausalLM" && name != "DeepseekV2ForCausalLM") {
    fields.fail(
        str_cat("field 'architectures': expected DeepseekV3ForCausalLM or DeepseekV2ForCausalLM, found '", name, "'"));
  }
  return name;
}

void read_sizes(JsonFields& fields, ModelConfig* config) {
  config->vocab_size = fields.integer("vocab_size", 1, kMaxVocab);
  config->hidden_size = fields.integer("hidden_size", 1, kMaxDim);
  config->intermediate_size = fields.integer("intermediate_size", 1, kMaxDim);
  config->num_hidden_layers = fields.integer("num_hidden_layers", 1, kMaxLayers);
  config->num_nextn_predict_layers = fields.integer("num_nextn_predict_layers", 0, kMaxLayers, 0);
  config->num_attention_heads = fields.integer("num_attention_heads", 1, kMaxHeads);
  config->kv_lora_rank = fields.integer("kv_lora_rank", 1, kMaxDim);
  config->qk_nope_head_dim = fields.integer("qk_nope_head_dim", 1, kMaxDim);
  config->qk_rope_head_dim = fields.integer("qk_rope_head_dim", 2, kMaxDim);
  config->v_head_dim = fields.integer("v_head_dim", 1, kMaxDim);
  // null means "no low-rank q"; a missing field does not.
  if (!fields.is_null("q_lora_rank")) config->q_lora_rank = fields.integer("q_lora_rank", 1, kMaxDim);
  config->max_position_embeddings = fields.integer("max_position_embeddings", 1, kMaxPositions, 4096);
  config->rms_norm_eps = static_cast<float>(fields.number("rms_norm_eps", 0.0, 1.0, 1e-6));
  config->attention_bias = fields.boolean("attention_bias", false);
  config->tie_word_embeddings = fields.boolean("tie_word_embeddings", false);
  if (config->qk_rope_head_dim % 2 != 0) {
    fields.fail(str_cat("field 'qk_rope_head_dim': expected an even number, found ", config->qk_rope_head_dim));
  }
  if (const std::string act = fields.text("hidden_act", "silu"); act != "silu") {
    fields.fail(str_cat("field 'hidden_act': expected silu, found '", act, "'"));
  }
}

// Defaults are those of DeepSeek's configuration_deepseek.py of each generation.
void read_experts(JsonFields& fields, bool v3, ModelConfig* config) {
  const bool required = v3 && !fields.is_null("n_routed_experts");
  config->n_routed_experts =
      fields.integer("n_routed_experts", 0, kMaxExperts, required ? std::nullopt : std::optional<int64_t>(0));
  const int64_t default_shared = v3 && !fields.is_null("n_shared_experts") ? 1 : 0;
  config->n_shared_experts = fields.integer("n_shared_experts", 0, kMaxExperts, default_shared);
  config->first_k_dense_replace = fields.integer("first_k_dense_replace", 0, kMaxLayers, v3 ? 3 : 0);
  config->moe_layer_freq = fields.integer("moe_layer_freq", 1, kMaxLayers, 1);
  config->norm_topk_prob = fields.boolean("norm_topk_prob", v3);
  config->routed_scaling_factor =
      static_cast<float>(fields.number("routed_scaling_factor", 0.0, kMaxFactor, v3 ? 2.5 : 1.0));
  const std::string scoring = fields.text("scoring_func", v3 ? "sigmoid" : "softmax");
  if (scoring != "sigmoid" && scoring != "softmax") {
    fields.fail(str_cat("field 'scoring_func': expected sigmoid or softmax, found '", scoring, "'"));
  }
  config->scoring_func = scoring == "sigmoid" ? ScoringFunc::kSigmoid : ScoringFunc::kSoftmax;
  const std::string method = fields.text("topk_method", v3 ? "noaux_tc" : "greedy");
  if (method != "noaux_tc" && method != "group_limited_greedy" && method != "greedy") {
    fields.fail(
        str_cat("field 'topk_method': expected noaux_tc, group_limited_greedy or greedy, found '", method, "'"));
  }
  config->topk_method = method == "noaux_tc" ? TopkMethod::kNoauxTc
                        : method == "greedy" ? TopkMethod::kGreedy
                                             : TopkMethod::kGroupLimitedGreedy;
  if (config->n_routed_experts == 0) return;
  config->moe_intermediate_size = fields.integer("moe_intermediate_size", 1, kMaxDim);
  config->num_experts_per_tok = fields.integer("num_experts_per_tok", 1, kMaxExperts);
  const bool default_groups = v3 && config->topk_method == TopkMethod::kNoauxTc;
  config->n_group = fields.integer("n_group", 1, kMaxExperts, default_groups && !fields.is_null("n_group") ? 8 : 1);
  config->topk_group =
      fields.integer("topk_group", 1, kMaxExperts, default_groups && !fields.is_null("topk_group") ? 4 : 1);
}

void check_experts(const ModelConfig& config, JsonFields& fields) {
  const int64_t experts = config.n_routed_experts;
  if (experts == 0) return;
  if (config.num_experts_per_tok > experts) {
    fields.fail(
        str_cat("num_experts_per_tok ", config.num_experts_per_tok, " is more than n_routed_experts ", experts));
  }
  if (config.topk_method == TopkMethod::kGreedy) return;  // groups play no part
  if (experts % config.n_group != 0) {
    fields.fail(str_cat("n_group ", config.n_group, " does not divide n_routed_experts ", experts));
    return;
  }
  if (config.topk_group > config.n_group) {
    fields.fail(str_cat("topk_group ", config.topk_group, " is more than n_group ", config.n_group));
  }
  const int64_t group_size = experts / config.n_group;
  if (config.num_experts_per_tok > config.topk_group * group_size) {
    fields.fail(str_cat("num_experts_per_tok ", config.num_experts_per_tok, " is more than the ",
                        config.topk_group * group_size, " experts that topk_group ", config.topk_group, " groups of ",
                        group_size, " hold"));
  }
  if (config.topk_method == TopkMethod::kNoauxTc && group_size < 2) {
    fields.fail(str_cat("topk_method noaux_tc scores a group by its two best experts, but n_group ", config.n_group,
                        " leaves one expert per group of n_routed_experts ", experts));
  }
}

// Unless mscale and mscale_all_dim are both given and non-zero, Hugging Face takes m(1) as the magnitude of cos and
// sin. RopeConfig's magnitude is m(mscale) / m(mscale_all_dim); this gives the mscale that makes it m(1).
double implied_mscale(double factor, double mscale_all_dim) {
  const double slope = 0.1 * std::log(factor);
  if (mscale_all_dim == 0.0 || slope == 0.0) return 1.0;
  return ((slope + 1.0) * (slope * mscale_all_dim + 1.0) - 1.0) / slope;
}

std::optional<RopeConfig> read_rope_scaling(JsonFields& scaling, const ModelConfig& config) {
  const std::string type = scaling.text("rope_type", scaling.text("type", ""));
  if (scaling.text("type", type) != type) {
    scaling.fail(
        str_cat("'type' and 'rope_type' contradict each other: '", scaling.text("type", ""), "' and '", type, "'"));
  }
  if (type == "default") return std::nullopt;
  if (type != "yarn") {
    scaling.fail(str_cat("field 'type' (or 'rope_type'): expected yarn, found '", type, "'"));
    return std::nullopt;
  }
  for (const char* name : {"attention_factor", "short_factor", "long_factor"}) {
    if (scaling.has(name)) scaling.fail(str_cat("field '", name, "' is not supported"));
  }
  RopeConfig rope{.dim = config.qk_rope_head_dim, .theta = config.rope_theta};
  rope.factor = scaling.number("factor", 1.0, kMaxFactor);
  rope.original_max_position_embeddings =
      scaling.integer("original_max_position_embeddings", 1, kMaxPositions, config.max_position_embeddings);
  rope.beta_fast = scaling.number("beta_fast", 1e-6, kMaxFactor, 32.0);
  rope.beta_slow = scaling.number("beta_slow", 1e-6, kMaxFactor, 1.0);
  rope.mscale_all_dim = scaling.number("mscale_all_dim", 0.0, kMaxFactor, 0.0);
  rope.mscale = scaling.number("mscale", 0.0, kMaxFactor, 0.0);
  if (rope.mscale == 0.0 || rope.mscale_all_dim == 0.0) {
    rope.mscale = implied_mscale(rope.factor, rope.mscale_all_dim);
  }
  return rope;
}

absl::Status read_rope(JsonFields& fields, ModelConfig* config) {
  config->rope_theta = fields.number("rope_theta", 1.0 + 1e-9, 1e12, 10000.0);
  // transformers 5 writes rope_parameters, also without scaling.
  const char* name = fields.has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  const json* object = fields.find(name);
  if (!object) return absl::OkStatus();
  if (!object->is_object()) {
    fields.fail(str_cat("field '", name, "': expected an object or null, found ", describe_json(*object)));
    return absl::OkStatus();
  }
  JsonFields scaling(*object, str_cat("config.json: ", name));
  if (!fields.has("rope_theta")) {
    config->rope_theta = scaling.number("rope_theta", 1.0 + 1e-9, 1e12, config->rope_theta);
  }
  config->rope_scaling = read_rope_scaling(scaling, *config);
  return scaling.status();
}

absl::Status read_quantization(JsonFields& fields, ModelConfig* config) {
  const json* object = fields.find("quantization_config");
  if (!object) return absl::OkStatus();
  if (!object->is_object()) {
    fields.fail(str_cat("field 'quantization_config': expected an object or null, found ", describe_json(*object)));
    return absl::OkStatus();
  }
  JsonFields quant(*object, "config.json: quantization_config");
  if (const std::string method = quant.text("quant_method"); method != "fp8") {
    quant.fail(str_cat("field 'quant_method': expected fp8, found '", method, "'"));
  }
  if (const std::string format = quant.text("fmt", "e4m3"); format != "e4m3") {
    quant.fail(str_cat("field 'fmt': expected e4m3, found '", format, "'"));
  }
  if (const std::string scheme = quant.text("activation_scheme", "dynamic"); scheme != "dynamic") {
    quant.fail(str_cat("field 'activation_scheme': expected dynamic, found '", scheme, "'"));
  }
  const json* block = quant.find("weight_block_size");
  if (!block || *block != json::array({128, 128})) {
    quant.fail(
        str_cat("field 'weight_block_size': expected [128, 128], found ", block ? describe_json(*block) : "nothing"));
  }
  config->fp8_weights = true;
  return quant.status();
}

// eos_token_id: an integer, a list of them, or null. Ids already known are not repeated.
void read_eos(JsonFields& fields, int64_t vocab_size, std::vector<int32_t>* ids) {
  const json* value = fields.find("eos_token_id");
  if (!value) return;
  // Not copied: copies of deeply nested values would exhaust the stack.
  const size_t num_items = value->is_array() ? value->size() : 1;
  for (size_t i = 0; i < num_items; ++i) {
    const json& item = value->is_array() ? (*value)[i] : *value;
    const bool in_range = item.is_number_integer() &&
                          (item.is_number_unsigned() ? item.get<uint64_t>() < static_cast<uint64_t>(vocab_size)
                                                     : item.get<int64_t>() >= 0 && item.get<int64_t>() < vocab_size);
    if (!in_range) {
      fields.fail(
          str_cat("field 'eos_token_id': expected ids from 0 to ", vocab_size - 1, ", found ", describe_json(item)));
      return;
    }
    const int32_t id = item.get<int32_t>();
    if (std::find(ids->begin(), ids->end(), id) == ids->end()) ids->push_back(id);
  }
}

// Products that buffers and loops use must stay far from 2^31 elements per row.
void check_products(const ModelConfig& config, JsonFields& fields) {
  constexpr int64_t kMaxRow = 1 << 24;
  const int64_t heads = config.num_attention_heads;
  if (heads * (config.qk_head_dim() + config.v_head_dim) > kMaxRow) {
    fields.fail(str_cat("num_attention_heads ", heads, " x (qk_nope_head_dim ", config.qk_nope_head_dim,
                        " + qk_rope_head_dim ", config.qk_rope_head_dim, " + v_head_dim ", config.v_head_dim,
                        ") is more than ", kMaxRow));
  }
  if (config.n_shared_experts * config.moe_intermediate_size > kMaxRow) {
    fields.fail(str_cat("n_shared_experts ", config.n_shared_experts, " x moe_intermediate_size ",
                        config.moe_intermediate_size, " is more than ", kMaxRow));
  }
}

}  // namespace

absl::StatusOr<ModelConfig> ModelConfig::parse(std::string_view config_json) {
  if (static_cast<int64_t>(config_json.size()) > kMaxConfigBytes) {
    return absl::InvalidArgumentError(
        str_cat("config.json: expected at most ", kMaxConfigBytes, " bytes, found ", config_json.size()));
  }
  MOESAIC_ASSIGN_OR_RETURN(const json object, parse_object(config_json, "config.json"));
  JsonFields fields(object, "config.json");
  ModelConfig config;
  config.architecture = read_architecture(fields);
  const bool v3 = config.architecture == "DeepseekV3ForCausalLM";
  read_sizes(fields, &config);
  MOESAIC_RETURN_IF_ERROR(fields.status());
  read_experts(fields, v3, &config);
  MOESAIC_RETURN_IF_ERROR(fields.status());
  check_experts(config, fields);
  check_products(config, fields);
  MOESAIC_RETURN_IF_ERROR(read_rope(fields, &config));
  MOESAIC_RETURN_IF_ERROR(read_quantization(fields, &config));
  config.bos_token_id = static_cast<int32_t>(fields.integer("bos_token_id", 0, config.vocab_size - 1, 0));
  read_eos(fields, config.vocab_size, &config.eos_token_ids);
  MOESAIC_RETURN_IF_ERROR(fields.status());
  return config;
}

absl::StatusOr<ModelConfig> ModelConfig::load(const std::string& model_dir) {
  MOESAIC_ASSIGN_OR_RETURN(const std::string text, read_text_file(model_dir + "/config.json", kMaxConfigBytes));
  absl::StatusOr<ModelConfig> config = parse(text);
  if (!config.ok()) return annotate(config.status(), model_dir);
  const std::string generation_path = model_dir + "/generation_config.json";
  if (!file_exists(generation_path)) return config;
  MOESAIC_ASSIGN_OR_RETURN(const std::string generation_text, read_text_file(generation_path, kMaxConfigBytes));
  MOESAIC_ASSIGN_OR_RETURN(const json generation, parse_object(generation_text, generation_path));
  JsonFields fields(generation, generation_path);
  read_eos(fields, config->vocab_size, &config->eos_token_ids);
  MOESAIC_RETURN_IF_ERROR(fields.status());
  return config;
}

bool ModelConfig::is_moe_layer(int64_t layer) const {
  if (n_routed_experts == 0) return false;
  if (layer >= num_hidden_layers) return true;
  return layer >= first_k_dense_replace && layer % moe_layer_freq == 0;
}

RopeConfig ModelConfig::rope() const {
  return rope_scaling ? *rope_scaling : RopeConfig{.dim = qk_rope_head_dim, .theta = rope_theta};
}

float ModelConfig::softmax_scale() const {
  return static_cast<float>(rope_softmax_factor(rope()) / std::sqrt(static_cast<double>(qk_head_dim())));
}

}  // namespace moesaic
