// Sizes, bytes and single kernels against published figures and hand-written arithmetic.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "cost/all_to_all_cost.h"
#include "cost/embedded_files.h"
#include "cost/kernel_cost.h"
#include "cost/model_catalog.h"
#include "cost/model_size.h"
#include "cost/rank_memory.h"

namespace moesaic {
namespace {

using ::testing::HasSubstr;

Deployment deployment(const std::string& hardware, int ep, int tp = 1) {
  Deployment d;
  d.model = *find_model("deepseek-v3");
  d.hardware = *find_hardware(hardware);
  d.layout = *ParallelLayout::make(ep, 0, tp);
  return d;
}

TEST(ModelSize, PublishedCountsOfDeepseekV3) {
  const ModelConfig model = *find_model("deepseek-v3");
  const ModelSize size(model);
  EXPECT_NEAR(static_cast<double>(size.total()) / 1e9, 671.03, 0.005);
  // Two tokens choose at most 16 distinct experts.
  EXPECT_NEAR(static_cast<double>(size.touched(16)) / 1e9, 57.06, 0.005);
  EXPECT_EQ(size.expert, 3 * 7168 * 2048);
  EXPECT_EQ(size.num_moe_layers, 58);
  EXPECT_EQ(size.num_dense_layers, 3);
  EXPECT_EQ(kv_bytes_per_token(model, false), 70272);
  EXPECT_EQ(latent_row_bytes(model, true), 656);
}

TEST(ModelSize, AnySizesAgainstASumOverLayers) {
  for (const std::string& name : model_names()) {
    const ModelConfig c = *find_model(name);
    const ModelSize size(c);
    int64_t total = 2 * c.vocab_size * c.hidden_size + c.hidden_size;
    for (int64_t layer = 0; layer < c.num_hidden_layers; ++layer) {
      const int64_t q_width = c.num_attention_heads * (c.qk_nope_head_dim + c.qk_rope_head_dim);
      total += c.q_lora_rank > 0 ? c.q_lora_rank * (c.hidden_size + q_width + 1) : c.hidden_size * q_width;
      total += c.hidden_size * (c.kv_lora_rank + c.qk_rope_head_dim) + c.kv_lora_rank;
      total += c.kv_lora_rank * c.num_attention_heads * (c.qk_nope_head_dim + c.v_head_dim);
      total += c.num_attention_heads * c.v_head_dim * c.hidden_size + 2 * c.hidden_size;
      if (layer < c.first_k_dense_replace) {
        total += 3 * c.hidden_size * c.intermediate_size;
      } else {
        total += 3 * c.hidden_size * c.moe_intermediate_size * (c.n_routed_experts + c.n_shared_experts);
        total += c.n_routed_experts * c.hidden_size;
        if (c.topk_method == TopkMethod::kNoauxTc) total += c.n_routed_experts;
      }
    }
    EXPECT_EQ(size.total(), total) << name;
  }
}

TEST(RankMemory, WeightsOfOneNode) {
  const RankMemory memory = plan_rank_memory(deployment("h200", 8), {256, 256});
  double weights = 0;
  for (const PlannedBuffer& buffer : memory.buffers) {
    if (buffer.name == "low-latency all-to-all buffers") break;
    weights += buffer.num_bytes;
  }
  EXPECT_NEAR(weights / 1e9, 100.8, 0.1);  // published: about 100 GB
  double total = 0;
  for (const PlannedBuffer& buffer : memory.buffers) total += buffer.num_bytes;
  EXPECT_DOUBLE_EQ(memory.kv_bytes_free, 141e9 - total);
  EXPECT_EQ(memory.kv_tokens_free, static_cast<int64_t>(memory.kv_bytes_free / 70272));
}

TEST(RankMemory, DoesNotFitOnAnH100Node) {
  const RankMemory memory = plan_rank_memory(deployment("h100", 8), {256, 256});
  EXPECT_LT(memory.kv_bytes_free, 0);
  EXPECT_EQ(memory.kv_tokens_free, 0);
}

// SGLang's article: N_hidden is the dense FFN's hidden layer of 18,432 for each token.
TEST(RankMemory, MemoryOptimalTp) {
  const double params = 3.0 * 7168 * 18432;
  EXPECT_LE(memory_optimal_tp(params, 2048 * 18432, 0), 3.5);
  EXPECT_NEAR(memory_optimal_tp(params, 128 * 18432, 3), 6, 0.5);
  const auto bytes = [&](double tp) { return params / tp + 4 * 128 * 18432 * tp; };
  const double best = memory_optimal_tp(params, 128 * 18432, 3);
  EXPECT_LT(bytes(best), bytes(best * 1.01));
  EXPECT_LT(bytes(best), bytes(best * 0.99));
}

// The bounds of the DeepSeek-V3 paper on hardware: 32 tokens a device, nine copies of 7,000 channels in FP8 and BF16,
// two exchanges a layer, nothing else.
TEST(TheoreticalTpot, AtTheBandwidthOfTheLink) {
  EXPECT_NEAR(theoretical_tpot_seconds(32, 9, 7000, 61, 50) * 1e3, 14.76, 0.005);
  EXPECT_NEAR(theoretical_tpot_seconds(32, 9, 7000, 61, 900) * 1e3, 0.82, 0.005);
}

TEST(AllToAll, NodesOfATokenAgainstEnumeration) {
  const ModelConfig model = *find_model("deepseek-v3");
  // 8 groups, 4 kept, two groups a node: of the 70 choices, 6 use 2 nodes, 48 use 3 and 16 use 4.
  EXPECT_NEAR(nodes_of_token(model, 4), (6.0 * 2 + 48 * 3 + 16 * 4) / 70, 1e-9);
  EXPECT_NEAR(nodes_of_token(model, 1), 1, 1e-9);
  for (const double nodes : {2.0, 4.0, 8.0, 16.0, 18.0}) {
    EXPECT_LE(nodes_of_token(model, nodes), std::min(8.0, nodes) + 1e-9);
    EXPECT_LE(nodes_of_token(*find_model("kimi-k2"), nodes), std::min(8.0, nodes) + 1e-9);
  }
}

// DeepEP's table for 128 tokens: dispatch and combine in microseconds.
TEST(AllToAll, DeepEpLowLatencyTable) {
  const double published[][3] = {{8, 77, 114},   {16, 118, 195},  {32, 155, 273},
                                 {64, 173, 314}, {128, 192, 369}, {256, 194, 360}};
  double sum = 0;
  for (const auto& [ranks, dispatch, combine] : published) {
    const AllToAllTime time = all_to_all_time(deployment("h800", static_cast<int>(ranks)), 128, true);
    EXPECT_NEAR(time.dispatch * 1e6 / dispatch, 1, 0.10) << "EP" << ranks;
    EXPECT_NEAR(time.combine * 1e6 / combine, 1, 0.10) << "EP" << ranks;
    sum += std::abs(time.dispatch * 1e6 / dispatch - 1) + std::abs(time.combine * 1e6 / combine - 1);
  }
  EXPECT_LT(sum / 12, 0.05);
}

TEST(KernelCost, DeepGemmTable) {
  const KernelCost kernels(*find_hardware("h800"));
  // groups, rows of each, n, k, TFLOPS (F208-F235 in data/published_figures.csv).
  const double published[][5] = {
      {1, 64, 2112, 7168, 206},     {1, 64, 24576, 1536, 289},    {1, 64, 32768, 512, 219},
      {1, 64, 7168, 16384, 336},    {1, 64, 4096, 7168, 287},     {1, 64, 7168, 2048, 295},
      {1, 128, 2112, 7168, 352},    {1, 128, 24576, 1536, 535},   {1, 128, 32768, 512, 358},
      {1, 128, 7168, 16384, 645},   {1, 128, 4096, 7168, 533},    {1, 128, 7168, 2048, 510},
      {1, 4096, 2112, 7168, 1009},  {1, 4096, 24576, 1536, 1125}, {1, 4096, 32768, 512, 751},
      {1, 4096, 7168, 16384, 1426}, {1, 4096, 4096, 7168, 1265},  {1, 4096, 7168, 2048, 1168},
      {4, 8192, 4096, 7168, 1346},  {4, 8192, 7168, 2048, 1214},  {8, 4096, 4096, 7168, 1346},
      {8, 4096, 7168, 2048, 1214},  {1, 1024, 4096, 7168, 1233},  {1, 1024, 7168, 2048, 925},
      {2, 512, 4096, 7168, 1040},   {2, 512, 7168, 2048, 916},    {4, 256, 4096, 7168, 932},
      {4, 256, 7168, 2048, 815}};
  double sum = 0;
  for (const auto& [groups, m, n, k, tflops] : published) {
    const double us = 2 * groups * m * n * k / tflops / 1e6;
    const double predicted =
        kernels.gemm({m, static_cast<int64_t>(n), static_cast<int64_t>(k), groups, Precision::kFp8}) * 1e6;
    EXPECT_NEAR(predicted / us, 1, 0.18) << m << " x " << n << " x " << k;
    sum += std::abs(predicted / us - 1);
  }
  EXPECT_LT(sum / 28, 0.06);
}

TEST(KernelCost, MoreWorkTakesLonger) {
  for (const char* hardware : {"h100", "h20", "gb200-nvl72"}) {
    const KernelCost kernels(*find_hardware(hardware));
    double last = 0;
    for (double m = 1; m < 20000; m *= 1.3) {
      const double seconds = kernels.gemm({m, 4096, 7168, 4, Precision::kFp8, true});
      EXPECT_GE(seconds, last * 0.999) << hardware << " m " << m;
      last = seconds;
    }
  }
}

TEST(MeasuredKernels, MeasuredShapesCostWhatWasMeasured) {
  const std::string json = R"([
    {"op": "gemm_dense", "m": 128, "n": 7168, "k": 2048, "dtype": "fp8", "us": 9.5},
    {"op": "gemm_dense", "m": 512, "n": 7168, "k": 2048, "dtype": "e4m3", "us": 21},
    {"op": "gemm_masked", "m": 64, "n": 4096, "k": 7168, "groups": 4, "dtype": "fp8", "us": 70},
    {"op": "mla_decode", "batch": 128, "heads": 128, "q_len": 2, "kv_len": 4096, "dtype": "bf16", "us": 900},
    {"op": "rms_norm", "m": 128, "dtype": "bf16", "us": 3},
    {"op": "expert_rows", "m": 128, "n": 256, "k": 8, "dtype": "i32", "us": 3}])";
  const auto table = MeasuredKernels::parse(json, "table");
  ASSERT_TRUE(table.ok()) << table.status();
  const KernelCost kernels(*find_hardware("h100"), 1.0, table->get());
  const KernelCost formula(*find_hardware("h100"));
  EXPECT_NEAR(kernels.gemm({128, 7168, 2048, 1, Precision::kFp8}) * 1e6, 9.5, 1e-9);
  EXPECT_NEAR(kernels.gemm({512, 7168, 2048, 1, Precision::kFp8}) * 1e6, 21, 1e-9);
  EXPECT_NEAR(kernels.gemm({64, 4096, 7168, 4, Precision::kFp8}) * 1e6, 70, 1e-9);
  EXPECT_NEAR(kernels.mla_decode({128, 128.0 * 2 * 4096, 128.0 * 4096, 512, 64, 1152}) * 1e6, 900, 1e-9);
  const GemmShape between{256, 7168, 2048, 1, Precision::kFp8};
  const double scale = kernels.gemm(between) / formula.gemm(between);
  const double low = 9.5e-6 / formula.gemm({128, 7168, 2048, 1, Precision::kFp8});
  const double high = 21e-6 / formula.gemm({512, 7168, 2048, 1, Precision::kFp8});
  EXPECT_NEAR(scale, (low + high) / 2, 1e-9);  // half-way in log m
  // Shapes that the table does not have cost what the formula says.
  EXPECT_EQ(kernels.gemm({128, 2112, 7168, 1, Precision::kFp8}), formula.gemm({128, 2112, 7168, 1, Precision::kFp8}));
}

