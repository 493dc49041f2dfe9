#include "pool/making.h"

#include <unistd.h>

#include <algorithm>
#include <array>

#include "memory/line.h"
#include "os/shared_file.h"
#include "pool/format/lock_bytes.h"

namespace cachalot::pool {

Result<os::FileLock> lock_as_maker(int fd) {
  return os::FileLock::try_lock(fd, kMakerLock, os::Forks::kLeave);
}

bool has_maker(const os::SharedFile& file) {
  const auto holder = find_lock_holder(file, kMakerLock);
  return holder && holder->has_value();
}

bool is_taken_as_it_is(const std::string& path) {
  const Result<os::SharedFile> file = os::SharedFile::peek(path);
  return file && (file->kind() == os::FileKind::kDevdax || file->is_part());
}

Making look_for_maker(const std::string& path) {
  const Result<os::SharedFile> file = os::SharedFile::peek(path);
  if (!file) {
    return file.error().code == Code::kNotFound ? Making::kAbsent : Making::kNone;
  }
  // First for the lock: a maker writes the header before it lets go of it.
  const bool is_locked = has_maker(*file);
  std::array<unsigned char, memory::kLineBytes> line{};
  const ssize_t bytes =
      pread(file->fd(), line.data(), line.size(), static_cast<off_t>(file->offset()));
  const bool is_blank =
      bytes >= 0 && std::all_of(line.begin(), line.end(), [](unsigned char c) { return c == 0; });
  if (!is_blank) return Making::kNone;
  return is_locked ? Making::kUnderWay : Making::kAbandoned;
}

}  // namespace cachalot::pool
