#include "model/tensor_reader.h"

#include <cstring>

namespace moesaic {
namespace {

constexpr int64_t kScaleBlock = PackedWeight::kScaleGroup;

int64_t blocks(int64_t size) {
  return (size + kScaleBlock - 1) / kScaleBlock;
}

absl::Status copy_to_f32(const Tensor& from, float* to, const std::string& name) {
  const int64_t count = from.num_elements();
  if (from.dtype() == DType::kF32) {
    std::memcpy(to, from.raw(), count * sizeof(float));
  } else if (from.dtype() == DType::kBF16) {
    for (int64_t i = 0; i < count; ++i) to[i] = bf16_to_f32(from.data<uint16_t>()[i]);
  } else {
    return absl::InvalidArgumentError(str_cat(name, ": expected bf16 or f32, found ", dtype_name(from.dtype())));
  }
  return absl::OkStatus();
}

}  // namespace

OwnedTensor TensorReader::make_owned(DType dtype, Shape shape) const {
  const int64_t num_bytes = shape.num_elements() * dtype_bytes(dtype);
  OwnedTensor owned;
  owned.buffer = sizes_only_ ? Buffer::size_only(num_bytes) : Buffer(num_bytes);
  owned.tensor = Tensor(owned.buffer.data(), dtype, shape);
  return owned;
}

void TensorReader::done(const Tensor& tensor) const {
  if (sizes_only_) return;
  checkpoint_.release(tensor);
  if (progress_) progress_(tensor.num_bytes());
}

absl::StatusOr<PackedWeight::Source> TensorReader::source(const Part& part) const {
  const std::string name = part.name + ".weight";
  MOESAIC_ASSIGN_OR_RETURN(Tensor whole, checkpoint_.tensor(name, {part.n, part.k}));
  PackedWeight::Source source;
  source.weight = whole.rows(part.rows.begin, part.rows.end).cols(part.cols.begin, part.cols.end);
  source.row_offset = part.rows.begin;
  source.col_offset = part.cols.begin;
  source.transpose = part.transpose;
  if (whole.dtype() == DType::kE4M3) {
    if (!fp8_weights_) {
      return absl::InvalidArgumentError(
          str_cat("tensor ", name, " is e4m3, but config.json has no quantization_config that says how it is scaled"));
    }
    MOESAIC_ASSIGN_OR_RETURN(source.scale_inv,
                             checkpoint_.tensor(name + "_scale_inv", {blocks(part.n), blocks(part.k)}));
  } else if (checkpoint_.contains(name + "_scale_inv")) {
    return absl::InvalidArgumentError(str_cat("tensor ", name, ": expected e4m3 because ", name,
                                              "_scale_inv is in the checkpoint, found ", dtype_name(whole.dtype())));
  }
  return source;
}

bool TensorReader::same_dtype(const Part& a, const Part& b) const {
  const auto first = checkpoint_.tensor(a.name + ".weight"), second = checkpoint_.tensor(b.name + ".weight");
  return !first.ok() || !second.ok() || first->dtype() == second->dtype();
}

bool TensorReader::repeats(const std::string& name, const std::string& other) const {
  if (!checkpoint_.same_bytes(name, other)) return false;
  done(*checkpoint_.tensor(name));
  return true;
}

absl::StatusOr<PackedWeight> TensorReader::weight(const std::vector<Part>& parts) const {
  std::vector<PackedWeight::Source> sources;
  std::string names;
  for (const Part& part : parts) {
    MOESAIC_ASSIGN_OR_RETURN(PackedWeight::Source one, source(part));
    sources.push_back(one);
    names += (names.empty() ? "" : " + ") + part.name;
  }
  const auto pack = sizes_only_ ? PackedWeight::measure_rows : PackedWeight::pack_rows;
  absl::StatusOr<PackedWeight> packed = pack(sources.data(), static_cast<int>(sources.size()));
  if (!packed.ok()) return annotate(packed.status(), names);
  for (const PackedWeight::Source& one : sources) done(one.weight);
  return packed;
}

absl::StatusOr<OwnedTensor> TensorReader::vector(const std::string& name, int64_t n) const {
  MOESAIC_ASSIGN_OR_RETURN(Tensor stored, checkpoint_.tensor(name, {n}));
  OwnedTensor owned = make_owned(DType::kF32, {n});
  if (sizes_only_) return owned;
  MOESAIC_RETURN_IF_ERROR(copy_to_f32(stored, owned.tensor.f32(), name));
  done(stored);
  return owned;
}

absl::StatusOr<OwnedTensor> TensorReader::bias(const std::vector<Part>& parts) const {
  int64_t total = 0;
  bool any = false;
  for (const Part& part : parts) {
    total += part.rows.size();
    any = any || part.has_bias;
    if (!part.has_bias && contains(part.name + ".bias")) {
      return absl::InvalidArgumentError(str_cat(
          "tensor ", part.name, ".bias is in the checkpoint, but config.json (attention_bias) has no place for it"));
    }
  }
  if (!any) return OwnedTensor();
  OwnedTensor owned = make_owned(DType::kF32, {total});
  float* to = owned.tensor.f32();
  for (const Part& part : parts) {
    if (part.has_bias) {
      MOESAIC_ASSIGN_OR_RETURN(OwnedTensor one, vector(part.name + ".bias", part.n));
      if (sizes_only_) continue;
      std::memcpy(to, one.tensor.f32() + part.rows.begin, part.rows.size() * sizeof(float));
    }
    to += part.rows.size();
  }
  return owned;
}

absl::StatusOr<OwnedTensor> TensorReader::table(const std::string& name, int64_t n, int64_t k) const {
  MOESAIC_ASSIGN_OR_RETURN(Tensor stored, checkpoint_.tensor(name + ".weight", {n, k}));
  if (stored.dtype() != DType::kBF16 && stored.dtype() != DType::kF32) {
    return absl::InvalidArgumentError(
        str_cat(name, ".weight: expected bf16 or f32, found ", dtype_name(stored.dtype())));
  }
  OwnedTensor owned = make_owned(stored.dtype(), {n, k});
  if (sizes_only_) return owned;
  std::memcpy(owned.tensor.raw(), stored.raw(), stored.num_bytes());
  done(stored);
  return owned;
}

}  // namespace moesaic