// The table that was measured last: each row of an operation that a plan uses costs its own time, and the operations
// that no plan looks at are these.
TEST(MeasuredKernels, TheMeasuredTableIsReadRowByRow) {
  std::filesystem::path newest;
  for (const auto& entry : std::filesystem::directory_iterator(str_cat(MOESAIC_SOURCE_DIR, "/bench/results"))) {
    const std::string name = entry.path().filename();
    if (name.ends_with("-kernels-h200.json") && name > newest.filename().string()) newest = entry.path();
  }
  std::stringstream text;
  text << std::ifstream(newest).rdbuf();
  const auto table = MeasuredKernels::parse(text.str(), newest);
  ASSERT_TRUE(table.ok()) << table.status();
  const KernelCost kernels(*find_hardware("h200"), 1.0, table->get());
  EXPECT_GT((*table)->rows().size(), 100u);
  const auto pairs = [](const MeasuredKernel& row) {
    return row.batch * row.q_len * (row.kv_len - (row.op == "mla_prefill" ? row.q_len / 2 : 0));
  };
  for (const MeasuredKernel& row : (*table)->rows()) {
    double seconds = 0;
    if (row.op == "mla_decode") {
      const bool fp8 = row.dtype == "fp8";
      seconds = kernels.mla_decode({row.heads, pairs(row), row.batch * row.kv_len, 512, 64, fp8 ? 656.0 : 1152.0, fp8});
    } else if (row.op == "mla_prefill") {
      seconds = kernels.mha_prefill({row.heads, pairs(row), 192, 128});
    } else {
      const Precision precision = row.dtype == "fp8" ? Precision::kFp8 : Precision::kBf16;
      seconds = kernels.gemm({row.m, row.n, row.k, row.groups, precision});
    }
    // Attention is planned by its pairs and rows: of batches that agree in both, one stands for all.
    bool is_measured = false;
    for (const MeasuredKernel& other : (*table)->rows()) {
      const bool same_rows = row.op == "mla_prefill" || other.batch * other.kv_len == row.batch * row.kv_len;
      is_measured |= other.op == row.op && other.heads == row.heads && other.dtype == row.dtype && same_rows &&
                     pairs(other) == pairs(row) && std::abs(seconds * 1e6 - other.us) < other.us * 1e-9;
    }
    EXPECT_TRUE(is_measured) << seconds * 1e6 << " instead of " << row.us << " us: " << row.op << " m " << row.m
                             << " n " << row.n << " k " << row.k << " groups " << row.groups << " batch " << row.batch
                             << " heads " << row.heads << " q_len " << row.q_len << " kv_len " << row.kv_len << " "
                             << row.dtype;
  }
  std::set<std::string> unread;
  const auto json = nlohmann::json::parse(text.str());
  for (const auto& row : json["rows"]) unread.insert(row["op"].get<std::string>());
  for (const MeasuredKernel& row : (*table)->rows()) unread.erase(row.op);
  // Small kernels are counted by their bytes. The absorbed k_b and v_b (gemm_batched) are planned in bf16.
  for (const char* op : {"gemm_batched",
                         "mla_decode_plan",
                         "rms_norm",
                         "rms_norm_quantize",
                         "rms_norm_residual_quantize",
                         "quantize",
                         "silu_mul_quantize",
                         "silu_mul_quantize_masked",
                         "gate",
                         "expert_rows",
                         "gather_rows",
                         "gather_latents",
                         "rope_append",
                         "combine",
                         "embedding",
                         "sample_greedy",
                         "sample_all",
                         "sample_top_p",
                         "sample_top_k_top_p",
                         "log_probs",
                         "adjust_logits"}) {
    unread.erase(op);
  }
  EXPECT_TRUE(unread.empty()) << *unread.begin();
}

