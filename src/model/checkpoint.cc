#include "model/checkpoint.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

#include "model/file_map.h"
#include "model/safetensors.h"

namespace moesaic {
namespace {

constexpr int64_t kMaxIndexBytes = int64_t{100} << 20;
constexpr char kIndexName[] = "model.safetensors.index.json";

struct Shard {
  std::string file;  // name inside the directory
  FileMap map;
  int64_t data_begin = 0;
  std::map<std::string, TensorInfo> tensors;
};

absl::StatusOr<Shard> open_shard(const std::string& dir, const std::string& file) {
  const std::string path = str_cat(dir, "/", file);
  Shard shard;
  shard.file = file;
  MOESAIC_ASSIGN_OR_RETURN(shard.map, FileMap::open(path));
  absl::StatusOr<SafetensorsFile> parsed =
      parse_safetensors({shard.map.data(), static_cast<size_t>(shard.map.num_bytes())});
  if (!parsed.ok()) return annotate(parsed.status(), path);
  shard.data_begin = parsed->data_begin;
  shard.tensors = std::move(parsed->tensors);
  return shard;
}

// A shard is named relative to the directory and stays inside it.
bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name.find('/') == std::string::npos && name.find('\0') == std::string::npos && name != ".." &&
         name != ".";
}

}  // namespace

struct Checkpoint::Impl {
  struct Entry {
    Entry(const Shard* shard, const TensorInfo* info) : shard(shard), info(info) {}
    const Shard* shard;
    const TensorInfo* info;
    mutable std::atomic<bool> read{false};
  };
  std::string dir;
  std::vector<std::unique_ptr<Shard>> shards;
  std::map<std::string, Entry, std::less<>> tensors;
  int64_t num_bytes = 0;
  std::mutex mutex;
  std::map<std::pair<std::string, std::string>, bool> compared;  // under the mutex

  // The shard's tensors that the index promises (all of them without an index).
  absl::Status add_shard(const std::string& file, const std::vector<std::string>* promised);
  absl::Status open_by_index(const std::string& path);
  absl::Status open_single_file();
};

absl::Status Checkpoint::Impl::add_shard(const std::string& file, const std::vector<std::string>* promised) {
  absl::StatusOr<Shard> opened = open_shard(dir, file);
  if (absl::IsNotFound(opened.status())) {
    return absl::NotFoundError(
        str_cat(dir, ": shard ", file, " is missing",
                promised ? str_cat(" (", kIndexName, " names it for ", promised->size(), " tensors)") : std::string()));
  }
  if (!opened.ok()) return opened.status();
  const Shard& shard = *shards.emplace_back(std::make_unique<Shard>(std::move(*opened)));
  const auto add = [&](const std::string& name, const TensorInfo& info) {
    tensors.try_emplace(name, &shard, &info);
    num_bytes += info.end - info.begin;
  };
  if (!promised) {
    for (const auto& [name, info] : shard.tensors) add(name, info);
    return absl::OkStatus();
  }
  for (const std::string& name : *promised) {
    const auto it = shard.tensors.find(name);
    if (it == shard.tensors.end()) {
      return absl::NotFoundError(
          str_cat(dir, ": tensor ", name, " is absent from shard ", file, " where ", kIndexName, " promises it"));
    }
    add(name, it->second);
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::Impl::open_by_index(const std::string& path) {
  MOESAIC_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxIndexBytes));
  absl::StatusOr<std::map<std::string, std::vector<std::string>>> index = parse_safetensors_index(text);
  if (!index.ok()) return annotate(index.status(), path);
  for (const auto& [file, names] : *index) {
    if (!is_plain_file_name(file)) {
      return absl::InvalidArgumentError(str_cat(path, ": expected a file name in this directory, found '", file, "'"));
    }
    MOESAIC_RETURN_IF_ERROR(add_shard(file, &names));
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::Impl::open_single_file() {
  std::error_code error;
  std::vector<std::string> files;
  for (std::filesystem::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".safetensors") files.push_back(it->path().filename().string());
  }
  if (error) return absl::NotFoundError(str_cat("cannot list ", dir, ": ", error.message()));
  std::sort(files.begin(), files.end());
  if (files.size() == 1) return add_shard(files[0], nullptr);
  return absl::NotFoundError(str_cat(dir, ": expected ", kIndexName, " or exactly one *.safetensors file, found ",
                                     files.empty() ? "none" : str_join(files, ", ")));
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::open(const std::string& model_dir) {
  auto impl = std::make_unique<Impl>();
  impl->dir = model_dir;
  const std::string index = str_cat(model_dir, "/", kIndexName);
  MOESAIC_RETURN_IF_ERROR(file_exists(index) ? impl->open_by_index(index) : impl->open_single_file());
  return std::unique_ptr<Checkpoint>(new Checkpoint(std::move(impl)));
}

Checkpoint::Checkpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpoint::~Checkpoint() = default;

bool Checkpoint::contains(std::string_view name) const {
  return impl_->tensors.find(name) != impl_->tensors.end();
}

absl::StatusOr<Tensor> Checkpoint::tensor(std::string_view name) const {
  const auto it = impl_->tensors.find(name);
  if (it == impl_->tensors.end()) return absl::NotFoundError(str_cat(impl_->dir, ": tensor ", name, " is missing"));
  const Shard* shard = it->second.shard;
  const TensorInfo* info = it->second.info;
  it->second.read.store(true, std::memory_order_relaxed);
  // A view of read-only pages; every user of a checkpoint tensor only reads.
  char* data = const_cast<char*>(shard->map.data()) + shard->data_begin + info->begin;
  return Tensor(data, info->dtype, info->shape);
}

absl::StatusOr<Tensor> Checkpoint::tensor(std::string_view name, const Shape& shape) const {
  MOESAIC_ASSIGN_OR_RETURN(const Tensor found, tensor(name));
  if (found.shape() != shape) {
    return absl::InvalidArgumentError(str_cat(impl_->dir, ": tensor ", name, ": expected shape ", shape.to_string(),
                                              " by config.json, found ", found.shape().to_string()));
  }
  return found;
}

bool Checkpoint::same_bytes(const std::string& name, const std::string& other) const {
  const auto a = tensor(name), b = tensor(other);
  if (!a.ok() || !b.ok() || a->dtype() != b->dtype() || a->shape() != b->shape()) return false;
  std::lock_guard lock(impl_->mutex);
  const auto [found, is_new] = impl_->compared.try_emplace({name, other}, false);
  if (!is_new) return found->second;
  found->second = std::memcmp(a->raw(), b->raw(), a->num_bytes()) == 0;
  release(*a);
  release(*b);
  return found->second;
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  names.reserve(impl_->tensors.size());
  for (const auto& [name, entry] : impl_->tensors) names.push_back(name);
  return names;
}

std::vector<std::string> Checkpoint::unread() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : impl_->tensors) {
    if (!entry.read.load(std::memory_order_relaxed)) names.push_back(name);
  }
  return names;
}

int64_t Checkpoint::num_bytes() const {
  return impl_->num_bytes;
}

void Checkpoint::release(const Tensor& tensor) const {
  const char* data = static_cast<const char*>(tensor.raw());
  for (const auto& shard : impl_->shards) {
    const int64_t begin = data - shard->map.data();
    if (data < shard->map.data() || begin >= shard->map.num_bytes()) continue;
    shard->map.release(begin, begin + tensor.num_bytes());
  }
}

}  // namespace moesaic
