// ArgsCheck: the refusals of the CUDA operations: the first argument that does not fit gives a message that names the
// kernel and what it was made for. Before any device work, so that tests need no GPU. Nothing is formatted while
// everything fits.
//   ArgsCheck check("rms_norm");
//   check.matrix("x", args.x, DType::kBF16, m, n).require(n % 8 == 0, "n divisible by 8");
//   MOESAIC_RETURN_IF_ERROR(check.status());
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "tensor/tensor.h"

namespace moesaic::cuda {

class ArgsCheck {
 public:
  explicit ArgsCheck(std::string_view kernel) : kernel_(kernel) {}

  // A contiguous tensor of this type and shape; 16-byte aligned, not null.
  ArgsCheck& tensor(std::string_view name, const Tensor& t, DType dtype, const Shape& shape) {
    if (!matches(t, dtype, shape)) {
      fail(str_cat("expected ", name, " ", dtype_name(dtype), " ", shape.to_string(), ", got ", describe(t)));
    } else if (t.num_elements() > 0 && !t.is_contiguous()) {
      fail(str_cat(name, " has rows ", t.row_stride(), " elements apart, expected a contiguous tensor"));
    } else {
      require_aligned(name, t, 0);
    }
    return *this;
  }

  // A matrix whose rows may be strided; rows start at 16-byte boundaries.
  ArgsCheck& matrix(std::string_view name, const Tensor& t, DType dtype, int64_t rows, int64_t cols) {
    if (matches(t, dtype, {rows, cols})) {
      require_aligned(name, t, rows > 1 ? t.row_stride() * dtype_bytes(dtype) : 0);
      return *this;
    }
    fail(str_cat("expected ", name, " ", dtype_name(dtype), " ", Shape{rows, cols}.to_string(), ", got ", describe(t)));
    return *this;
  }

  // Rows of i32 that may be strided, in any number of columns.
  ArgsCheck& table(std::string_view name, const Tensor& t, int64_t rows) {
    if (!t.defined() || t.dtype() != DType::kI32 || t.rank() != 2 || t.dim(0) != rows) {
      fail(str_cat("expected ", name, " i32 [", rows, ", any], got ", describe(t)));
    }
    return *this;
  }

  // Memory of at least this size that has no shape, 16-byte aligned.
  ArgsCheck& memory(std::string_view name, const Tensor& t, int64_t num_bytes) {
    if (!t.defined() || t.num_bytes() < num_bytes) {
      fail(str_cat("expected ", name, " of at least ", num_bytes, " bytes, got ", describe(t)));
    } else {
      require_aligned(name, t, 0);
    }
    return *this;
  }

  // A limit of the kernel.
  ArgsCheck& require(bool holds, std::string_view limit) {
    if (!holds) fail(str_cat("made for ", limit));
    return *this;
  }

  // The same for a size, which the message names.
  ArgsCheck& size(std::string_view name, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most) fail(str_cat(name, " ", value, ", made for ", least, " to ", most));
    return *this;
  }
  ArgsCheck& divisible(std::string_view name, int64_t value, int64_t unit) {
    if (value < unit || value % unit != 0) fail(str_cat(name, " ", value, ", made for multiples of ", unit));
    return *this;
  }

  bool ok() const { return message_.empty(); }

  absl::Status status() const { return message_.empty() ? absl::OkStatus() : absl::InvalidArgumentError(message_); }

 private:
  static bool matches(const Tensor& t, DType dtype, const Shape& shape) {
    return t.dtype() == dtype && t.shape() == shape && (t.defined() || shape.num_elements() == 0);
  }
  static std::string describe(const Tensor& t) {
    return t.defined() ? str_cat(dtype_name(t.dtype()), " ", t.shape().to_string()) : std::string("nothing");
  }
  void require_aligned(std::string_view name, const Tensor& t, int64_t row_bytes) {
    if (reinterpret_cast<uintptr_t>(t.raw()) % 16 != 0 || row_bytes % 16 != 0) {
      fail(str_cat(name, ": rows are not 16-byte aligned"));
    }
  }
  void fail(std::string_view message) {
    if (message_.empty()) message_ = str_cat(kernel_, ": ", message);
  }

  std::string_view kernel_;
  std::string message_;
};

}  // namespace moesaic::cuda
