#include "tensor/tensor.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <ostream>

#include "tensor/buffer_memory.h"

namespace moesaic {
namespace {

constexpr int64_t kAlignment = 64;

std::atomic<int64_t> g_live_bytes{0};

int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

Shape::Shape(std::initializer_list<int64_t> dims) : rank_(static_cast<int>(dims.size())) {
  MOESAIC_CHECK_LE(rank_, kMaxRank);
  std::copy(dims.begin(), dims.end(), dims_.begin());
  for (int i = 0; i < rank_; ++i) MOESAIC_CHECK_GE(dims_[i], 0);
}

int64_t Shape::num_elements() const {
  int64_t count = 1;
  for (int i = 0; i < rank_; ++i) count *= dims_[i];
  return count;
}

std::string Shape::to_string() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) text += (i == 0 ? "" : ", ") + std::to_string(dims_[i]);
  return text + "]";
}

std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  return out << shape.to_string();
}

Tensor::Tensor(void* data, DType dtype, Shape shape) : data_(data), dtype_(dtype), shape_(shape) {
  row_stride_ = 1;
  for (int i = 1; i < shape.rank(); ++i) row_stride_ *= shape[i];
}

Tensor Tensor::strided(void* data, DType dtype, int64_t rows, int64_t cols, int64_t row_stride) {
  MOESAIC_CHECK_GE(row_stride, cols);
  Tensor tensor(data, dtype, {rows, cols});
  tensor.row_stride_ = row_stride;
  return tensor;
}

bool Tensor::is_contiguous() const {
  if (rank() == 0 || shape_[0] <= 1) return true;
  return row_stride_ * shape_[0] == num_elements();
}

Tensor Tensor::rows(int64_t begin, int64_t end) const {
  MOESAIC_CHECK(0 <= begin && begin <= end && end <= dim(0));
  Tensor view = *this;
  view.data_ = static_cast<char*>(data_) + begin * row_stride_ * dtype_bytes(dtype_);
  switch (rank()) {
    case 1:
      view.shape_ = {end - begin};
      break;
    case 2:
      view.shape_ = {end - begin, dim(1)};
      break;
    case 3:
      view.shape_ = {end - begin, dim(1), dim(2)};
      break;
    default:
      view.shape_ = {end - begin, dim(1), dim(2), dim(3)};
      break;
  }
  return view;
}

Tensor Tensor::cols(int64_t begin, int64_t end) const {
  MOESAIC_CHECK_EQ(rank(), 2);
  MOESAIC_CHECK(0 <= begin && begin <= end && end <= dim(1));
  Tensor view = *this;
  view.data_ = static_cast<char*>(data_) + begin * dtype_bytes(dtype_);
  view.shape_ = {dim(0), end - begin};
  return view;
}

Buffer::Buffer(int64_t num_bytes) : num_bytes_(num_bytes) {
  MOESAIC_CHECK_GE(num_bytes, 0);
  if (num_bytes == 0) return;
  g_live_bytes.fetch_add(num_bytes, std::memory_order_relaxed);
  data_ = allocate_buffer(num_bytes);
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(num_bytes_, other.num_bytes_);
  return *this;
}

Buffer Buffer::size_only(int64_t num_bytes) {
  Buffer buffer;
  buffer.num_bytes_ = num_bytes;
  return buffer;
}

int64_t Buffer::live_bytes() {
  return g_live_bytes.load(std::memory_order_relaxed);
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  g_live_bytes.fetch_sub(num_bytes_, std::memory_order_relaxed);
  release_buffer(data_, num_bytes_);
}

Arena::Arena(int64_t num_bytes) : buffer_(num_bytes) {
  if (num_bytes > 0) std::memset(buffer_.data(), 0, num_bytes);  // writing makes a page resident
}

Tensor Arena::alloc(DType dtype, Shape shape) {
  const int64_t num_bytes = round_up(shape.num_elements() * dtype_bytes(dtype), kAlignment);
  MOESAIC_CHECK_LE(used_ + num_bytes, buffer_.num_bytes());
  Tensor tensor(static_cast<char*>(buffer_.data()) + used_, dtype, shape);
  used_ += num_bytes;
  peak_ = std::max(peak_, used_);
  return tensor;
}

}  // namespace moesaic
