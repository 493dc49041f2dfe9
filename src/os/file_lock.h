// A lock on one byte of a file, held until the FileLock goes out of scope or its process dies.
//
// It is an open-file-description lock (fcntl F_OFD_SETLK): each FileLock opens a description of its
// own, so that two locks of one process exclude each other like those of two processes. The kernel
// drops it with the last descriptor, whatever killed the process. The byte is only a number: it
// need not exist and is not touched, so offsets past the end of the file are good.
//
// A child made by fork() shares the description: the lock lives until both are gone, or one of them unlocks it.
// Forks::kLeave is for what a child has no part in: it closes its descriptor before anything else of it
// runs, so that the lock ends with its owner, whatever ends that process. (Of children that are not made by
// fork(), but by a bare system call, the library is not told: they share it until their parent unlocks it, and do not end
// it themselves.)
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <optional>

#include "os/file_descriptor.h"

namespace cachalot::os {

// What a forked child does with a lock of its parent's.
enum class Forks { kShare, kLeave };

// The description that locks are on: a descriptor of one's own, known to the forking process if children leave it.
class LockDescription {
 public:
  static Result<LockDescription> open(int fd, Forks forks);
  LockDescription(LockDescription&&) noexcept = default;
  LockDescription& operator=(LockDescription&& from) noexcept;
  ~LockDescription() { close(); }

  int get() const;  // -1: none, or left to the parent
  // With kLeave it unlocks first: a child that shares the description all the same does not keep the locks.
  void close();
  void keep_until_exit() { (void)fd_.release(); }

 private:
  LockDescription(Forks forks, std::uint64_t generation);
  bool is_left() const;

  FileDescriptor fd_;
  Forks forks_;
  std::uint64_t generation_;  // forks between the first process and the opening one
  std::int64_t pid_;          // of the opening process: no handler runs for a bare clone()
};

class FileLock {
 public:
  // @param  fd      of the file, by any description; only used during the call
  // @param  offset  below 2^63 - 1
  // @errors kBusy: it is held; kPermission: the file cannot be opened for writing;
  //         kInvalidArgument; kUnsupported: the file system has no such locks
  // @threads any  @cost 3 system calls; never waits
  static Result<FileLock> try_lock(int fd, std::uint64_t offset, Forks forks = Forks::kShare);

  // The same, trying again for so long while it is held. @errors as above
  static Result<FileLock> lock_within(int fd, std::uint64_t offset, std::uint32_t patience_ms,
                                      Forks forks = Forks::kShare);

  std::uint64_t offset() const { return offset_; }
  // Whatever becomes of this object.
  void hold_until_exit() { description_.keep_until_exit(); }

  // Before its scope ends, and also where a forked child shares the description. A second time does nothing,
  // nor does it in a child that left the lock.
  void unlock();

 private:
  FileLock(LockDescription description, std::uint64_t offset)
      : description_(std::move(description)), offset_(offset) {}

  LockDescription description_;  // owns the lock: closing it unlocks
  std::uint64_t offset_;
};

// Locks on many bytes of a file by one description: as FileLock, but one file descriptor for all. Sets
// exclude each other, and FileLocks; a set does not exclude itself. Forked children leave it.
//
// @threads one at a time
class FileLockSet {
 public:
  // @param fd  of the file, by any description; only used during the call
  // @errors kPermission: the file cannot be opened for writing
  static Result<FileLockSet> open(int fd);

  // @errors kBusy: another description holds it; kInvalidArgument, kUnsupported as FileLock
  // @cost   a system call; the kernel looks through the locks of the file one by one
  Status try_lock(std::uint64_t offset);
  // Nothing, if it is not held.
  void unlock(std::uint64_t offset);

 private:
  explicit FileLockSet(LockDescription description) : description_(std::move(description)) {}

  LockDescription description_;
};

// The kernel names no process for locks of this kind; it does for old POSIX ones.
inline constexpr std::int64_t kUnknownPid = -1;

// The process that locks this byte; kUnknownPid where the kernel does not say, nothing if the byte
// is free.
// @errors as try_lock
Result<std::optional<std::int64_t>> who_holds(int fd, std::uint64_t offset);

}  // namespace cachalot::os
