// TensorReader: reads named tensors of a checkpoint into the forms that the model keeps, with shape checks, scales and
// biases found by name, and pages given back afterwards. One loading thread. Private to model/.
#pragma once

#include <string>
#include <vector>

#include "model/weights.h"

namespace moesaic {

class TensorReader {
 public:
  explicit TensorReader(const LoadArgs& args)
      : checkpoint_(*args.checkpoint),
        fp8_weights_(args.config->fp8_weights),
        sizes_only_(args.sizes_only),
        progress_(args.progress) {}

  // A part of a linear layer's weight: rows and columns of NAME.weight, whose whole shape must be [n, k].
  struct Part {
    std::string name;  // without ".weight"
    int64_t n;
    int64_t k;
    Range rows;
    Range cols;
    bool transpose = false;
    bool has_bias = false;
  };
  static Part whole(std::string name, int64_t n, int64_t k) { return {std::move(name), n, k, {0, n}, {0, k}}; }

  // Whether two parts may be stacked in one packed weight. True too where one is missing: reading it names it.
  bool same_dtype(const Part& a, const Part& b) const;
  // One packed weight from parts stacked along the rows.
  absl::StatusOr<PackedWeight> weight(const std::vector<Part>& parts) const;
  // NAME as f32, shape [n].
  absl::StatusOr<OwnedTensor> vector(const std::string& name, int64_t n) const;
  // Biases of the parts, stacked. A part with `has_bias` must have one, the others must not (zeros stand for theirs);
  // undefined if none has.
  absl::StatusOr<OwnedTensor> bias(const std::vector<Part>& parts) const;
  // NAME.weight [n, k] as it is stored (bf16 or f32), copied.
  absl::StatusOr<OwnedTensor> table(const std::string& name, int64_t n, int64_t k) const;
  bool contains(const std::string& name) const { return checkpoint_.contains(name); }
  // Whether both are in the checkpoint with the same bytes; then `name` counts as read.
  bool repeats(const std::string& name, const std::string& other) const;

 private:
  absl::StatusOr<PackedWeight::Source> source(const Part& part) const;
  OwnedTensor make_owned(DType dtype, Shape shape) const;
  void done(const Tensor& tensor) const;

  const Checkpoint& checkpoint_;
  const bool fp8_weights_;  // config.json's word
  const bool sizes_only_;
  const std::function<void(int64_t)>& progress_;
};

}  // namespace moesaic
