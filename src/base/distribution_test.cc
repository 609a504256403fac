#include "base/distribution.h"

#include <gtest/gtest.h>

#include <cmath>

namespace moesaic {
namespace {

TEST(Distribution, PercentilesByHand) {
  const std::vector<double> values = {1, 2, 3, 4};
  EXPECT_DOUBLE_EQ(percentile(values, 0), 1.0);
  EXPECT_DOUBLE_EQ(percentile(values, 25), 1.75);
  EXPECT_DOUBLE_EQ(percentile(values, 50), 2.5);
  EXPECT_DOUBLE_EQ(percentile(values, 90), 3.7);
  EXPECT_DOUBLE_EQ(percentile(values, 100), 4.0);
  EXPECT_DOUBLE_EQ(percentile(std::vector<double>{9.0}, 99), 9.0);
  const Distribution spread = distribution({4, 1, 3, 2}, std::vector<double>{99.0});
  EXPECT_DOUBLE_EQ(spread.mean, 2.5);
  EXPECT_DOUBLE_EQ(spread.median, 2.5);
  EXPECT_DOUBLE_EQ(spread.std, std::sqrt(1.25));
  EXPECT_DOUBLE_EQ(spread.percentiles[0].second, 3.97);
  EXPECT_EQ(distribution({}, std::vector<double>{99.0}).percentiles[0].second, 0.0);
}

}  // namespace
}  // namespace moesaic