TEST(MeasuredKernels, ATableIsOfItsDevice) {
  const auto check = [](const std::string& device, const std::string& hardware) {
    const auto table = MeasuredKernels::parse(str_cat(R"({"device": ")", device, R"(", "rows": []})"), "table.json");
    return (*table)->check_device(*find_hardware(hardware), "table.json");
  };
  EXPECT_TRUE(check("NVIDIA H200", "h200").ok());
  EXPECT_TRUE(check("NVIDIA GB200", "gb200-nvl72").ok());
  EXPECT_TRUE(check("", "h100").ok());
  EXPECT_TRUE(check("my own", str_cat(MOESAIC_SOURCE_DIR, "/data/hardware/h100.toml")).ok());
  EXPECT_EQ(check("NVIDIA H200", "h20").message(),
            "table.json: measured on NVIDIA H200, but --hardware says h20; expected a table of that device, or a "
            "hardware file of one's own");
  EXPECT_FALSE(check("CPU, 2 threads", "h100").ok());
}

TEST(MeasuredKernels, BadRowsAreNamed) {
  const auto message = [](const std::string& json) {
    return std::string(MeasuredKernels::parse(json, "t.json").status().message());
  };
  EXPECT_THAT(message("{}"), HasSubstr("array"));
  EXPECT_THAT(message("[3]"), HasSubstr("row 0"));
  EXPECT_THAT(message(R"([{"op": "gemm_dense", "dtype": "fp8", "m": -1, "us": 2}])"), HasSubstr("row 0: m expects"));
  EXPECT_THAT(message(R"([{"op": "gemm_dense", "dtype": "fp8", "m": 1, "us": 2}])"), HasSubstr("m, n, k"));
  EXPECT_THAT(message(R"([{"op": "gemm_dense", "dtype": "fp8", "m": 1, "n": 1, "k": 1}])"), HasSubstr("us above 0"));
}

