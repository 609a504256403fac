// Every argument of an operation wrong in turn: it must be refused, by the kernel's name, before anything touches a
// device. The tensors are never read, so these tests need no GPU; where a check were missing, the launch that follows
// would fail without one. For tests alone.
//   const ArgsRules<Fp8GemmArgs> rules("fp8_gemm", fp8_gemm, make, {{.name = "x", .member = &Fp8GemmArgs::x}, ...});
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tensor/tensor.h"

namespace moesaic::cuda::test {

// A tensor at a valid address that is nobody's memory.
inline Tensor nowhere(DType dtype, Shape shape) {
  alignas(128) static char memory[128];
  return {memory, dtype, shape};
}

template <typename Args>
struct TensorRule {
  std::string_view name;
  Tensor Args::*member;
  bool optional = false;       // may be undefined
  bool rows_strided = false;   // a matrix whose rows may lie further apart
  bool crooked = false;        // a matrix that may lie at any address
  bool memory = false;         // only its size counts
  std::vector<int> free_dims;  // sizes that nothing else depends on
  std::vector<DType> other_dtypes;
};

// One more way to be wrong, with the whole message.
template <typename Args>
struct Refusal {
  std::function<void(Args&)> spoil;
  std::string message;
};

template <typename Args>
class ArgsRules {
 public:
  using Operation = absl::Status (*)(cudaStream_t, const Args&);
  ArgsRules(std::string_view kernel, Operation operation, std::function<Args()> make,
            std::vector<TensorRule<Args>> rules)
      : kernel_(kernel), operation_(operation), make_(std::move(make)), rules_(std::move(rules)) {}

  // All that can be wrong with each tensor, then the rest.
  void expect_refusals(const std::vector<Refusal<Args>>& more) const {
    for (const TensorRule<Args>& rule : rules_) expect_tensor_refusals(rule);
    for (const Refusal<Args>& refusal : more) {
      Args args = make_();
      refusal.spoil(args);
      EXPECT_EQ(std::string(refused(args).message()), refusal.message);
    }
  }

 private:
  absl::Status refused(const Args& args) const {
    const absl::Status status = operation_(nullptr, args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status.message();
    return status;
  }

  void expect_refused(const TensorRule<Args>& rule, const Tensor& wrong, const std::string& what) const {
    Args args = make_();
    args.*rule.member = wrong;
    const std::string message(refused(args).message());
    EXPECT_EQ(message.substr(0, kernel_.size() + 2), str_cat(kernel_, ": ")) << rule.name << " with " << what;
    EXPECT_GT(message.size(), kernel_.size() + 10) << rule.name << " with " << what;
  }

  static Shape changed(const Shape& shape, int dim, int64_t by) {
    const auto at = [&](int i) { return shape[i] + (i == dim ? by : 0); };
    switch (shape.rank()) {
      case 1:
        return {at(0)};
      case 2:
        return {at(0), at(1)};
      case 3:
        return {at(0), at(1), at(2)};
      default:
        return {at(0), at(1), at(2), at(3)};
    }
  }
  static Shape deeper(const Shape& shape) {
    if (shape.rank() == 1) return {shape[0], 1};
    if (shape.rank() == 2) return {shape[0], shape[1], 1};
    return {shape[0], shape[1], shape[2], 1};
  }

  void expect_tensor_refusals(const TensorRule<Args>& rule) const {
    const Args good = make_();
    const Tensor& t = good.*rule.member;
    ASSERT_TRUE(t.defined() && t.num_elements() > 0) << rule.name << ": the case must have it";
    ASSERT_LT(t.rank(), Shape::kMaxRank) << rule.name;
    if (!rule.optional) {
      expect_refused(rule, Tensor(), "no tensor");
      expect_refused(rule, Tensor(nullptr, t.dtype(), t.shape()), "a null pointer");
    }
    if (rule.memory) {
      expect_refused(rule, Tensor(t.raw(), t.dtype(), changed(t.shape(), 0, -1)), "less");
      expect_refused(rule, Tensor(t.data<char>() + 4, t.dtype(), t.shape()), "a crooked address");
      return;
    }
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kE4M3, DType::kI32, DType::kI64, DType::kU8}) {
      const auto& others = rule.other_dtypes;
      if (dtype == t.dtype() || std::find(others.begin(), others.end(), dtype) != others.end()) continue;
      expect_refused(rule, Tensor(t.raw(), dtype, t.shape()), std::string(dtype_name(dtype)));
    }
    if (!rule.crooked)
      expect_refused(rule, Tensor(t.data<char>() + dtype_bytes(t.dtype()), t.dtype(), t.shape()), "a crooked address");
    expect_refused(rule, Tensor(t.raw(), t.dtype(), deeper(t.shape())), "a dimension more");
    for (int dim = 0; dim < t.rank(); ++dim) {
      if (std::find(rule.free_dims.begin(), rule.free_dims.end(), dim) != rule.free_dims.end()) continue;
      for (const int64_t by : {1, -1}) {
        expect_refused(rule, Tensor(t.raw(), t.dtype(), changed(t.shape(), dim, by)),
                       str_cat("dimension ", dim, " changed by ", by));
      }
    }
    if (rule.crooked || t.rank() != 2 || t.dim(0) < 2) return;
    const auto strided = [&](int64_t more) {
      return Tensor::strided(t.raw(), t.dtype(), t.dim(0), t.dim(1), t.dim(1) + more);
    };
    expect_refused(rule, strided(1), "rows at crooked addresses");
    if (!rule.rows_strided) expect_refused(rule, strided(16), "rows further apart");
  }

  std::string_view kernel_;
  Operation operation_;
  std::function<Args()> make_;
  std::vector<TensorRule<Args>> rules_;
};

}  // namespace moesaic::cuda::test
