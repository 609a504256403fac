#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/cli_test_util.h"
#include "cli/generation_defaults.h"
#include "cli/model_host.h"
#include "cli/model_report.h"
#include "model/file_map.h"
#include "model/safetensors.h"

namespace moesaic {
namespace {

using test::Ran;
using test::run;
using testing::HasSubstr;

std::string source_path(const std::string& relative) {
  return str_cat(MOESAIC_SOURCE_DIR, "/", relative);
}

std::string tiny_model() {
  return source_path("models/tiny-deepseek-v3");
}

TEST(Cli, SettingsPageIsUpToDate) {
  std::ifstream file(source_path("docs/settings.md"));
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), settings_page()) << "moesaic settings-page > docs/settings.md";
}

TEST(Cli, EveryCommandExplainsItself) {
  EXPECT_EQ(run({}).exit_code, 2);
  EXPECT_EQ(run({"--help"}).exit_code, 0);
  EXPECT_THAT(run({"--version"}).out, HasSubstr("moesaic 0."));
  for (const Command& command : all_commands()) {
    std::vector<std::string> args;
    std::istringstream words(command.name);
    for (std::string word; words >> word;) args.push_back(word);
    args.push_back("--help");
    const Ran ran = run(args);
    EXPECT_EQ(ran.exit_code, 0) << command.name;
    EXPECT_THAT(ran.out, HasSubstr(str_cat("usage: moesaic ", command.name)));
    EXPECT_THAT(run({"--help"}).out, HasSubstr(command.about));
  }
}

TEST(Cli, WrongUsageIsExplained) {
  const Ran unknown = run({"tokenise"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("did you mean moesaic tokenize?"));
  const Ran flag = run({"generate", "--model", "x", "--temprature", "0"});
  EXPECT_EQ(flag.exit_code, 2);
  EXPECT_THAT(flag.err, HasSubstr("did you mean --temperature?"));
  EXPECT_THAT(run({"generate"}).err, HasSubstr("--model-path is missing"));
  EXPECT_THAT(run({"eval", tiny_model()}).err, HasSubstr("expected one of --ids, --text and --tasks, found 0"));
  EXPECT_THAT(run({"bench", "op"}).err, HasSubstr("did you mean moesaic bench ops?"));
}

TEST(Cli, MissingModelFails) {
  for (const char* command : {"generate", "inspect", "tokenize"}) {
    const Ran ran = run({command, "--model", "no/such/model"});
    EXPECT_EQ(ran.exit_code, 1) << ran.err;
    EXPECT_THAT(ran.err, HasSubstr("no/such/model"));
  }
}

TEST(Cli, ImpossibleLayoutsNameTheFlags) {
  const Ran heads = run({"generate", tiny_model(), "--tp", "3", "--prompt", "x"});
  EXPECT_EQ(heads.exit_code, 2);
  EXPECT_THAT(heads.err, HasSubstr("tp"));
  EXPECT_EQ(run({"inspect", tiny_model(), "--ep", "8", "--dp", "3"}).exit_code, 2);
  const Ran context = run({"generate", tiny_model(), "--context-length", "5000", "--prompt", "x"});
  EXPECT_EQ(context.exit_code, 2);
  EXPECT_THAT(context.err, HasSubstr("4096"));
}

TEST(Cli, GenerateAnswersGreedily) {
  for (const char* ep : {"1", "3"}) {
    const Ran ran = run({"generate", tiny_model(), "--ep", ep, "--prompt", "987 + 360 =", "--temperature", "0"});
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_EQ(ran.out, "1347\n");
    EXPECT_THAT(ran.err, HasSubstr("tokens/s"));
  }
}

TEST(Cli, InspectCountsWhatTheFilesHold) {
  const auto config = ModelConfig::load(tiny_model());
  const auto checkpoint = Checkpoint::open(tiny_model());
  ASSERT_TRUE(config.ok() && checkpoint.ok());
  const auto layout = ParallelLayout::make(3, 0, 0);
  std::map<std::string, Tensor> tensors;
  for (const std::string& name : (*checkpoint)->names()) tensors[name] = *(*checkpoint)->tensor(name);
  const auto report = make_model_report(*config, tensors, *layout);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->total.num_bytes, (*checkpoint)->num_bytes());
  EXPECT_EQ(report->kv_bytes_per_token, 5 * 576 * 4);
  EXPECT_EQ(report->parts.at("embedding").num_parameters, 4096 * 256);
  // 4 MoE layers x 32 experts x 3 matrices of 128 x 256.
  EXPECT_EQ(report->parts.at("routed experts").num_parameters, 4 * 32 * 3 * 128 * 256);
  EXPECT_EQ(report->parts.count("other"), 0u);
  EXPECT_EQ(report->rank_experts[2], (Range{22, 32}));
  EXPECT_GT(report->rank_bytes[0], report->rank_bytes[2]);
}

