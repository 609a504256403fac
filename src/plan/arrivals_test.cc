#include "plan/arrivals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace moesaic {
namespace {

TEST(Arrivals, GapsHaveTheirMeanAndSpread) {
  constexpr int64_t kCount = 200'000;
  constexpr double kRate = 50.0;
  for (const double burstiness : {0.5, 1.0, 4.0}) {
    const std::vector<double> times =
        arrival_times({.request_rate = kRate, .burstiness = burstiness, .seed = 7}, kCount);
    double sum = 0.0, squares = 0.0, last = 0.0, above_mean = 0.0;
    for (const double time : times) {
      const double gap = (time - last) * kRate;
      ASSERT_GE(gap, 0.0);
      last = time;
      sum += gap;
      squares += gap * gap;
      above_mean += gap > 1.0 ? 1.0 : 0.0;
    }
    const double mean = sum / kCount;
    const double variance = squares / kCount - mean * mean;
    // A gamma gap has variance 1 / shape; five standard errors of mean and variance.
    EXPECT_THAT(mean, testing::DoubleNear(1.0, 5.0 * std::sqrt(1.0 / burstiness / kCount))) << burstiness;
    const double fourth = (2.0 + 6.0 / burstiness) / (burstiness * burstiness);
    EXPECT_THAT(variance, testing::DoubleNear(1.0 / burstiness, 5.0 * std::sqrt(fourth / kCount))) << burstiness;
    if (burstiness == 1.0) {
      EXPECT_THAT(above_mean / kCount, testing::DoubleNear(std::exp(-1.0), 0.006));
    }
  }
}

TEST(Arrivals, FixedAtOnceAndTheSeed) {
  EXPECT_EQ(arrival_times({.request_rate = 4.0, .burstiness = INFINITY}, 3), (std::vector<double>{0.25, 0.5, 0.75}));
  EXPECT_EQ(arrival_times({}, 2), (std::vector<double>{0.0, 0.0}));
  const ArrivalOptions one{.request_rate = 10, .seed = 1}, two{.request_rate = 10, .seed = 2};
  EXPECT_EQ(arrival_times(one, 100), arrival_times(one, 100));
  EXPECT_NE(arrival_times(one, 100), arrival_times(two, 100));
}

}  // namespace
}  // namespace moesaic
