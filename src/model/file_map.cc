#include "model/file_map.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace moesaic {
namespace {

// A descriptor that closes itself.
struct File {
  int fd = -1;
  ~File() {
    if (fd >= 0) close(fd);
  }
};

absl::Status system_error(const std::string& path, int error) {
  const std::string message = str_cat("cannot read ", path, ": ", std::strerror(error));
  return error == ENOENT ? absl::NotFoundError(message) : absl::FailedPreconditionError(message);
}

// O_NONBLOCK: a FIFO in the directory must not make open() wait.
absl::Status open_regular(const std::string& path, File* file, int64_t* num_bytes) {
  file->fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file->fd < 0) return system_error(path, errno);
  struct stat info {};
  if (fstat(file->fd, &info) != 0) return system_error(path, errno);
  if (!S_ISREG(info.st_mode)) return absl::FailedPreconditionError(str_cat(path, " is not a regular file"));
  *num_bytes = info.st_size;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<FileMap> FileMap::open(const std::string& path) {
  File file;
  FileMap map;
  MOESAIC_RETURN_IF_ERROR(open_regular(path, &file, &map.num_bytes_));
  if (map.num_bytes_ == 0) return map;
  void* mapped = mmap(nullptr, map.num_bytes_, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (mapped == MAP_FAILED) return system_error(path, errno);
  map.data_ = static_cast<char*>(mapped);
  return map;
}

FileMap& FileMap::operator=(FileMap&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(num_bytes_, other.num_bytes_);
  return *this;
}

FileMap::~FileMap() {
  if (data_) munmap(data_, num_bytes_);
}

void FileMap::release(int64_t begin, int64_t end) const {
  const int64_t page = sysconf(_SC_PAGESIZE);
  begin = begin / page * page;
  end = std::min((end + page - 1) / page * page, num_bytes_);
  if (begin < end) madvise(data_ + begin, end - begin, MADV_DONTNEED);
}

absl::StatusOr<std::string> read_text_file(const std::string& path, int64_t max_bytes) {
  File file;
  int64_t num_bytes = 0;
  MOESAIC_RETURN_IF_ERROR(open_regular(path, &file, &num_bytes));
  if (num_bytes > max_bytes) {
    return absl::InvalidArgumentError(str_cat(path, ": expected at most ", max_bytes, " bytes, found ", num_bytes));
  }
  std::string text(num_bytes, '\0');
  int64_t done = 0;
  while (done < num_bytes) {
    const ssize_t got = read(file.fd, text.data() + done, num_bytes - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error(path, errno);
    if (got == 0) break;
    done += got;
  }
  text.resize(done);
  return text;
}

bool file_exists(const std::string& path) {
  return access(path.c_str(), F_OK) == 0;
}

}  // namespace moesaic