TEST(Hardware, NamesAndFiles) {
  for (const std::string& name : hardware_names()) EXPECT_TRUE(find_hardware(name).ok()) << name;
  const absl::Status unknown = find_hardware("h10").status();
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("did you mean h100?"));
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("b200, gb200-nvl72, h100, h20, h200, h800"));
  EXPECT_EQ(find_hardware("/nowhere/gpu.toml").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(find_model("deepseek-v4").status().message()), HasSubstr("deepseek-v3"));
}

TEST(Hardware, FilesOfTheUser) {
  const std::string path = ::testing::TempDir() + "gpu.toml";
  const auto read = [&](const std::string& text) {
    std::ofstream(path) << text;
    return find_hardware(path);
  };
  const std::string whole =
      "family = \"other\"\nbf16_tflops = 3.2\nnum_sms = 16\nhbm_gb = 64\nhbm_gb_per_s = 80\nnvlink_gb_per_s = 40\n"
      "nic_gb_per_s = 12.5\ngpus_per_node = 1\nnvlink_domain = 1\n";
  const auto spec = read(whole);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->bf16_tflops, 3.2);
  EXPECT_EQ(spec->fp8_tflops, 0);
  EXPECT_EQ(spec->name, path);
  EXPECT_THAT(std::string(read("family = \"other\"\n").status().message()),
              HasSubstr("the key bf16-tflops is missing"));
  EXPECT_THAT(std::string(read(whole + "hbm_gbs = 1\n").status().message()), HasSubstr(path + ":10: "));
  EXPECT_THAT(std::string(read(whole + "price_per_gpu_hour = -1\n").status().message()), HasSubstr("price"));
}

}  // namespace
}  // namespace moesaic