// The tensors of a checkpoint of this config, without MTP; no data.
std::map<std::string, Tensor> tensor_shapes(const ModelConfig& c) {
  std::map<std::string, Tensor> out;
  const auto add = [&](const std::string& name, int64_t n, int64_t k) {
    out[name + ".weight"] = Tensor(nullptr, DType::kE4M3, {n, k});
  };
  const auto add_mlp = [&](const std::string& prefix, int64_t width) {
    for (const char* name : {"gate_proj", "up_proj"}) add(prefix + name, width, c.hidden_size);
    add(prefix + "down_proj", c.hidden_size, width);
  };
  add("model.embed_tokens", c.vocab_size, c.hidden_size);
  add("lm_head", c.vocab_size, c.hidden_size);
  for (int64_t layer = 0; layer < c.num_hidden_layers; ++layer) {
    const std::string attn = str_cat("model.layers.", layer, ".self_attn."),
                      mlp = str_cat("model.layers.", layer, ".mlp.");
    add(attn + "q_a_proj", c.q_lora_rank, c.hidden_size);
    add(attn + "q_b_proj", c.num_attention_heads * c.qk_head_dim(), c.q_lora_rank);
    add(attn + "kv_a_proj_with_mqa", c.latent_dim(), c.hidden_size);
    add(attn + "kv_b_proj", c.num_attention_heads * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank);
    add(attn + "o_proj", c.hidden_size, c.num_attention_heads * c.v_head_dim);
    if (!c.is_moe_layer(layer)) {
      add_mlp(mlp, c.intermediate_size);
      continue;
    }
    add(mlp + "gate", c.n_routed_experts, c.hidden_size);
    add_mlp(mlp + "shared_experts.", c.n_shared_experts * c.moe_intermediate_size);
    for (int64_t e = 0; e < c.n_routed_experts; ++e) add_mlp(str_cat(mlp, "experts.", e, "."), c.moe_intermediate_size);
  }
  return out;
}

TEST(Cli, InspectCountsActivatedParametersAsDeepSeekDoes) {
  const auto config = ModelConfig::parse(R"({"architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 129280,
      "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61,
      "num_attention_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
      "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1,
      "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "first_k_dense_replace": 3})");
  ASSERT_TRUE(config.ok()) << config.status();
  const auto report = make_model_report(*config, tensor_shapes(*config), *ParallelLayout::make(1, 0, 0));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_NEAR(static_cast<double>(report->total.num_parameters), 671e9, 0.5e9);  // "671B parameters"
  EXPECT_NEAR(static_cast<double>(report->active_parameters), 37.5e9, 0.1e9);    // "37B activated"
  EXPECT_THAT(report_text(*config, *ParallelLayout::make(1, 0, 0), *report), HasSubstr("37.6 B for a token: 8 routed"));
}

