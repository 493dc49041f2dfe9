#include "pool/making.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

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

Result<Pool> open_when_made(const std::vector<std::string>& paths, const OpenOptions& options,
                            std::uint32_t patience_ms) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::milliseconds(patience_ms);
  for (;;) {
    Result<Pool> opened = Pool::open(paths, options);
    if (opened || paths.empty() || std::chrono::steady_clock::now() >= give_up) return opened;
    const bool may_come =
        opened.error().code == Code::kBusy ||
        (opened.error().code == Code::kNotAPool && look_for_maker(paths[0]) != Making::kNone);
    if (!may_come) return opened;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace cachalot::pool
