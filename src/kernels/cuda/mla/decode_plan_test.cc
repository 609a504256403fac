// The planner's invariants: every block of every sequence in one item, items of a part in order, partial results of a
// sequence in consecutive slots, no part longer than the average and one overhead.
#include "kernels/cuda/mla/decode_plan.h"

#include <algorithm>

#include "kernels/cuda/test_util.h"

namespace moesaic::cuda {
namespace {

using test::DeviceTensor;

class MlaDecodePlan : public test::CudaTest {
 public:
  // Returns the number of split sequences, or -1.
  int check(const MlaDecodeShape& shape, const std::vector<int32_t>& kv_lens) {
    const DecodeLayout layout = decode_layout(shape);
    std::vector<int32_t> q_begin(kv_lens.size() + 1);
    for (size_t s = 0; s < kv_lens.size(); ++s) q_begin[s + 1] = q_begin[s] + static_cast<int32_t>(shape.max_q_len);
    const DeviceTensor plan = test::poisoned(DType::kU8, {mla_decode_plan_bytes(shape)});
    const DeviceTensor lens = test::upload(DType::kI32, {shape.num_seqs}, kv_lens);
    const DeviceTensor begins = test::upload(DType::kI32, {shape.num_seqs + 1}, q_begin);
    EXPECT_EQ(mla_decode_plan(stream(), shape, lens, begins, plan), absl::OkStatus());
    std::vector<uint8_t> bytes = test::download<uint8_t>(plan);
    int num_merges = -1;
    check_plan(plan_view(bytes.data(), layout.num_parts), layout, kv_lens, num_merges);
    return num_merges;
  }

 private:
  static int num_blocks(int32_t kv_len) { return (kv_len + 63) / 64; }

  static void check_plan(const DecodePlan& plan, const DecodeLayout& layout, const std::vector<int32_t>& kv_lens,
                         int& num_merges) {
    const int num_seqs = static_cast<int>(kv_lens.size());
    int64_t total = 0, longest = 0;
    for (const int32_t kv_len : kv_lens) total += (num_blocks(kv_len) + 1) / 2 * 2 + layout.item_overhead;
    int seq = 0, block = 0, slot = 0, num_items = 0, slot_begin = 0;
    num_merges = 0;
    for (int p = 0; p < layout.num_parts; ++p) {
      ASSERT_EQ(plan.parts[p].begin, num_items);
      int64_t cost = 0;
      for (; num_items < plan.parts[p].end; ++num_items) {
        const DecodeItem& item = plan.items[num_items];
        ASSERT_EQ(item.seq, seq);
        ASSERT_EQ(item.block_begin, block);
        ASSERT_EQ(item.kv_len, kv_lens[seq]);
        const bool ends = item.block_end == num_blocks(kv_lens[seq]);
        if (!ends) {
          ASSERT_GT(item.block_end, block);
        }
        ASSERT_LE(item.block_end, num_blocks(kv_lens[seq]));
        if (block == 0) slot_begin = slot;
        ASSERT_EQ(item.slot, block == 0 && ends ? -1 : slot++) << "sequence " << seq << ", block " << block;
        if (block > 0 && ends) {
          const DecodeMerge& merge = plan.merges[num_merges++];
          ASSERT_EQ(merge.slot_begin, slot_begin);
          ASSERT_EQ(merge.num_slots, slot - slot_begin);
          ASSERT_EQ(merge.q_begin, item.q_begin);
        }
        cost += item.block_end - block + layout.item_overhead;
        block = ends ? 0 : item.block_end;
        if (ends) ++seq;
      }
      longest = std::max(longest, cost);
    }
    EXPECT_EQ(seq, num_seqs);
    ASSERT_LE(slot, layout.num_slots());
    if (num_merges < layout.num_parts) {
      EXPECT_EQ(plan.merges[num_merges].num_slots, 0);
    }
    EXPECT_LE(longest, (total + layout.num_parts - 1) / layout.num_parts + layout.item_overhead + 2);
  }
};

TEST_F(MlaDecodePlan, EveryBlockOnceInEvenParts) {
  const uint64_t seed = 20261130;
  Rng rng(seed);
  for (const int64_t num_seqs : {1, 2, 31, 32, 33, 128, 700, kMlaMaxSeqs}) {
    for (const int32_t longest : {1, 64, 1000, 20000}) {
      for (const int64_t num_heads : {16, 128}) {
        for (const int num_sms : {1, 7, 132}) {
          SCOPED_TRACE(str_cat("seed ", seed, ", ", num_seqs, " sequences, longest ", longest, ", ", num_heads,
                               " heads, multiprocessors ", num_sms));
          std::vector<int32_t> kv_lens(num_seqs);
          for (int32_t& kv_len : kv_lens) kv_len = static_cast<int32_t>(rng.below(longest + 1));
          ASSERT_GE(check({.num_seqs = num_seqs,
                           .num_heads = num_heads,
                           .max_q_len = 1,
                           .cache_dtype = DType::kBF16,
                           .num_sms = num_sms},
                          kv_lens),
                    0);
        }
      }
    }
  }
}

// Sequences that fill the parts exactly are not cut.
TEST_F(MlaDecodePlan, WholeSequencesStayWhole) {
  const MlaDecodeShape shape{
      .num_seqs = 128, .num_heads = 128, .max_q_len = 1, .cache_dtype = DType::kBF16, .num_sms = 132};
  EXPECT_EQ(check(shape, std::vector<int32_t>(128, 1024)), 0);
}

}  // namespace
}  // namespace moesaic::cuda
