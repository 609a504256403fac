#include "model/safetensors.h"

#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <optional>

namespace moesaic {
namespace {

constexpr int64_t kMaxHeaderBytes = int64_t{100} << 20;
constexpr int64_t kLengthBytes = 8;
constexpr uint64_t kMaxDimension = uint64_t{1} << 40;

namespace dom = simdjson::dom;

absl::Status bad(std::string_view message) {
  return absl::InvalidArgumentError(str_cat(message));
}

absl::StatusOr<DType> parse_dtype(std::string_view name) {
  constexpr std::pair<std::string_view, DType> kNames[] = {
      {"F32", DType::kF32}, {"BF16", DType::kBF16}, {"F8_E4M3", DType::kE4M3},
      {"I32", DType::kI32}, {"I64", DType::kI64},   {"U8", DType::kU8},
  };
  for (const auto& [text, dtype] : kNames) {
    if (text == name) return dtype;
  }
  return bad(str_cat("expected dtype F32, BF16, F8_E4M3, I32, I64 or U8, found ", name.substr(0, 40)));
}

absl::StatusOr<Shape> parse_shape(dom::element value) {
  dom::array dims;
  if (value.get(dims) != simdjson::SUCCESS) return bad("expected 'shape' to be a list");
  if (dims.size() > Shape::kMaxRank) {
    return bad(str_cat("expected at most ", Shape::kMaxRank, " dimensions, found ", dims.size()));
  }
  int64_t sizes[Shape::kMaxRank] = {};
  int rank = 0;
  // The product stays below kMaxDimension^2 / 2^17 < 2^63 because it is checked after each factor.
  uint64_t product = 1;
  for (dom::element item : dims) {
    uint64_t size = 0;
    if (item.get(size) != simdjson::SUCCESS || size > kMaxDimension) {
      return bad(str_cat("expected dimensions from 0 to 2^40, found ", simdjson::minify(item)));
    }
    if (size != 0 && product > kMaxDimension / size) return bad("the shape has more than 2^40 elements");
    product *= size;
    sizes[rank++] = static_cast<int64_t>(size);
  }
  switch (rank) {
    case 0:
      return Shape{};
    case 1:
      return Shape{sizes[0]};
    case 2:
      return Shape{sizes[0], sizes[1]};
    case 3:
      return Shape{sizes[0], sizes[1], sizes[2]};
    default:
      return Shape{sizes[0], sizes[1], sizes[2], sizes[3]};
  }
}

// Fields may come in any order, each exactly once; unknown ones are refused because they could change the meaning.
absl::StatusOr<TensorInfo> parse_info(dom::element value, int64_t data_bytes) {
  dom::object fields;
  if (value.get(fields) != simdjson::SUCCESS) return bad("expected an object with dtype, shape and data_offsets");
  std::optional<DType> dtype;
  std::optional<Shape> shape;
  std::optional<std::pair<uint64_t, uint64_t>> offsets;
  for (const auto& [key, field] : fields) {
    if (key == "dtype" && !dtype) {
      std::string_view name;
      if (field.get(name) != simdjson::SUCCESS) return bad("expected 'dtype' to be a string");
      MOESAIC_ASSIGN_OR_RETURN(dtype, parse_dtype(name));
    } else if (key == "shape" && !shape) {
      MOESAIC_ASSIGN_OR_RETURN(shape, parse_shape(field));
    } else if (key == "data_offsets" && !offsets) {
      dom::array pair;
      uint64_t begin = 0, end = 0;
      if (field.get(pair) != simdjson::SUCCESS || pair.size() != 2 || pair.at(0).get(begin) != simdjson::SUCCESS ||
          pair.at(1).get(end) != simdjson::SUCCESS) {
        return bad(str_cat("expected 'data_offsets' to be two non-negative integers, found ",
                           std::string(simdjson::minify(field)).substr(0, 80)));
      }
      offsets = {begin, end};
    } else {
      return bad(str_cat("unexpected or repeated field '", key.substr(0, 40), "'"));
    }
  }
  if (!dtype || !shape || !offsets) return bad("expected the fields dtype, shape and data_offsets");
  const auto [begin, end] = *offsets;
  if (begin > end) return bad(str_cat("data_offsets are reversed: ", begin, " and ", end));
  if (end > static_cast<uint64_t>(data_bytes)) {
    return bad(str_cat("data_offsets end at byte ", end, " but the file holds ", data_bytes,
                       " bytes of data (truncated download?)"));
  }
  const uint64_t expected = static_cast<uint64_t>(shape->num_elements() * dtype_bytes(*dtype));
  if (end - begin != expected) {
    return bad(str_cat("shape ", shape->to_string(), " of ", dtype_name(*dtype), " needs ", expected,
                       " bytes, data_offsets hold ", end - begin));
  }
  return TensorInfo{*dtype, *shape, static_cast<int64_t>(begin), static_cast<int64_t>(end)};
}

absl::Status check_overlap(const std::map<std::string, TensorInfo>& tensors) {
  std::vector<const std::pair<const std::string, TensorInfo>*> sorted;
  for (const auto& entry : tensors) {
    if (entry.second.begin < entry.second.end) sorted.push_back(&entry);
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const auto* a, const auto* b) { return a->second.begin < b->second.begin; });
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i]->second.begin < sorted[i - 1]->second.end) {
      return bad(str_cat("tensors ", sorted[i - 1]->first, " and ", sorted[i]->first, " overlap"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::map<std::string, TensorInfo>> parse_safetensors_header(std::string_view header_json,
                                                                           int64_t data_bytes) {
  dom::parser parser;
  dom::element root;
  const auto error = parser.parse(header_json.data(), header_json.size()).get(root);
  if (error != simdjson::SUCCESS) return bad(str_cat("the header is not JSON: ", simdjson::error_message(error)));
  dom::object entries;
  if (root.get(entries) != simdjson::SUCCESS) return bad("the header is not a JSON object");
  std::map<std::string, TensorInfo> tensors;
  for (const auto& [key, value] : entries) {
    if (key == "__metadata__") continue;
    absl::StatusOr<TensorInfo> info = parse_info(value, data_bytes);
    if (!info.ok()) return annotate(info.status(), str_cat("tensor ", key.substr(0, 200)));
    if (!tensors.emplace(key, *info).second) return bad(str_cat("tensor ", key.substr(0, 200), " occurs twice"));
  }
  MOESAIC_RETURN_IF_ERROR(check_overlap(tensors));
  return tensors;
}

absl::StatusOr<SafetensorsFile> parse_safetensors(std::string_view file) {
  const int64_t file_bytes = static_cast<int64_t>(file.size());
  if (file_bytes < kLengthBytes) {
    return bad(str_cat("expected a safetensors file, found ", file_bytes, " bytes (truncated download?)"));
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), kLengthBytes);
  if (header_bytes > static_cast<uint64_t>(kMaxHeaderBytes)) {
    return bad(str_cat("expected a header of at most ", kMaxHeaderBytes, " bytes, found ", header_bytes));
  }
  const int64_t data_begin = kLengthBytes + static_cast<int64_t>(header_bytes);
  if (data_begin > file_bytes) {
    return bad(
        str_cat("the header says ", header_bytes, " bytes but the file holds ", file_bytes, " (truncated download?)"));
  }
  SafetensorsFile result;
  result.data_begin = data_begin;
  MOESAIC_ASSIGN_OR_RETURN(result.tensors,
                           parse_safetensors_header(file.substr(kLengthBytes, header_bytes), file_bytes - data_begin));
  for (const auto& [name, info] : result.tensors) {
    if (info.begin == info.end || (data_begin + info.begin) % dtype_bytes(info.dtype) == 0) continue;
    return bad(str_cat("tensor ", name.substr(0, 200), " starts at byte ", data_begin + info.begin,
                       " of the file; expected a multiple of the ", dtype_bytes(info.dtype), " bytes of ",
                       dtype_name(info.dtype), ". Write the file again with a current safetensors library"));
  }
  return result;
}

absl::StatusOr<std::map<std::string, std::vector<std::string>>> parse_safetensors_index(std::string_view json) {
  dom::parser parser;
  dom::element root;
  const auto error = parser.parse(json.data(), json.size()).get(root);
  if (error != simdjson::SUCCESS) return bad(str_cat("not valid JSON: ", simdjson::error_message(error)));
  dom::object entries;
  if (root["weight_map"].get(entries) != simdjson::SUCCESS)
    return bad("expected an object with the field 'weight_map'");
  std::map<std::string, std::vector<std::string>> files;
  std::map<std::string, bool> seen;
  for (const auto& [key, value] : entries) {
    std::string_view file;
    if (value.get(file) != simdjson::SUCCESS) {
      return bad(str_cat("weight_map: expected a file name for ", key.substr(0, 200)));
    }
    if (!seen.emplace(key, true).second) return bad(str_cat("weight_map: ", key.substr(0, 200), " occurs twice"));
    files[std::string(file)].emplace_back(key);
  }
  if (files.empty()) return bad("weight_map is empty");
  return files;
}

}  // namespace moesaic
