#include "cache_sim/spill_vector.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

namespace cachalot::cache_sim {
namespace {

Error failed(const char* what, const std::string& directory, int error) {
  Code code = Code::kIo;
  if (error == ENOSPC || error == EFBIG || error == EDQUOT || error == ENOMEM)
    code = Code::kNoSpace;
  if (error == ENOENT || error == ENOTDIR) code = Code::kInvalidArgument;
  if (error == EACCES || error == EPERM || error == EROFS) code = Code::kPermission;
  return Error::make(code, "temporary file in %.120s: %s: %s", directory.c_str(), what,
                     std::strerror(error));
}

}  // namespace

Result<SpillFile> SpillFile::make(const std::string& directory) {
  const std::string pattern = directory + "/cachalot.XXXXXX";
  std::vector<char> path(pattern.begin(), pattern.end());
  path.push_back('\0');
  const int file = mkostemp(path.data(), O_CLOEXEC);
  if (file < 0) return failed("cannot be made", directory, errno);
  (void)unlink(path.data());
  return SpillFile(file, directory);
}

SpillFile::SpillFile(SpillFile&& other) noexcept
    : file_(std::exchange(other.file_, -1)),
      directory_(std::move(other.directory_)),
      data_(std::exchange(other.data_, nullptr)),
      capacity_bytes_(std::exchange(other.capacity_bytes_, 0)) {}

SpillFile& SpillFile::operator=(SpillFile&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(directory_, other.directory_);
  std::swap(data_, other.data_);
  std::swap(capacity_bytes_, other.capacity_bytes_);
  return *this;
}

SpillFile::~SpillFile() {
  if (data_ != nullptr) munmap(data_, capacity_bytes_);
  if (file_ >= 0) close(file_);
}

Status SpillFile::reserve(std::size_t bytes) {
  constexpr std::size_t kLeast = std::size_t{1} << 16, kMost = std::size_t{1} << 46;
  if (bytes <= capacity_bytes_) return {};
  if (bytes > kMost) return failed("cannot grow", directory_, EFBIG);
  std::size_t wanted = std::max(kLeast, capacity_bytes_ * 2);
  while (wanted < bytes) wanted *= 2;
  // Blocks of the disk now: a store into a hole that the disk has no room for would be a signal.
  const int error = posix_fallocate(file_, 0, static_cast<off_t>(wanted));
  if (error != 0) return failed("cannot grow", directory_, error);
  void* const data = data_ == nullptr
                         ? mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0)
                         : mremap(data_, capacity_bytes_, wanted, MREMAP_MAYMOVE);
  if (data == MAP_FAILED) return failed("cannot be mapped", directory_, errno);
  data_ = static_cast<std::byte*>(data);
  capacity_bytes_ = wanted;
  return {};
}

}  // namespace cachalot::cache_sim
