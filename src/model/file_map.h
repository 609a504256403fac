// FileMap: a whole file mapped read-only, and small files read as text. Immutable after open; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace moesaic {

class FileMap {
 public:
  static absl::StatusOr<FileMap> open(const std::string& path);
  FileMap() = default;
  FileMap(FileMap&& other) noexcept { *this = static_cast<FileMap&&>(other); }
  FileMap& operator=(FileMap&& other) noexcept;
  ~FileMap();

  const char* data() const { return data_; }
  int64_t num_bytes() const { return num_bytes_; }
  // Drops the resident pages that [begin, end) touches; they are read again when needed.
  void release(int64_t begin, int64_t end) const;

 private:
  char* data_ = nullptr;
  int64_t num_bytes_ = 0;
};

// Errors: NOT_FOUND, larger than max_bytes, not a regular file.
absl::StatusOr<std::string> read_text_file(const std::string& path, int64_t max_bytes);
bool file_exists(const std::string& path);

}  // namespace moesaic
