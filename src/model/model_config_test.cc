// config.json: every checkpoint of the tree parses; what is missing, contradictory or absurd is refused by name.
#include "model/model_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "model/file_map.h"

namespace moesaic {
namespace {

using nlohmann::json;

std::string source_path(const std::string& relative) {
  return std::string(MOESAIC_SOURCE_DIR) + "/" + relative;
}

json read_config(const std::string& dir) {
  return json::parse(*read_text_file(source_path(dir) + "/config.json", 1 << 20));
}
json base_config() {
  return read_config("tests/data/micro-deepseek-v3/base");
}

absl::StatusOr<ModelConfig> parse(const json& config) {
  return ModelConfig::parse(config.dump());
}

void expect_refused(std::string_view text, std::string_view word) {
  const auto config = ModelConfig::parse(text);
  ASSERT_FALSE(config.ok()) << "accepted, expected an error about " << word;
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(config.status().message()).find(word), std::string::npos) << config.status();
}

void expect_refused_with(const std::string& field, const json& value, std::string_view word) {
  json config = base_config();
  config[field] = value;
  expect_refused(config.dump(), word);
}

TEST(ModelConfig, EveryCheckpointOfTheTreeParses) {
  int num_parsed = 0;
  for (const char* family : {"tests/data/micro-deepseek-v3", "tests/data/micro-deepseek-v2", "models"}) {
    for (const auto& entry : std::filesystem::directory_iterator(source_path(family))) {
      const auto config = ModelConfig::load(entry.path().string());
      EXPECT_TRUE(config.ok()) << config.status();
      ++num_parsed;
    }
  }
  EXPECT_GE(num_parsed, 16);
}

TEST(ModelConfig, FieldsOfTheDemoCheckpoint) {
  const auto config = ModelConfig::load(source_path("models/tiny-deepseek-v3"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->n_routed_experts, 32);
  EXPECT_EQ(config->num_nextn_predict_layers, 1);
  EXPECT_EQ(config->scoring_func, ScoringFunc::kSigmoid);
  EXPECT_EQ(config->topk_method, TopkMethod::kNoauxTc);
  EXPECT_TRUE(config->fp8_weights);
  EXPECT_EQ(config->qk_head_dim(), 192);
  EXPECT_EQ(config->latent_dim(), 576);
  EXPECT_FALSE(config->is_moe_layer(0));
  EXPECT_TRUE(config->is_moe_layer(1));
  EXPECT_TRUE(config->is_moe_layer(5));
  // mscale equals mscale_all_dim, so cos and sin stay plain and the whole factor goes into the softmax.
  const double m = 0.1 * std::log(4.0) + 1.0;
  EXPECT_NEAR(config->softmax_scale(), m * m / std::sqrt(192.0), 1e-7);
}

TEST(ModelConfig, V2Lite) {
  const auto config = parse(read_config("tests/data/micro-deepseek-v2/v2_lite"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->q_lora_rank, 0);
  EXPECT_EQ(config->topk_method, TopkMethod::kGreedy);
  EXPECT_EQ(config->scoring_func, ScoringFunc::kSoftmax);
  EXPECT_FALSE(config->norm_topk_prob);
  EXPECT_EQ(config->n_shared_experts, 2);
  const double m = 0.1 * 0.707 * std::log(4.0) + 1.0;
  EXPECT_NEAR(config->softmax_scale(), m * m / std::sqrt(48.0), 1e-6);
}

TEST(ModelConfig, GroupShapes) {
  const auto with = [](int experts, int n_group, int topk_group, int k) {
    json config = base_config();
    config["n_routed_experts"] = experts;
    config["n_group"] = n_group;
    config["topk_group"] = topk_group;
    config["num_experts_per_tok"] = k;
    return config;
  };
  for (const auto& [e, g, tg, k] : {std::tuple(8, 1, 1, 2), {12, 1, 1, 8}, {384, 1, 1, 8}, {64, 8, 4, 6}}) {
    const auto config = parse(with(e, g, tg, k));
    EXPECT_TRUE(config.ok()) << config.status();
  }
  expect_refused(with(8, 3, 1, 2).dump(), "n_group 3 does not divide n_routed_experts 8");
  expect_refused(with(8, 4, 5, 2).dump(), "topk_group 5 is more than n_group 4");
  expect_refused(with(8, 4, 1, 3).dump(), "num_experts_per_tok 3 is more than the 2 experts");
  expect_refused(with(8, 8, 4, 2).dump(), "one expert per group");
  expect_refused(with(8, 1, 1, 9).dump(), "num_experts_per_tok 9 is more than n_routed_experts 8");
}

TEST(ModelConfig, MissingFieldsAreNamed) {
  for (const char* field :
       {"vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_hidden_layers",
        "num_attention_heads", "kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim",
        "n_routed_experts", "num_experts_per_tok"}) {
    json config = base_config();
    config.erase(field);
    expect_refused(config.dump(), str_cat("'", field, "'"));
  }
}

TEST(ModelConfig, WrongTypesAndNumbersAreNamed) {
  for (const char* field : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "kv_lora_rank",
                            "qk_rope_head_dim", "n_routed_experts", "num_experts_per_tok", "n_group"}) {
    const std::string word = str_cat("'", field, "'");
    for (const char* value : {"\"64\"", "[64]", "{}", "true", "-1", "0.5", "9223372036854775807", "9223372036854775808",
                              "18446744073709551616", "-9223372036854775808", "1e30"}) {
      expect_refused_with(field, json::parse(value), word);
    }
  }
  expect_refused_with("vocab_size", 0, "'vocab_size'");
  expect_refused_with("qk_rope_head_dim", 15, "even");
  expect_refused_with("norm_topk_prob", 1, "'norm_topk_prob'");
  expect_refused_with("rms_norm_eps", "small", "'rms_norm_eps'");
  expect_refused_with("hidden_act", "gelu", "found 'gelu'");
  expect_refused_with("scoring_func", "tanh", "found 'tanh'");
  expect_refused_with("topk_method", "best", "found 'best'");
  expect_refused_with("architectures", json::array({"LlamaForCausalLM"}), "LlamaForCausalLM");
  expect_refused_with("eos_token_id", 320, "'eos_token_id'");
  expect_refused_with("eos_token_id", json::array({1, -1}), "'eos_token_id'");
  expect_refused_with("eos_token_id", uint64_t{1} << 63, "'eos_token_id'");
  expect_refused_with("bos_token_id", 320, "'bos_token_id'");
}

TEST(ModelConfig, WholeNumbersMayBeWrittenAsFloats) {
  json config = base_config();
  config["hidden_size"] = 64.0;
  const auto parsed = parse(config);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->hidden_size, 64);
}

TEST(ModelConfig, TextThatIsNoConfig) {
  expect_refused("", "not valid JSON");
  expect_refused("[1, 2]", "expected a JSON object");
  expect_refused("{\"vocab_size\": 1", "not valid JSON");
  expect_refused("\xff\xfe", "not valid JSON");
}

// Values nested so deeply that code which walks them recursively would exhaust the stack.
TEST(ModelConfig, DeepNestingIsAnError) {
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  std::string text = base_config().dump();
  text.pop_back();
  for (const char* field : {"hidden_size", "rope_scaling", "architectures", "quantization_config"}) {
    json config = base_config();
    config.erase(field);
    std::string rest = config.dump();
    rest.pop_back();
    expect_refused(str_cat(rest, ", \"", field, "\": ", deep, "}"), field);
  }
  json config = base_config();
  config.erase("eos_token_id");
  std::string rest = config.dump();
  rest.pop_back();
  expect_refused(str_cat(rest, ", \"eos_token_id\": ", deep, "}"), "eos_token_id");
  expect_refused(
      str_cat(text, ", \"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": ", deep, "}}"),
      "weight_block_size");
}

