// Checkpoints rewritten in a temporary directory: the MTP module shares what it does not store, eh_proj takes the
// embedding first, matrices that are multiplied together may differ in dtype, what is missing or misshapen is named.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include "../golden/golden_util.h"
#include "model/file_map.h"

namespace moesaic::testing {
namespace {

namespace fs = std::filesystem;
using Tensors = std::map<std::string, Tensor>;

constexpr char kMtp[] = "model.layers.5.";
constexpr int64_t kHidden = 256;

// A checkpoint after `edit`, in a directory of its own.
class EditedModel {
 public:
  explicit EditedModel(const std::function<void(Tensors*)>& edit, const std::string& model = kTinyModel) {
    static int next = 0;
    path_ = fs::path(::testing::TempDir()) / str_cat("edited_", getpid(), "_", next++);
    fs::create_directories(path_);
    fs::copy_file(source_path(model) + "/config.json", path_ / "config.json");
    auto original = *Checkpoint::open(source_path(model));
    Tensors tensors;
    for (const std::string& name : original->names()) tensors[name] = *original->tensor(name);
    edit(&tensors);
    const absl::Status status = write_safetensors((path_ / "model.safetensors").string(), tensors);
    EXPECT_TRUE(status.ok()) << status;
  }
  ~EditedModel() { fs::remove_all(path_); }
  std::unique_ptr<RankGroup> load(const RunOptions& options) const {
    return load_group(fs::relative(path_, source_path("")).string(), options);
  }
  absl::Status load_error() const {
    RankGroupOptions options;
    options.model_dir = path_.string();
    options.model = {.num_kv_blocks = 4,
                     .max_tokens_per_step = 16,
                     .max_position = 64,
                     .max_chunks = 2,
                     .max_decode_tokens = 2,
                     .max_logit_rows = 16,
                     .load_mtp = true};
    return RankGroup::load(options).status();
  }

