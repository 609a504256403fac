// Checkpoint: the safetensors files of a Hugging Face directory, memory-mapped and read-only. Tensors are views into
// the map and valid as long as the Checkpoint lives. Thread-safe after open(). Hostile files give errors, never a
// crash.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tensor/tensor.h"

namespace moesaic {

struct TensorInfo {
  DType dtype;
  Shape shape;
  int64_t begin = 0;  // bytes from the start of the data section
  int64_t end = 0;
};

// The JSON header of a safetensors file: name -> info. `data_bytes` is the size of the data section. Errors: bad JSON,
// repeated tensors or fields, unknown dtype, offsets that are negative, reversed, overlap, leave the data or disagree
// with shape x dtype.
absl::StatusOr<std::map<std::string, TensorInfo>> parse_safetensors_header(std::string_view header_json,
                                                                           int64_t data_bytes);

class Checkpoint {
 public:
  // Reads model.safetensors.index.json, or the only *.safetensors file. Errors name a missing shard, a tensor that the
  // index promises and the shard lacks, a file shorter than its header says.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> open(const std::string& model_dir);
  ~Checkpoint();

  bool contains(std::string_view name) const;
  // Error NOT_FOUND names the tensor.
  absl::StatusOr<Tensor> tensor(std::string_view name) const;
  // As above, and its shape must be `shape`.
  absl::StatusOr<Tensor> tensor(std::string_view name, const Shape& shape) const;
  // Whether both exist with the same dtype, shape and bytes. Reads them once however often it is asked, and gives their
  // pages back.
  bool same_bytes(const std::string& name, const std::string& other) const;
  std::vector<std::string> names() const;  // sorted
  // Names that tensor() was never asked for, sorted: after loading, what the model has no place for.
  std::vector<std::string> unread() const;
  int64_t num_bytes() const;  // of all tensors
  // Tells the kernel that the pages of this tensor are no longer needed.
  void release(const Tensor& tensor) const;

 private:
  struct Impl;
  explicit Checkpoint(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Writes a safetensors file (tests, `eval --out`). Tensors are contiguous.
absl::Status write_safetensors(const std::string& path, const std::map<std::string, Tensor>& tensors);

}  // namespace moesaic
