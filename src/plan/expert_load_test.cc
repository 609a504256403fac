#include "plan/expert_load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

#include "comm/expert_placement.h"

namespace moesaic {
namespace {

using ::testing::HasSubstr;

constexpr int kLayers = 58, kExperts = 256;

// Mean over layers of the balancedness of experts in their natural order on `ranks` ranks.
double mean_balancedness(const ExpertLoads& loads, int ranks, std::span<const int32_t> placement, int num_slots) {
  const PlacementShape shape{loads.num_experts, num_slots, ranks};
  double sum = 0;
  for (int i = 0; i < loads.num_layers; ++i) {
    sum += balancedness(
        rank_loads(shape, placement.subspan(static_cast<size_t>(i) * num_slots, num_slots), loads.layer(i)));
  }
  return sum / loads.num_layers;
}

double natural_balancedness(const ExpertLoads& loads, int ranks) {
  std::vector<int32_t> placement;
  for (int i = 0; i < loads.num_layers; ++i) {
    for (int e = 0; e < loads.num_experts; ++e) placement.push_back(e);
  }
  return mean_balancedness(loads, ranks, placement, loads.num_experts);
}

// data/published_figures.csv, F285 to F294: counts of DeepSeek-V3 in the field, 58 layers.
TEST(ExpertLoads, GeneratedSkewHasThePublishedBalancedness) {
  struct Row {
    int ranks;
    double prefill, decode;
  };
  for (const Row& row :
       {Row{8, .540, .581}, Row{16, .456, .504}, Row{32, .384, .434}, Row{64, .302, .358}, Row{128, .210, .267}}) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      EXPECT_NEAR(natural_balancedness(generate_loads(kLayers, kExperts, kPrefillSkew, seed), row.ranks), row.prefill,
                  0.05)
          << "prefill, EP" << row.ranks << ", seed " << seed;
      EXPECT_NEAR(natural_balancedness(generate_loads(kLayers, kExperts, kDecodeSkew, seed), row.ranks), row.decode,
                  0.05)
          << "decode, EP" << row.ranks << ", seed " << seed;
    }
  }
}

// The same file, F300 to F308: the published algorithm with 288 slots, run on what it was planned for and on other
// traffic.
TEST(ExpertLoads, PublishedPlacementOfGeneratedSkewHasThePublishedBalancedness) {
  struct Row {
    int ranks;
    double in, shifted;
  };
  for (const Row& row : {Row{32, .994, .806}, Row{72, .976, .697}, Row{144, .804, .553}}) {
    const ExpertLoads loads = generate_loads(kLayers, kExperts, kPrefillSkew, 1);
    const ExpertLoads other = shift_loads(loads, kPrefillSkew, kOtherTraffic, 2);
    const PlacementShape shape{kExperts, 288, row.ranks};
    std::vector<int32_t> placement;
    for (int i = 0; i < kLayers; ++i) {
      const auto layer = published_placement(shape, loads.layer(i));
      ASSERT_TRUE(layer.ok());
      placement.insert(placement.end(), layer->phy2log.begin(), layer->phy2log.end());
    }
    EXPECT_NEAR(mean_balancedness(loads, row.ranks, placement, 288), row.in, 0.05) << "EP" << row.ranks;
    EXPECT_NEAR(mean_balancedness(other, row.ranks, placement, 288), row.shifted, 0.05) << "EP" << row.ranks;
  }
}

TEST(ExpertLoads, SeedsDecideAndMeansAreOne) {
  const ExpertLoads a = generate_loads(3, 64, kDecodeSkew, 7);
  EXPECT_EQ(a.values, generate_loads(3, 64, kDecodeSkew, 7).values);
  EXPECT_NE(a.values, generate_loads(3, 64, kDecodeSkew, 8).values);
  for (int i = 0; i < 3; ++i) {
    EXPECT_NEAR(std::accumulate(a.layer(i).begin(), a.layer(i).end(), 0.0), 64.0, 1e-9);
  }
  EXPECT_EQ(drift_loads(a, 0.0, 1).values, a.values);
  const ExpertLoads same = shift_loads(a, kDecodeSkew, 1.0, 1);
  for (size_t i = 0; i < a.values.size(); ++i) EXPECT_NEAR(same.values[i], a.values[i], 1e-12);
}

// Standard deviation of log(b / a).
double log_ratio_spread(const ExpertLoads& a, const ExpertLoads& b) {
  double sum = 0, squares = 0;
  for (size_t i = 0; i < a.values.size(); ++i) {
    const double ratio = std::log(b.values[i] / a.values[i]);
    sum += ratio;
    squares += ratio * ratio;
  }
  const auto n = static_cast<double>(a.values.size());
  return std::sqrt(squares / n - sum / n * (sum / n));
}

TEST(ExpertLoads, DriftHasItsSize) {
  const ExpertLoads loads = generate_loads(kLayers, kExperts, kPrefillSkew, 3);
  EXPECT_NEAR(log_ratio_spread(loads, drift_loads(loads, 0.1, 4)), 0.1, 0.003);
  // Var(log b - log a) = 2 (1 - correlation) Var(log a); scaling of layers adds a little.
  const double variance = std::pow(kPrefillSkew.group_sigma, 2) + std::pow(kPrefillSkew.expert_sigma, 2);
  EXPECT_NEAR(log_ratio_spread(loads, shift_loads(loads, kPrefillSkew, 0.9, 4)), std::sqrt(0.2 * variance), 0.03);
}