TEST(ModelConfig, Yarn) {
  const auto with = [](json scaling) {
    json config = base_config();
    config["rope_scaling"] = std::move(scaling);
    return config;
  };
  const json plain = {{"type", "yarn"}, {"factor", 40}, {"original_max_position_embeddings", 128}};
  auto config = parse(with(plain));
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_TRUE(config->rope_scaling.has_value());
  EXPECT_EQ(config->rope_scaling->dim, 16);
  EXPECT_EQ(config->rope_scaling->factor, 40.0);
  EXPECT_EQ(config->rope_scaling->beta_fast, 32.0);
  EXPECT_NEAR(config->softmax_scale(), 1.0 / std::sqrt(48.0), 1e-7);  // no mscale_all_dim, no factor

  json newer = plain;
  newer.erase("type");
  newer["rope_type"] = "yarn";
  EXPECT_TRUE(parse(with(newer)).ok());
  EXPECT_FALSE(parse(with({{"type", "default"}}))->rope_scaling.has_value());
  EXPECT_FALSE(parse(with(nullptr))->rope_scaling.has_value());

  const auto refused = [&](const char* field, json value, std::string_view word) {
    json scaling = plain;
    scaling[field] = std::move(value);
    expect_refused(with(scaling).dump(), word);
  };
  refused("type", "linear", "expected yarn, found 'linear'");
  refused("rope_type", "linear", "contradict");
  refused("factor", 0.5, "'factor'");
  refused("factor", nullptr, "'factor'");
  refused("factor", "40", "'factor'");
  refused("original_max_position_embeddings", 0, "'original_max_position_embeddings'");
  refused("mscale", -1, "'mscale'");
  refused("attention_factor", 1.0, "attention_factor");
  expect_refused(with("yarn").dump(), "'rope_scaling'");
}

TEST(ModelConfig, Quantization) {
  const json good = {{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"weight_block_size", {128, 128}}};
  const auto with = [&](const char* field, json value) {
    json config = base_config();
    config["quantization_config"] = good;
    config["quantization_config"][field] = std::move(value);
    return config.dump();
  };
  EXPECT_TRUE(ModelConfig::parse(with("fmt", "e4m3"))->fp8_weights);
  EXPECT_FALSE(parse(base_config())->fp8_weights);
  expect_refused(with("quant_method", "awq"), "found 'awq'");
  expect_refused(with("fmt", "e5m2"), "found 'e5m2'");
  expect_refused(with("weight_block_size", {64, 64}), "'weight_block_size'");
  expect_refused(with("weight_block_size", nullptr), "'weight_block_size'");
  expect_refused(with("activation_scheme", "static"), "found 'static'");
}

}  // namespace
}  // namespace moesaic
