// The bytes of device 0's file that the pool's locks are on; far beyond any byte that exists.
#pragma once

#include <cachalot/result.h>

#include <cstdint>

#include "os/file_lock.h"
#include "pool/format/format.h"

namespace cachalot::pool {

inline constexpr std::uint64_t kFirstKeeperLock = std::uint64_t{1} << 62;  // one per keeper area
inline constexpr std::uint64_t kSuccessionLock = kFirstKeeperLock + kKeeperSlots;
inline constexpr std::uint64_t kMakerLock = kSuccessionLock + 1;
inline constexpr std::uint64_t kFirstClientLock = kFirstKeeperLock + 16;
inline constexpr std::uint64_t kFirstHostLock = kFirstClientLock + kMaxClients;  // of hosts' agents

// Locks one of them. A forked child of a keeper or client cannot reach the pool (MADV_DONTFORK), so it leaves
// the lock to its parent. @errors as os::FileLock::try_lock
inline Result<os::FileLock> lock_byte(int fd, std::uint64_t byte) {
  return os::FileLock::try_lock(fd, byte, os::Forks::kLeave);
}

}  // namespace cachalot::pool
