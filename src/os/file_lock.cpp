#include "os/file_lock.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <mutex>
#include <vector>

#include "base/clock.h"

namespace cachalot::os {
namespace {

// The descriptors that a forked child closes, and how many forks there were. fork() hands no object to its
// handlers, so this is the process's.
struct Left {
  std::mutex mutex;  // held over a fork: a descriptor is open and known, or neither
  std::vector<int> descriptors;
  std::atomic<std::uint64_t> forks = 0;  // relaxed: a child has one thread when it counts
};

Left& left() {
  static Left* const all = new Left;  // outlives locks that statics hold
  return *all;
}

void close_in_child() {
  for (const int fd : left().descriptors) close(fd);
  left().descriptors.clear();
  left().forks.fetch_add(1, std::memory_order_relaxed);
  left().mutex.unlock();
}

[[maybe_unused]] const int registered =
    pthread_atfork([] { left().mutex.lock(); }, [] { left().mutex.unlock(); }, close_in_child);

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

Result<FileDescriptor> new_description(int fd, int access = O_RDWR) {
  char name[48];
  std::snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  FileDescriptor result(open(name, access | O_CLOEXEC | O_NONBLOCK));
  if (!result)
    return Error::from_errno(errno, "lock: opening %s again%s", name,
                             access == O_RDWR ? " for writing" : "");
  return result;
}

Status lock_byte(int own, std::uint64_t offset) {
  CACHALOT_TRY_ASSIGN(struct flock range, one_byte(offset));
  if (fcntl(own, F_OFD_SETLK, &range) == 0) return {};
  const int os_error = errno;
  if (os_error == EAGAIN || os_error == EACCES) {
    Error error = Error::make(Code::kBusy, "lock: another process holds byte %" PRIu64, offset);
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

// The holder, as the kernel reports it for another description.
Result<std::optional<std::int64_t>> ask_for_holder(int own, std::uint64_t offset) {
  CACHALOT_TRY_ASSIGN(struct flock range, one_byte(offset));
  if (fcntl(own, F_OFD_GETLK, &range) != 0) {
    return Error::from_errno(errno, "lock: asking for byte %" PRIu64, offset);
  }
  if (range.l_type == F_UNLCK) return std::optional<std::int64_t>();
  return std::optional<std::int64_t>(range.l_pid > 0 ? range.l_pid : kUnknownPid);
}

}  // namespace

Result<LockDescription> LockDescription::open(int fd, Forks forks) {
  const std::lock_guard lock(left().mutex);
  LockDescription made(forks, left().forks.load(std::memory_order_relaxed));
  if (forks == Forks::kLeave) left().descriptors.reserve(left().descriptors.size() + 1);
  CACHALOT_TRY_ASSIGN(made.fd_, new_description(fd));
  if (forks == Forks::kLeave) left().descriptors.push_back(made.fd_.get());
  return made;
}

LockDescription::LockDescription(Forks forks, std::uint64_t generation)
    : forks_(forks), generation_(generation), pid_(getpid()) {}

LockDescription& LockDescription::operator=(LockDescription&& from) noexcept {
  if (this == &from) return *this;
  close();
  fd_ = std::move(from.fd_);
  forks_ = from.forks_;
  generation_ = from.generation_;
  pid_ = from.pid_;
  return *this;
}

// Its number may be another file's by now.
bool LockDescription::is_left() const {
  return forks_ == Forks::kLeave &&
         (generation_ != left().forks.load(std::memory_order_relaxed) || pid_ != getpid());
}

int LockDescription::get() const {
  return is_left() ? -1 : fd_.get();
}

void LockDescription::close() {
  if (!fd_) return;
  if (forks_ == Forks::kShare) return fd_.close();
  if (is_left()) return (void)fd_.release();
  struct flock all {};
  all.l_type = F_UNLCK;
  all.l_whence = SEEK_SET;  // from 0 on, to the end of all numbers
  (void)fcntl(fd_.get(), F_OFD_SETLK, &all);
  const std::lock_guard lock(left().mutex);
  std::erase(left().descriptors, fd_.get());
  fd_.close();
}

Result<FileLock> FileLock::try_lock(int fd, std::uint64_t offset, Forks forks) {
  CACHALOT_TRY(one_byte(offset));
  CACHALOT_TRY_ASSIGN(LockDescription own, LockDescription::open(fd, forks));
  CACHALOT_TRY(lock_byte(own.get(), offset));
  return FileLock(std::move(own), offset);
}

void FileLock::unlock() {
  if (description_.get() < 0) return;
  // To close alone would leave it to the description's other descriptors.
  unlock_byte(description_.get(), offset_);
  description_.close();
}

Result<FileLock> FileLock::lock_within(int fd, std::uint64_t offset, std::uint32_t patience_ms,
                                       Forks forks) {
  // By the clock: on a busy machine a nap of 1 ms lasts many.
  const std::uint64_t until_ns = base::SteadyClock::read() + std::uint64_t{patience_ms} * 1'000'000;
  for (;;) {
    Result<FileLock> lock = try_lock(fd, offset, forks);
    const bool may_wait = !lock && lock.error().code == Code::kBusy;
    if (!may_wait || base::SteadyClock::read() >= until_ns) return lock;
    usleep(1000);
  }
}

Result<FileLockSet> FileLockSet::open(int fd) {
  CACHALOT_TRY_ASSIGN(LockDescription own, LockDescription::open(fd, Forks::kLeave));
  return FileLockSet(std::move(own));
}

Status FileLockSet::try_lock(std::uint64_t offset) {
  return lock_byte(description_.get(), offset);
}

void FileLockSet::unlock(std::uint64_t offset) {
  unlock_byte(description_.get(), offset);
}

Result<std::optional<std::int64_t>> who_holds(int fd, std::uint64_t offset) {
  CACHALOT_TRY(one_byte(offset));
  // A description that holds no lock, so that every lock belongs to another description. Asking takes no right
  // to write.
  CACHALOT_TRY_ASSIGN(FileDescriptor own, new_description(fd, O_RDONLY));
  return ask_for_holder(own.get(), offset);
}

}  // namespace cachalot::os