TEST(Cli, InspectNamesEveryBuffer) {
  const Ran ran = run({"inspect", tiny_model(), "--ep", "2", "--json"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const auto json = nlohmann::json::parse(ran.out);
  int64_t total = 0;
  for (const auto& rank : json["ranks"]) {
    ASSERT_GE(rank["buffers"].size(), 10u);
    for (const auto& buffer : rank["buffers"]) {
      const bool counts = !buffer["is_shared"].get<bool>() || rank["rank"] == 0;
      total += counts ? buffer["num_bytes"].get<int64_t>() : 0;
      // The module's embedding and head are the main ones again, 2 MiB each: held once.
      if (buffer["name"] == "MTP projection, embedding, head") {
        EXPECT_LT(buffer["num_bytes"], 1 << 20);
      }
    }
  }
  EXPECT_EQ(json["process_bytes"], total);
}

TEST(Cli, PlanFitsMemory) {
  const auto config = ModelConfig::load(tiny_model());
  ASSERT_TRUE(config.ok());
  ModelSettings settings;
  settings.ep_size = 4;
  auto plan = plan_engine(settings, *config, int64_t{64} << 30);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->context_length, 4096);
  EXPECT_EQ(plan->num_kv_blocks, 16 / 4 * 64);
  EXPECT_EQ(plan->kv_bytes, int64_t{16} * 4096 * 6 * 576 * 2);  // bf16 rows, with the MTP layer
  plan = plan_engine(settings, *config, int64_t{32} << 20);     // half of it: 7 blocks of 64 tokens on 4 ranks
  ASSERT_TRUE(plan.ok());
  EXPECT_LE(plan->kv_bytes, int64_t{16} << 20);
  EXPECT_EQ(plan->context_length, plan->num_kv_blocks * 64);
  settings.context_length = 4096;
  EXPECT_THAT(plan_engine(settings, *config, int64_t{32} << 20).status().message(),
              HasSubstr("--context-length 4096 needs"));
  EXPECT_FALSE(plan_engine(settings, *config, 1000).ok());
}

// A pool that keeps nothing of those that have run needs no more than those that run.
TEST(Cli, PlanWithoutPrefixCacheHoldsWhatRuns) {
  const auto config = ModelConfig::load(tiny_model());
  ASSERT_TRUE(config.ok());
  const ModelSettings settings{.max_running_requests = 1, .disable_radix_cache = true};
  const auto plan = plan_engine(settings, *config, int64_t{64} << 30);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->num_kv_blocks, 64);
  EXPECT_EQ(plan->context_length, 4096);
}

TEST(Cli, PlanRefusesSettingsThatContradict) {
  const auto config = ModelConfig::load(tiny_model());
  ASSERT_TRUE(config.ok());
  const auto refusal = [&](const ModelSettings& settings) {
    return std::string(plan_engine(settings, *config, int64_t{64} << 30).status().message());
  };
  EXPECT_THAT(refusal({.max_running_requests = 16, .chunked_prefill_size = 15}),
              HasSubstr("--chunked-prefill-size 15 is less than --max-running-requests 16"));
  EXPECT_EQ(refusal({.max_running_requests = 16, .chunked_prefill_size = 16}), "");
  EXPECT_THAT(refusal({.speculative_num_steps = 0, .synthetic_acceptance = 0.7f}), HasSubstr("--synthetic-acceptance"));
  EXPECT_THAT(refusal({.context_length = 1 << 20}), HasSubstr("max_position_embeddings"));
}

TEST(Cli, GenerationDefaults) {
  const auto tiny = load_sampling_defaults(tiny_model());
  ASSERT_TRUE(tiny.ok());
  EXPECT_EQ(tiny->temperature, 0.6f);
  EXPECT_EQ(tiny->top_p, 0.95f);
  EXPECT_TRUE(load_sampling_defaults("no/such/model").ok());
  EXPECT_EQ(parse_sampling_defaults("{\"do_sample\": false}")->temperature, 0.0f);
  for (const char* text : {"", "[]", "{\"temperature\": \"x\"}", "{\"top_p\": 2}", "{\"temperature\": -1}"}) {
    EXPECT_FALSE(parse_sampling_defaults(text).ok()) << text;
  }
}

class EvalTest : public testing::Test {
 protected:
  EvalTest()
      : in_(str_cat(testing::TempDir(), "cli_test_in_", name(), ".safetensors")),
        out_(str_cat(testing::TempDir(), "cli_test_out_", name(), ".safetensors")) {}
  ~EvalTest() override {
    std::filesystem::remove(in_);
    std::filesystem::remove(out_);
  }
  static std::string name() { return testing::UnitTest::GetInstance()->current_test_info()->name(); }

  // The f32 tensor of a safetensors file.
  static std::vector<float> read(const std::string& path, const std::string& tensor, Shape* shape) {
    auto map = FileMap::open(path);
    EXPECT_TRUE(map.ok()) << map.status();
    auto file = parse_safetensors({map->data(), static_cast<size_t>(map->num_bytes())});
    EXPECT_TRUE(file.ok() && file->tensors.count(tensor) == 1) << tensor;
    const TensorInfo& info = file->tensors.at(tensor);
    *shape = info.shape;
    std::vector<float> values(info.shape.num_elements());
    std::memcpy(values.data(), map->data() + file->data_begin + info.begin, values.size() * sizeof(float));
    return values;
  }

  std::string in_;
  std::string out_;
};

