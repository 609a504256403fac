// Tensor: a view (pointer, dtype, shape, row stride) that owns nothing. Buffer: the owner of 64-byte aligned memory.
// Arena: one Buffer from which the tensors of a step are cut and released together in stack order.
// None is thread-safe; a Tensor is a cheap value.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/check.h"
#include "tensor/dtype.h"

namespace moesaic {

class Shape {
 public:
  static constexpr int kMaxRank = 4;
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims);
  int rank() const { return rank_; }
  int64_t operator[](int i) const { return dims_[i]; }
  int64_t num_elements() const;
  bool operator==(const Shape&) const = default;
  std::string to_string() const;  // "[2, 3]"

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

std::ostream& operator<<(std::ostream& out, const Shape& shape);

class Tensor {
 public:
  Tensor() = default;
  // Contiguous.
  Tensor(void* data, DType dtype, Shape shape);
  // A matrix [rows, cols] whose rows start `row_stride` elements apart.
  static Tensor strided(void* data, DType dtype, int64_t rows, int64_t cols, int64_t row_stride);

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int rank() const { return shape_.rank(); }
  int64_t dim(int i) const { return shape_[i]; }
  // Elements between two entries of dimension 0; equals the product of the other dimensions when contiguous.
  int64_t row_stride() const { return row_stride_; }
  bool is_contiguous() const;
  int64_t num_elements() const { return shape_.num_elements(); }
  int64_t num_bytes() const { return num_elements() * dtype_bytes(dtype_); }
  bool defined() const { return data_ != nullptr; }

  void* raw() const { return data_; }
  template <typename T>
  T* data() const {
    return static_cast<T*>(data_);
  }
  float* f32() const {
    MOESAIC_CHECK_EQ(dtype_, DType::kF32);
    return static_cast<float*>(data_);
  }
  int32_t* i32() const {
    MOESAIC_CHECK_EQ(dtype_, DType::kI32);
    return static_cast<int32_t*>(data_);
  }
  // Pointer to entry `i` of dimension 0.
  template <typename T>
  T* row(int64_t i) const {
    return static_cast<T*>(data_) + i * row_stride_;
  }
  // Entries [begin, end) of dimension 0.
  Tensor rows(int64_t begin, int64_t end) const;
  // Columns [begin, end) of a matrix.
  Tensor cols(int64_t begin, int64_t end) const;

 private:
  void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  Shape shape_;
  int64_t row_stride_ = 0;
};

// Owns memory from the host (later: from a device). Zero-filled. Move-only.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t num_bytes);
  // Only the size of a Buffer, without memory: for plans.
  static Buffer size_only(int64_t num_bytes);
  Buffer(Buffer&& other) noexcept { *this = static_cast<Buffer&&>(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();
  void* data() const { return data_; }
  int64_t num_bytes() const { return num_bytes_; }
  // Bytes of all Buffers of this process. Any thread.
  static int64_t live_bytes();

 private:
  void* data_ = nullptr;
  int64_t num_bytes_ = 0;
};

// Cuts tensors from one Buffer. A Scope gives everything allocated since its construction back.
//   Arena::Scope scope(arena);
//   Tensor x = arena.alloc(DType::kF32, {num_tokens, hidden});
// Running out is a bug of the plan that sized it: CHECK.
class Arena {
 public:
  // All its pages are resident from now on. Left to the steps, each one larger than any before would take new pages:
  // for hours a server's memory would grow as if it leaked, and its largest steps would wait for page faults.
  explicit Arena(int64_t num_bytes);
  Tensor alloc(DType dtype, Shape shape);
  // Where the next tensor will be; release(mark()) gives everything allocated since back.
  int64_t mark() const { return used_; }
  void release(int64_t mark) { used_ = mark; }
  // Everything goes back at once: the start of a new step.
  void reset() { used_ = 0; }
  bool contains(const void* address) const {
    const char* begin = static_cast<const char*>(buffer_.data());
    return address >= begin && address < begin + buffer_.num_bytes();
  }
  int64_t capacity_bytes() const { return buffer_.num_bytes(); }
  int64_t used_bytes() const { return used_; }
  int64_t peak_bytes() const { return peak_; }

  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
    ~Scope() { arena_.release(mark_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    int64_t mark_;
  };

 private:
  Buffer buffer_;
  int64_t used_ = 0;
  int64_t peak_ = 0;
};

}  // namespace moesaic
