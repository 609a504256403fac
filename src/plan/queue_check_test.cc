// One instance under arrivals: what is known in closed form, and that overload shows.
#include "plan/queue_check.h"

#include <gtest/gtest.h>

#include "cost/model_catalog.h"

namespace moesaic {
namespace {

LayoutCandidate candidate(const OperatingPoint& point, int64_t num_draft = 0) {
  Deployment d;
  d.model = *find_model("deepseek-v3");
  d.hardware = *find_hardware("h100");
  d.layout = *ParallelLayout::make(32, 0, 1);
  d.num_redundant_experts = 32;
  d.num_draft = num_draft;
  d.balancedness = point.phase == Phase::kDecode ? 0.85 : 0.68;
  return *evaluate(d, point);
}

constexpr OperatingPoint kDecode{.phase = Phase::kDecode, .batch = 96, .kv_len = 2200, .acceptance = 0.6};
constexpr OperatingPoint kPrefill{.phase = Phase::kPrefill, .prompt_len = 2000, .chunk_tokens = 8192};

// At so much of the throughput by means.
Traffic share_of(const LayoutCandidate& c, double utilisation, double range_ratio = 0) {
  const double tokens_per_s = c.prediction.tokens_per_s_per_gpu * c.deployment.layout.world_size() * utilisation;
  const bool decode = c.point.phase == Phase::kDecode;
  return {.requests_per_s = tokens_per_s / (decode ? 400 : 2000),
          .input_len = 2000,
          .output_len = 400,
          .range_ratio = range_ratio};
}

QueueFigures figures(const LayoutCandidate& c, const Traffic& share, uint64_t seed = 3) {
  const auto out = check_queue(c, share, 90, seed);
  EXPECT_TRUE(out.ok()) << out.status();
  return out.ok() ? *out : QueueFigures();
}

// Little's law: a group has so many sequences that their step makes the tokens that arrive.
TEST(QueueCheck, DecodeIsAtItsFixedPoint) {
  for (const int64_t num_draft : {0, 1}) {
    const LayoutCandidate c = candidate(kDecode, num_draft);
    for (const double utilisation : {0.3, 0.6, 0.85}) {
      const Traffic share = share_of(c, utilisation);
      Deployment best = c.deployment;
      best.overlap = OverlapMode::kBest;
      OperatingPoint point = c.point;
      double tpot_ms = 0;
      for (point.batch = 1; point.batch <= c.point.batch; ++point.batch) {
        const Prediction p = evaluate(best, point)->prediction;
        tpot_ms = 1e3 / p.tokens_per_s_per_user;
        if (p.tokens_per_s_per_gpu * 32 >= share.requests_per_s * 400) break;
      }
      const QueueFigures f = figures(c, share);
      EXPECT_NEAR(f.p50_ms / tpot_ms, 1, 0.04) << utilisation << ", " << num_draft << " drafts";
      EXPECT_NEAR(f.fill, static_cast<double>(point.batch) / 96, 0.05) << utilisation;
      EXPECT_EQ(f.served_share, 1);
      EXPECT_EQ(f.preempted_share, 0);
      EXPECT_LE(f.p50_ms, f.slo_ms);
      EXPECT_LE(f.slo_ms, f.p99_ms);
    }
  }
}

TEST(QueueCheck, MoreLoadIsNeverFaster) {
  for (const LayoutCandidate& c : {candidate(kDecode), candidate(kPrefill)}) {
    double last = 0;
    for (const double utilisation : {0.2, 0.6, 0.95}) {
      const QueueFigures f = figures(c, share_of(c, utilisation, 0.3));
      EXPECT_GE(f.p99_ms, last * 0.98) << c.label() << " at " << utilisation;
      last = f.p99_ms;
    }
  }
}

TEST(QueueCheck, OverloadIsFound) {
  for (const LayoutCandidate& c : {candidate(kDecode), candidate(kPrefill)}) {
    for (const uint64_t seed : {1, 2}) {
      EXPECT_EQ(figures(c, share_of(c, 0.5), seed).served_share, 1) << c.label();
      EXPECT_LT(figures(c, share_of(c, 1.2), seed).served_share, 0.95) << c.label();
    }
  }
}

// DP groups run in lockstep: where lengths differ, the fullest sets the time, and throughput by means is not reached.
TEST(QueueCheck, LengthsThatDifferSaturateEarlier) {
  const LayoutCandidate c = candidate(kPrefill);
  EXPECT_EQ(figures(c, share_of(c, 0.95)).served_share, 1);
  EXPECT_LT(figures(c, share_of(c, 0.95, 1)).served_share, 1);
}

TEST(QueueCheck, CachedPromptsCostWhatIsFresh) {
  OperatingPoint point = kPrefill;
  point.cached_len = 1024;  // whole blocks
  const LayoutCandidate c = candidate(point);
  Traffic share = share_of(candidate(kPrefill), 0.9);
  share.cached_share = 0.512;
  EXPECT_LT(figures(c, share).p99_ms, figures(candidate(kPrefill), share_of(candidate(kPrefill), 0.9)).p50_ms);
}

TEST(QueueCheck, SameSeedSameFigures) {
  for (const LayoutCandidate& c : {candidate(kDecode, 1), candidate(kPrefill)}) {
    const Traffic share = share_of(c, 0.8, 0.5);
    const QueueFigures a = figures(c, share, 7), b = figures(c, share, 7), other = figures(c, share, 8);
    EXPECT_EQ(a.p50_ms, b.p50_ms);
    EXPECT_EQ(a.p99_ms, b.p99_ms);
    EXPECT_EQ(a.fill, b.fill);
    EXPECT_NE(a.p99_ms, other.p99_ms);
    EXPECT_NEAR(a.p99_ms / other.p99_ms, 1, 0.15);
  }
}

}  // namespace
}  // namespace moesaic