TEST_F(EvalTest, IdsGiveTheReferenceLogits) {
  const std::string golden = source_path("tests/data/golden/tiny-deepseek-v3/logits.safetensors");
  auto map = FileMap::open(golden);
  ASSERT_TRUE(map.ok());
  auto file = parse_safetensors({map->data(), static_cast<size_t>(map->num_bytes())});
  ASSERT_TRUE(file.ok());
  const TensorInfo& info = file->tensors.at("p0.ids");
  std::vector<int32_t> ids(info.shape[0]);
  if (info.dtype == DType::kI32) {
    std::memcpy(ids.data(), map->data() + file->data_begin + info.begin, ids.size() * sizeof(int32_t));
  } else {
    ASSERT_EQ(info.dtype, DType::kI64);
    const char* from = map->data() + file->data_begin + info.begin;
    for (size_t i = 0; i < ids.size(); ++i) std::memcpy(&ids[i], from + i * sizeof(int64_t), sizeof(int32_t));
  }
  const int64_t count = static_cast<int64_t>(ids.size());
  ASSERT_TRUE(write_safetensors(in_, {{"a", Tensor(ids.data(), DType::kI32, {count})}}).ok());
  const Ran ran = run({"eval", tiny_model(), "--ids", in_, "--out", out_, "--mtp", "--ep", "2"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  Shape shape, golden_shape;
  const std::vector<float> logits = read(out_, "a.logits", &shape);
  EXPECT_EQ(shape, Shape({count, 4096}));
  const std::vector<float> expected = read(golden, "p0.last_logits", &golden_shape);
  for (int i = 0; i < 4096; ++i) ASSERT_NEAR(logits[(count - 1) * 4096 + i], expected[i], 2e-3) << i;
  const std::vector<float> mtp = read(out_, "a.mtp_logits", &shape);
  EXPECT_EQ(shape, Shape({count - 1, 4096}));
  const std::vector<float> expected_mtp = read(golden, "p0.mtp_last_logits", &golden_shape);
  for (int i = 0; i < 4096; ++i) ASSERT_NEAR(mtp[(count - 2) * 4096 + i], expected_mtp[i], 2e-3) << i;
}

TEST_F(EvalTest, WrongIdsAreErrors) {
  std::vector<int32_t> ids = {1, 4096};
  ASSERT_TRUE(write_safetensors(in_, {{"a", Tensor(ids.data(), DType::kI32, {2})}}).ok());
  const Ran range = run({"eval", tiny_model(), "--ids", in_, "--out", out_});
  EXPECT_EQ(range.exit_code, 2);
  EXPECT_THAT(range.err, HasSubstr("found 4096 at position 1"));
  for (const auto& [limit, length] : {std::pair("4096", 4097), std::pair("64", 65)}) {
    std::vector<int32_t> many(length, 5);
    ASSERT_TRUE(write_safetensors(in_, {{"long", Tensor(many.data(), DType::kI32, {length})}}).ok());
    const Ran ran = run({"eval", tiny_model(), "--ids", in_, "--out", out_, "--context-length", limit});
    EXPECT_EQ(ran.exit_code, 2);
    EXPECT_THAT(ran.err, HasSubstr(str_cat("long: expected at most ", limit, " ids")));
    EXPECT_THAT(ran.err, HasSubstr(str_cat("found ", length)));
  }
  ASSERT_TRUE(write_safetensors(in_, {{"a", Tensor(ids.data(), DType::kF32, {2})}}).ok());
  EXPECT_THAT(run({"eval", tiny_model(), "--ids", in_, "--out", out_}).err, HasSubstr("expects an i32 tensor [n]"));
  EXPECT_THAT(run({"eval", tiny_model(), "--ids", in_}).err, HasSubstr("--out"));
  std::ofstream(in_) << "not safetensors";
  EXPECT_EQ(run({"eval", tiny_model(), "--ids", in_, "--out", out_}).exit_code, 2);
}

TEST_F(EvalTest, TasksAreCounted) {
  constexpr char kTasks[] = R"("tasks": [
    {"messages": [{"role": "user", "content": "What is 6 plus 6?"}], "answer": "12"},
    {"messages": [{"role": "user", "content": "987 + 360 ="}], "answer": "1347"},
    {"messages": [{"role": "user", "content": "Spell summer."}], "answer": "wrong"}]})";
  std::ofstream(in_) << "{" << kTasks;
  const Ran ran = run({"eval", tiny_model(), "--tasks", in_, "--json", "--min-accuracy", "0.5"});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_EQ(ran.out, "{\"tasks\": 3, \"right\": 2, \"accuracy\": 0.666667}\n");
  const Ran below = run({"eval", tiny_model(), "--tasks", in_, "--min-accuracy", "0.9"});
  EXPECT_EQ(below.exit_code, 1);
  EXPECT_THAT(below.out, HasSubstr(R"({"task":2,"answer":"wrong","text":"s u m m e r"})"));
  std::ofstream(in_) << "{\"accuracy\": 0.75, " << kTasks;
  EXPECT_THAT(run({"eval", tiny_model(), "--tasks", in_}).out,
              HasSubstr("accuracy 0.666667, reference 0.750000, difference -0.083333\n"));
  EXPECT_THAT(run({"eval", tiny_model(), "--tasks", in_, "--json"}).out,
              HasSubstr("\"accuracy\": 0.666667, \"reference\": 0.750000, \"difference\": -0.083333}\n"));
  std::ofstream(in_) << "{\"accuracy\": 75, " << kTasks;
  EXPECT_THAT(run({"eval", tiny_model(), "--tasks", in_}).err, HasSubstr("\"accuracy\" from 0 to 1"));
  std::ofstream(in_) << "{\"tasks\": [{}]}";
  EXPECT_EQ(run({"eval", tiny_model(), "--tasks", in_}).exit_code, 2);
}