constexpr CountsShape kSmall{.num_hidden_layers = 3, .first_k_dense_replace = 1, .n_routed_experts = 2};

std::string message(std::string_view text) {
  const auto records = parse_expert_counts(text, "counts.jsonl", kSmall);
  return records.ok() ? str_cat(records->size(), " records") : str_cat(records.status().message());
}

// Layers whose heaviest experts have replicas of equal weight and ranks of uneven slots: packing them without two of
// one on a rank, and as evenly as the published algorithm with two, takes other numbers of replicas.
TEST(ExpertLoads, HardLayersArePackedWithoutStackedReplicas) {
  constexpr ExpertSkew kExtreme{.group_sigma = 1.0, .expert_sigma = 1.0};
  const PlacementShape shape{.num_experts = kExperts, .num_slots = 352, .num_ranks = 144};
  for (const auto& [seed, layer] : {std::pair{57, 32}, {147, 1}, {177, 36}}) {
    const ExpertLoads loads = generate_loads(kLayers, kExperts, kExtreme, seed);
    const auto planned = plan_placement(shape, loads.layer(layer), {}, nullptr);
    ASSERT_TRUE(planned.ok());
    std::set<std::pair<int, int32_t>> seen;
    for (int slot = 0; slot < shape.num_slots; ++slot) {
      const int32_t expert = (*planned)[slot];
      EXPECT_TRUE(expert < 0 || seen.insert({shape.rank_of(slot), expert}).second) << "seed " << seed;
    }
    const auto published = published_placement(shape, loads.layer(layer));
    EXPECT_GE(balancedness(rank_loads(shape, *planned, loads.layer(layer))),
              balancedness(rank_loads(shape, published->phy2log, loads.layer(layer))) * (1 - 1e-9));
  }
}

TEST(ExpertCounts, RecordsAreRead) {
  const auto records = parse_expert_counts(
      "{\"n_routed_experts\":2,\"num_records\":2}\n{\"logical_count\":[[0,0],[1,2],[3,4.5]]}\n\n"
      "{\"logical_count\":[[5,6],[7,8]]}",
      "x", kSmall);
  ASSERT_TRUE(records.ok()) << records.status();
  ASSERT_EQ(records->size(), 2u);
  EXPECT_EQ(records->at(0).values, (std::vector<double>{1, 2, 3, 4.5}));
  EXPECT_EQ(records->at(1).values, (std::vector<double>{5, 6, 7, 8}));
  EXPECT_EQ(records->at(1).num_layers, 2);
}

TEST(ExpertCounts, CutShortFilesAreRefused) {
  const std::string good =
      "{\"num_records\":2}\n{\"logical_count\":[[5,6],[7,8]]}\n{\"logical_count\":[[5,6],[7,8]]}\n";
  EXPECT_EQ(message(good), "2 records");
  for (size_t size = 0; size + 1 < good.size(); ++size) {
    EXPECT_THAT(message(good.substr(0, size)), HasSubstr("cut short")) << size;
  }
  EXPECT_THAT(message(good.substr(0, 60)), HasSubstr("counts.jsonl:3: "));
  EXPECT_THAT(message(good + "{\"logical_count\":[[5,6],[7,8]]}"), HasSubstr("3 records; expected 2"));
}

TEST(ExpertCounts, AnotherModelsFilesAreRefused) {
  EXPECT_THAT(message("{\"logical_count\":[[5,6],[7,8],[1,1],[1,1]]}"),
              HasSubstr("counts.jsonl:1: logical_count has 4 layers: another model's; expected 3 layers or its 2"));
  EXPECT_THAT(message("{\"logical_count\":[[5,6],[7,8]]}\n{\"logical_count\":[[5,6],[7,8,9]]}"),
              HasSubstr("counts.jsonl:2: layer 1 has 3 experts: another model's; expected 2"));
  EXPECT_THAT(message("{\"n_routed_experts\":256}"), HasSubstr("counts.jsonl:1: recorded of another model"));
  EXPECT_THAT(message("{\"logical_count\":[[1,0],[7,8],[1,1]]}"), HasSubstr("layer 0 has 1 tokens and is dense"));
}

TEST(ExpertCounts, BadLinesAreNamed) {
  EXPECT_THAT(message("\nnonsense\n{}"), HasSubstr("counts.jsonl:2: no JSON object"));
  EXPECT_THAT(message("{\"logical_count\":[[5,-6],[7,8]]}"), HasSubstr("layer 0, expert 1 is -6"));
  EXPECT_THAT(message("{\"logical_count\":[[5,\"6\"],[7,8]]}"), HasSubstr("expert 1 is \"6\""));
  EXPECT_THAT(message("{\"logical_count\":[[5,6],[0,0]]}"), HasSubstr("layer 1 has no tokens"));
  EXPECT_THAT(message("{\"logical_count\":7}"), HasSubstr("0 layers"));
  EXPECT_THAT(message("{\"logical_count\":[[5,6],[7,8]]}\n{}"), HasSubstr("counts.jsonl:2: logical_count is missing"));
  EXPECT_THAT(message("{\"num_records\":-1}"), HasSubstr("num_records is -1"));
}

}  // namespace
}  // namespace moesaic
