#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "model/checkpoint.h"

namespace moesaic {
namespace {

const char* safetensors_dtype(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kBF16:
      return "BF16";
    case DType::kE4M3:
      return "F8_E4M3";
    case DType::kI32:
      return "I32";
    case DType::kI64:
      return "I64";
    case DType::kU8:
      return "U8";
  }
  return "";
}

// Wide elements first, so that every tensor is aligned to its elements.
using Entries = std::vector<std::pair<std::string, Tensor>>;
Entries in_file_order(const std::map<std::string, Tensor>& tensors) {
  Entries entries(tensors.begin(), tensors.end());
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return dtype_bytes(a.second.dtype()) > dtype_bytes(b.second.dtype());
  });
  return entries;
}

std::string make_header(const Entries& tensors) {
  nlohmann::json header = nlohmann::json::object();
  int64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    nlohmann::json shape = nlohmann::json::array();
    for (int i = 0; i < tensor.rank(); ++i) shape.push_back(tensor.dim(i));
    header[name] = {{"dtype", safetensors_dtype(tensor.dtype())},
                    {"shape", shape},
                    {"data_offsets", {offset, offset + tensor.num_bytes()}}};
    offset += tensor.num_bytes();
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' ');  // the data section starts aligned
  return text;
}

}  // namespace

absl::Status write_safetensors(const std::string& path, const std::map<std::string, Tensor>& tensors) {
  for (const auto& [name, tensor] : tensors) MOESAIC_CHECK(tensor.is_contiguous());
  // Written beside the target and renamed, so that readers never see half a file.
  const std::string partial = path + ".part";
  {
    std::ofstream out(partial, std::ios::binary | std::ios::trunc);
    const Entries entries = in_file_order(tensors);
    const std::string header = make_header(entries);
    const uint64_t length = header.size();
    out.write(reinterpret_cast<const char*>(&length), sizeof length);
    out.write(header.data(), static_cast<std::streamsize>(header.size()));
    for (const auto& [name, tensor] : entries) out.write(static_cast<const char*>(tensor.raw()), tensor.num_bytes());
    out.close();
    if (!out) {
      const absl::Status status = absl::UnavailableError(str_cat("cannot write ", partial, ": ", std::strerror(errno)));
      std::remove(partial.c_str());
      return status;
    }
  }
  if (std::rename(partial.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(str_cat("cannot rename ", partial, " to ", path, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace moesaic