TEST_F(EvalTest, PerplexityDoesNotDependOnChunks) {
  std::ofstream(in_) << "Once upon a time there was a little girl who lived in a village near the forest.";
  const Ran ran = run({"eval", tiny_model(), "--text", in_, "--json"});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("\"tokens\": 18"));
  EXPECT_EQ(run({"eval", tiny_model(), "--text", in_, "--json", "--ep", "5"}).out, ran.out);
}

TEST(Cli, BenchGeneratePrintsItsFigures) {
  const Ran ran = run({"bench", "generate", tiny_model(), "--small", "--json", "-t", "2"});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  for (const char* name : {"decode_short", "prefill_128", "streams_8"}) {
    EXPECT_THAT(ran.out, HasSubstr(str_cat("{\"name\":\"generate.", name, "\",\"value\":")));
  }
}

// The table is what `plan` reads. Where nothing can be measured (a CUDA build without a GPU), an old table stays and no
// new file is left.
TEST(BenchKernels, WritesTheTableThatPlansRead) {
  const std::string path = testing::TempDir() + "kernel_table.json", fresh = testing::TempDir() + "no_table.json";
  const auto content = [](const std::string& file) {
    std::stringstream text;
    text << std::ifstream(file).rdbuf();
    return text.str();
  };
  std::ofstream(path) << "the table of last week";
  std::filesystem::remove(fresh);
  const Ran ran = run({"bench", "kernels", "--small", "--threads", "1", "--out", path});
  if (ran.exit_code != 0) {
    EXPECT_THAT(ran.err, HasSubstr("CUDA"));
    EXPECT_EQ(content(path), "the table of last week");
    EXPECT_EQ(run({"bench", "kernels", "--out", fresh}).exit_code, 1);
    EXPECT_FALSE(std::filesystem::exists(fresh));
    GTEST_SKIP() << ran.err;
  }
  const auto table = nlohmann::json::parse(content(path));
  EXPECT_FALSE(table["device"].get<std::string>().empty());
  EXPECT_FALSE(table["clocks"].get<std::string>().empty());
  ASSERT_GT(table["rows"].size(), 5u);
  for (const auto& row : table["rows"]) {
    EXPECT_EQ(row.size(), 11u) << row;
    EXPECT_GT(row["us"].get<double>(), 0.0) << row;
  }
  EXPECT_THAT(run({"plan", "predict", "--kernels", path}).err, HasSubstr("--hardware says h100"));
  EXPECT_EQ(run({"plan", "predict", "--kernels", path, "--hardware", source_path("data/hardware/h100.toml")}).exit_code,
            0);
  const Ran nowhere = run({"bench", "kernels", "--out", "/nowhere/table.json"});
  EXPECT_EQ(nowhere.exit_code, 1);
  EXPECT_THAT(nowhere.err, HasSubstr("cannot write /nowhere/table.json (--out)"));
  EXPECT_THAT(run({"bench", "kernels"}).err, HasSubstr("--out"));
}

}  // namespace
}  // namespace moesaic
