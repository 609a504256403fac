// The kernel table: its JSON read back by a parser, and what is measured.
#include "kernels/kernel_table.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

namespace moesaic {
namespace {

TEST(KernelTable, JsonHoldsEveryField) {
  const KernelTable table{.device = "a \"quoted\" device\\",
                          .clocks = "sm 1 MHz",
                          .rows = {{.op = "gemm_dense",
                                    .m = 1,
                                    .n = 2,
                                    .k = 3,
                                    .groups = 4,
                                    .batch = 5,
                                    .heads = 6,
                                    .q_len = 7,
                                    .kv_len = 8,
                                    .dtype = "e4m3",
                                    .us = 9.25},
                                   {.op = "gate"}}};
  const nlohmann::json json = nlohmann::json::parse(to_json(table));
  EXPECT_EQ(json["device"], table.device);
  EXPECT_EQ(json["clocks"], table.clocks);
  ASSERT_EQ(json["rows"].size(), 2u);
  const nlohmann::json want = {{"op", "gemm_dense"}, {"m", 1},          {"n", 2},     {"k", 3},
                               {"groups", 4},        {"batch", 5},      {"heads", 6}, {"q_len", 7},
                               {"kv_len", 8},        {"dtype", "e4m3"}, {"us", 9.25}};
  EXPECT_EQ(json["rows"][0], want);
  EXPECT_EQ(json["rows"][1]["m"], 0);
  EXPECT_EQ(nlohmann::json::parse(to_json(KernelTable{}))["rows"].size(), 0u);
}

// On a machine that lacks the GPU of its build, the reason instead.
TEST(KernelTable, MeasuresEveryOperationOnce) {
  int lines = 0;
  const auto table = measure_kernel_table({.small = true}, [&](const std::string&) { ++lines; });
  if (!table.ok()) {
    EXPECT_EQ(table.status().code(), absl::StatusCode::kFailedPrecondition) << table.status().message();
    GTEST_SKIP() << table.status().message();
  }
  EXPECT_FALSE(table->device.empty());
  EXPECT_GE(lines, static_cast<int>(table->rows.size()));
  std::set<std::string> ops;
  for (const KernelRow& row : table->rows) {
    EXPECT_GT(row.us, 0.0) << row.op;
    EXPECT_FALSE(row.dtype.empty()) << row.op;
    ops.insert(row.op);
  }
  for (const char* op : {"rms_norm", "quantize", "gate"}) EXPECT_TRUE(ops.contains(op)) << op;
}

}  // namespace
}  // namespace moesaic
