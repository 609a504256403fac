#include "base/strings.h"

#include <gtest/gtest.h>

namespace moesaic {
namespace {

TEST(Strings, CatTakesTextsCharactersAndNumbers) {
  EXPECT_EQ(str_cat("a", std::string("b"), 'c', 1, 2.5, true, int64_t{-3}, 0.1f), "abc12.5true-30.1");
  EXPECT_EQ(str_cat(), "");
}

TEST(Strings, Join) {
  EXPECT_EQ(str_join({}, ", "), "");
  EXPECT_EQ(str_join({"a", "b", "c"}, ", "), "a, b, c");
}

TEST(Strings, ClosestMatch) {
  const std::vector<std::string> names = {"port", "host", "model-path", "tp-size"};
  EXPECT_EQ(closest_match("prot", names), "port");
  EXPECT_EQ(closest_match("ports", names), "port");
  EXPECT_EQ(closest_match("modle-path", names), "model-path");
  EXPECT_EQ(closest_match("model-pth", names), "model-path");
  EXPECT_EQ(closest_match("xyz", names), "");
  EXPECT_EQ(closest_match("", names), "");
  EXPECT_EQ(closest_match("port", {}), "");
}

}  // namespace
}  // namespace moesaic