 private:
  fs::path path_;
};

const RunOptions kOptions = {.max_tokens_per_step = 64, .max_position = 128, .max_sequences = 2, .load_mtp = true};

std::vector<int32_t> some_ids() {
  return {5, 99, 1024, 77, 3000, 12, 12, 4095, 8};
}

TEST(MtpLoader, SharesEmbeddingAndHeadThatItDoesNotStore) {
  const std::string embedding = str_cat(kMtp, "embed_tokens.weight"), head = str_cat(kMtp, "shared_head.head.weight");
  const auto logits_of = [](const std::function<void(Tensors*)>& edit) {
    const auto group = EditedModel(edit).load(kOptions);
    return SequenceRunner(*group, kOptions).mtp(some_ids());
  };
  const std::vector<float> with_copies = logits_of([&](Tensors* tensors) {
    tensors->at(embedding) = tensors->at("model.embed_tokens.weight");
    tensors->at(head) = tensors->at("lm_head.weight");
  });
  const std::vector<float> without = logits_of([&](Tensors* tensors) {
    ASSERT_EQ(tensors->erase(embedding), 1u);
    ASSERT_EQ(tensors->erase(head), 1u);
  });
  EXPECT_EQ(with_copies, without);
}

TEST(MtpLoader, NamesWhatIsMissingOrMisshapen) {
  const auto expect_refused = [](const std::function<void(Tensors*)>& edit, const std::string& word) {
    const absl::Status status = EditedModel(edit).load_error();
    EXPECT_FALSE(status.ok()) << word;
    EXPECT_NE(std::string(status.message()).find(word), std::string::npos) << status;
  };
  expect_refused(
      [](Tensors* tensors) {
        tensors->erase("lm_head.weight");
        tensors->erase(str_cat(kMtp, "shared_head.head.weight"));
      },
      "lm_head.weight");
  expect_refused(
      [](Tensors* tensors) {
        tensors->erase("model.embed_tokens.weight");
        tensors->erase(str_cat(kMtp, "embed_tokens.weight"));
      },
      "model.embed_tokens.weight");
  for (const char* name :
       {"model.layers.5.eh_proj.weight", "model.layers.5.enorm.weight", "model.norm.weight",
        "model.layers.2.mlp.experts.31.down_proj.weight", "model.layers.3.self_attn.kv_b_proj.weight_scale_inv"}) {
    expect_refused([&](Tensors* tensors) { ASSERT_EQ(tensors->erase(name), 1u); }, name);
    expect_refused(
        [&](Tensors* tensors) { tensors->at(name) = tensors->at(name).rows(0, tensors->at(name).dim(0) - 1); }, name);
  }
}

// A tensor of the right shape in a type that its place cannot take, or that contradicts its scales.
TEST(Loader, WrongDtypesAreNamed) {
  const std::pair<const char*, DType> kCases[] = {
      {"model.embed_tokens.weight", DType::kE4M3},
      {"model.norm.weight", DType::kI32},
      {"model.layers.1.mlp.gate.e_score_correction_bias", DType::kI64},
      {"model.layers.1.mlp.experts.3.up_proj.weight", DType::kU8},
      {"model.layers.1.mlp.experts.3.up_proj.weight", DType::kBF16},
      {"model.layers.0.self_attn.o_proj.weight_scale_inv", DType::kBF16},
  };
  for (const auto& [name, dtype] : kCases) {
    std::vector<char> storage;
    const absl::Status status = EditedModel([&, name = name, dtype = dtype](Tensors* tensors) {
                                  Tensor& tensor = tensors->at(name);
                                  storage.assign(tensor.num_elements() * dtype_bytes(dtype), 0);
                                  tensor = Tensor(storage.data(), dtype, tensor.shape());
                                }).load_error();
    const std::string place = std::string(name).substr(0, std::string(name).find(".weight"));
    EXPECT_FALSE(status.ok()) << name;
    EXPECT_NE(std::string(status.message()).find(place), std::string::npos) << status;
  }
}

// Every size in config.json, changed against what the checkpoint holds, is refused: nothing crashes, nothing is
// guessed.
TEST(Loader, SizesThatContradictTheCheckpointAreRefused) {
  const fs::path source = source_path("tests/data/micro-deepseek-v3/base");
  const fs::path dir = fs::path(::testing::TempDir()) / str_cat("contradiction_", getpid());
  fs::create_directories(dir);
  fs::create_symlink(source / "model.safetensors", dir / "model.safetensors");
  const std::string text = *read_text_file((source / "config.json").string(), 1 << 20);
  const auto original = nlohmann::json::parse(text);
  RankGroupOptions options;
  options.model_dir = dir.string();
  options.model = {.num_kv_blocks = 2,
                   .max_tokens_per_step = 8,
                   .max_position = 64,
                   .max_chunks = 1,
                   .max_decode_tokens = 1,
                   .max_logit_rows = 8};
  for (const char* field :
       {"vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_attention_heads",
        "kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "n_routed_experts",
        "n_shared_experts", "first_k_dense_replace"}) {
    const int64_t value = original[field];
    for (const int64_t wrong : {int64_t{0}, value - 1, value + 1, 2 * value, value / 2, int64_t{1} << 16}) {
      if (wrong == value) continue;
      auto config = original;
      config[field] = wrong;
      std::ofstream(dir / "config.json") << config;
      const absl::Status status = RankGroup::load(options).status();
      EXPECT_FALSE(status.ok()) << field << " " << wrong;
      EXPECT_GT(status.message().size(), 20u) << status;
    }
  }
  for (const char* change :
       {R"({"q_lora_rank": null})", R"({"topk_method": "greedy"})", R"({"n_routed_experts": null})",
        R"({"tie_word_embeddings": "yes"})", R"({"moe_layer_freq": 2})"}) {
    auto config = original;
    config.update(nlohmann::json::parse(change));
    std::ofstream(dir / "config.json") << config;
    EXPECT_FALSE(RankGroup::load(options).ok()) << change;
  }
  std::ofstream(dir / "config.json") << original;
  EXPECT_TRUE(RankGroup::load(options).ok());
  const fs::path fp8 = source_path("tests/data/micro-deepseek-v3/fp8_odd");
  fs::remove(dir / "model.safetensors");
  fs::create_symlink(fp8 / "model.safetensors", dir / "model.safetensors");
  auto unscaled = nlohmann::json::parse(*read_text_file((fp8 / "config.json").string(), 1 << 20));
  unscaled.erase("quantization_config");
  std::ofstream(dir / "config.json") << unscaled;
  EXPECT_NE(std::string(RankGroup::load(options).status().message()).find("quantization_config"), std::string::npos);
  fs::remove_all(dir);
}

TEST(Loader, AModelWithoutExpertsIsDense) {
  const fs::path source = source_path("tests/data/micro-deepseek-v3/all_dense");
  const fs::path dir = fs::path(::testing::TempDir()) / str_cat("dense_", getpid());
  fs::create_directories(dir);
  fs::create_symlink(source / "model.safetensors", dir / "model.safetensors");
  auto config = nlohmann::json::parse(*read_text_file((source / "config.json").string(), 1 << 20));
  config["n_routed_experts"] = nullptr;
  std::ofstream(dir / "config.json") << config;
  const std::vector<int32_t> ids = {5, 9, 24, 7, 30, 12, 12, 8};
  std::vector<std::vector<float>> logits;
  for (const int ep_size : {1, 2}) {
    const RunOptions options = {.layout = *ParallelLayout::make(ep_size, 0, 1),
                                .max_tokens_per_step = 64,
                                .max_position = 128,
                                .max_sequences = 2};
    for (const fs::path& model : {source, dir}) {
      const auto group = load_group(fs::relative(model, source_path("")).string(), options);
      logits.push_back(SequenceRunner(*group, options).prefill(ids));
      EXPECT_EQ(logits.back(), logits.front()) << model << " EP" << ep_size;
    }
  }
  fs::remove_all(dir);
}

// The matrix as f32; with the scales of its 128x128 blocks if it has some.
std::vector<float> dequantised(const Tensors& tensors, const std::string& name) {
  const Tensor& weight = tensors.at(name);
  const int64_t n = weight.dim(0), k = weight.dim(1);
  std::vector<float> out(n * k);
  for (int64_t i = 0; i < n * k; ++i) {
    if (weight.dtype() == DType::kE4M3) {
      const Tensor& scales = tensors.at(name + "_scale_inv");
      out[i] = e4m3_to_f32(weight.data<uint8_t>()[i]) * scales.row<float>(i / k / 128)[i % k / 128];
    } else {
      out[i] = bf16_to_f32(weight.data<uint16_t>()[i]);
    }
  }
  return out;
}

TEST(Loader, ProjectionsOfTheInputMayDifferInDtype) {
  const RunOptions options = {.max_tokens_per_step = 64, .max_position = 128, .max_sequences = 2};
  const std::pair<std::string, std::vector<std::string>> kCases[] = {
      {kTinyModel, {"q_a_proj", "kv_a_proj_with_mqa"}},                                // FP8
      {"tests/data/micro-deepseek-v3/attn_bias", {"q_a_proj", "kv_a_proj_with_mqa"}},  // the biases are split too
      {"tests/data/micro-deepseek-v2/v2_lite", {"q_proj", "kv_a_proj_with_mqa"}},
  };
  for (const auto& [model, projections] : kCases) {
    const std::vector<int32_t> ids = {5, 9, 24, 7, 30, 12, 12, 8};
    const auto original = load_group(model, options);
    const std::vector<float> expected = SequenceRunner(*original, options).prefill(ids);
    for (const std::string& projection : projections) {
      SCOPED_TRACE(str_cat(model, " ", projection));
      std::vector<std::vector<float>> storage;
      const EditedModel edited(
          [&](Tensors* tensors) {
            for (auto& [name, tensor] : *tensors) {
              if (name.find(str_cat(".", projection, ".weight")) == std::string::npos || name.ends_with("_inv"))
                continue;
              storage.push_back(dequantised(*tensors, name));
              tensor = Tensor(storage.back().data(), DType::kF32, tensor.shape());
            }
            std::erase_if(*tensors, [&](const auto& entry) {
              return entry.first.find(str_cat(".", projection, ".weight_scale_inv")) != std::string::npos;
            });
          },
          model);
      ASSERT_FALSE(storage.empty());
      const auto group = edited.load(options);
      const std::vector<float> logits = SequenceRunner(*group, options).prefill(ids);
      ASSERT_EQ(logits.size(), expected.size());
      EXPECT_LT(max_abs_difference(logits.data(), expected.data(), static_cast<int64_t>(logits.size())), 1e-3f);
    }
  }
}

// MTP logits for hidden states filled with `value`, with half of eh_proj's columns zeroed.
std::vector<float> mtp_logits(RankGroup& group, float value) {
  const std::vector<int32_t> ids = some_ids(), rows = {0, 4, 8}, block_table = {0, 1, 2};
  const int64_t n = static_cast<int64_t>(ids.size());
  std::vector<float> hidden(n * kHidden);
  for (size_t i = 0; i < hidden.size(); ++i) hidden[i] = value + static_cast<float>(i % 7) * (value - 2.0f);
  const SequenceChunk chunk = {
      .num_tokens = static_cast<int32_t>(n), .is_prefill = true, .block_table = block_table.data()};
  ForwardResult result;
  const absl::Status status =
      group.model(0).forward_mtp(group.context(0), {.token_ids = ids, .chunks = {&chunk, 1}, .logit_rows = rows},
                                 Tensor(hidden.data(), DType::kF32, {n, kHidden}), ids, &result);
  EXPECT_TRUE(status.ok()) << status;
  return {result.logits.f32(), result.logits.f32() + result.logits.num_elements()};
}

TEST(MtpLoader, EhProjTakesTheEmbeddingFirst) {
  std::vector<char> storage;
  const auto without_half = [&](int64_t half) {
    return EditedModel([&](Tensors* tensors) {
      Tensor& weight = tensors->at("model.layers.5.eh_proj.weight");
      ASSERT_EQ(weight.shape(), Shape({kHidden, 2 * kHidden}));
      const auto* bytes = static_cast<const char*>(weight.raw());
      storage.assign(bytes, bytes + weight.num_bytes());
      const int64_t half_bytes = kHidden * dtype_bytes(weight.dtype());
      for (int64_t row = 0; row < kHidden; ++row) {
        std::memset(&storage[row * 2 * half_bytes + half * half_bytes], 0, half_bytes);
      }
      weight = Tensor(storage.data(), weight.dtype(), weight.shape());
    });
  };
  const auto embedding_only = without_half(1).load(kOptions);
  EXPECT_EQ(mtp_logits(*embedding_only, 1.0f), mtp_logits(*embedding_only, -3.0f));
  const auto hidden_only = without_half(0).load(kOptions);
  EXPECT_NE(mtp_logits(*hidden_only, 1.0f), mtp_logits(*hidden_only, -3.0f));
}

}  // namespace
}  // namespace moesaic::testing
