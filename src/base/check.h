// MOESAIC_CHECK*: a broken invariant of our own code. Active in every build: prints file, line, condition, both values
// and a stack, then aborts. Never used on input from users or files: those get a Status (base/status.h).
//
//   MOESAIC_CHECK(block.ref_count > 0) ;
//   MOESAIC_CHECK_EQ(x.dim(1), w.k());
#pragma once

#include <sstream>
#include <string>

namespace moesaic::internal {

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& values);

template <typename A, typename B>
[[noreturn]] void check_op_failed(const char* file, int line, const char* condition, const A& a, const B& b) {
  std::ostringstream values;
  values << a << " against " << b;
  check_failed(file, line, condition, values.str());
}

}  // namespace moesaic::internal

#define MOESAIC_CHECK(condition)                                                        \
  do {                                                                                  \
    if (!(condition)) [[unlikely]]                                                      \
      ::moesaic::internal::check_failed(__FILE__, __LINE__, #condition, std::string()); \
  } while (false)

#define MOESAIC_CHECK_OP(a, op, b)                                                                     \
  do {                                                                                                 \
    const auto& check_a_ = (a);                                                                        \
    const auto& check_b_ = (b);                                                                        \
    if (!(check_a_ op check_b_)) [[unlikely]]                                                          \
      ::moesaic::internal::check_op_failed(__FILE__, __LINE__, #a " " #op " " #b, check_a_, check_b_); \
  } while (false)

#define MOESAIC_CHECK_EQ(a, b) MOESAIC_CHECK_OP(a, ==, b)
#define MOESAIC_CHECK_NE(a, b) MOESAIC_CHECK_OP(a, !=, b)
#define MOESAIC_CHECK_LT(a, b) MOESAIC_CHECK_OP(a, <, b)
#define MOESAIC_CHECK_LE(a, b) MOESAIC_CHECK_OP(a, <=, b)
#define MOESAIC_CHECK_GT(a, b) MOESAIC_CHECK_OP(a, >, b)
#define MOESAIC_CHECK_GE(a, b) MOESAIC_CHECK_OP(a, >=, b)
