#include "os/file_lock.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>

namespace cachalot::os {
namespace {

Result<struct flock> one_byte(std::uint64_t offset) {
  if (offset >= static_cast<std::uint64_t>(INT64_MAX)) {
    return Error::make(Code::kInvalidArgument, "lock offset: %" PRIu64 " is not below 2^63 - 1",
                       offset);
  }
  struct flock range {};
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(offset);
  range.l_len = 1;
  return range;
}

Result<FileDescriptor> new_description(int fd) {
  char name[48];
  std::snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  FileDescriptor result(open(name, O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!result) return Error::from_errno(errno, "lock: opening %s again for writing", name);
  return result;
}

Status lock_byte(int own, std::uint64_t offset) {
  CACHALOT_TRY_ASSIGN(struct flock range, one_byte(offset));
  if (fcntl(own, F_OFD_SETLK, &range) == 0) return {};
  const int os_error = errno;
  if (os_error == EAGAIN || os_error == EACCES) {
    Error error = Error::make(Code::kBusy, "lock: somebody holds byte %" PRIu64, offset);
    error.detail = offset;
    return error;
  }
  if (os_error == EINVAL || os_error == ENOLCK) {
    return Error::make(Code::kUnsupported,
                       "lock: this file system or kernel has no "
                       "open-file-description locks");
  }
  return Error::from_errno(os_error, "lock: byte %" PRIu64, offset);
}

void unlock_byte(int own, std::uint64_t offset) {
  Result<struct flock> range = one_byte(offset);
  if (!range) return;
  range->l_type = F_UNLCK;
  (void)fcntl(own, F_OFD_SETLK, &*range);
}

// Who holds it, as the kernel says it of a description that is not the holder's own.
Result<std::optional<std::int64_t>> ask_for_holder(int own, std::uint64_t offset) {
  CACHALOT_TRY_ASSIGN(struct flock range, one_byte(offset));
  if (fcntl(own, F_OFD_GETLK, &range) != 0) {
    return Error::from_errno(errno, "lock: asking for byte %" PRIu64, offset);
  }
  if (range.l_type == F_UNLCK) return std::optional<std::int64_t>();
  return std::optional<std::int64_t>(range.l_pid > 0 ? range.l_pid : kUnknownPid);
}

}  // namespace

Result<FileLock> FileLock::try_lock(int fd, std::uint64_t offset) {
  CACHALOT_TRY(one_byte(offset));
  CACHALOT_TRY_ASSIGN(FileDescriptor own, new_description(fd));
  CACHALOT_TRY(lock_byte(own.get(), offset));
  return FileLock(std::move(own), offset);
}

void FileLock::unlock() {
  if (!fd_) return;
  // To close alone would leave it to the description's other descriptors.
  unlock_byte(fd_.get(), offset_);
  fd_.close();
}

Result<FileLock> FileLock::lock_within(int fd, std::uint64_t offset, std::uint32_t patience_ms) {
  for (std::uint32_t waited_ms = 0;; ++waited_ms) {
    Result<FileLock> lock = try_lock(fd, offset);
    if (lock || lock.error().code != Code::kBusy || waited_ms >= patience_ms) return lock;
    usleep(1000);
  }
}

Result<FileLockSet> FileLockSet::open(int fd) {
  CACHALOT_TRY_ASSIGN(FileDescriptor own, new_description(fd));
  return FileLockSet(std::move(own));
}

Status FileLockSet::try_lock(std::uint64_t offset) { return lock_byte(fd_.get(), offset); }

void FileLockSet::unlock(std::uint64_t offset) {
  unlock_byte(fd_.get(), offset);
}

Result<bool> FileLockSet::is_held_elsewhere(std::uint64_t offset) const {
  CACHALOT_TRY_ASSIGN(const std::optional<std::int64_t> holder, ask_for_holder(fd_.get(), offset));
  return holder.has_value();
}

Result<std::optional<std::int64_t>> who_holds(int fd, std::uint64_t offset) {
  CACHALOT_TRY(one_byte(offset));
  // A description that holds no lock, so that every lock is somebody else's.
  CACHALOT_TRY_ASSIGN(FileDescriptor own, new_description(fd));
  return ask_for_holder(own.get(), offset);
}

}  // namespace cachalot::os
