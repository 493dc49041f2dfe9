// The bytes of device 0's file that the pool's locks are on; far beyond any byte that exists.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <optional>

#include "os/file_lock.h"
#include "os/shared_file.h"
#include "pool/format/format.h"

namespace cachalot::pool {

inline constexpr std::uint64_t kFirstKeeperLock = std::uint64_t{1} << 62;  // one per keeper area
inline constexpr std::uint64_t kSuccessionLock = kFirstKeeperLock + kKeeperSlots;
inline constexpr std::uint64_t kMakerLock = kSuccessionLock + 1;
inline constexpr std::uint64_t kFirstClientLock = kFirstKeeperLock + 16;
inline constexpr std::uint64_t kFirstHostLock = kFirstClientLock + kMaxClients;  // of hosts' agents
static_assert(kFirstHostLock + kMaxClients - kFirstKeeperLock <= 4096);

// Locks one of them, of the pool whose device 0 is `file`: pools in parts of one file have locks of their own. A forked child of a
// keeper or client cannot reach the pool (MADV_DONTFORK), so it leaves the lock to its parent.
inline constexpr std::uint64_t kLockBytesOfAPool = 4096;
inline std::uint64_t lock_offset(const os::SharedFile& file, std::uint64_t byte) {
  return byte + file.offset() / os::kMapAlignmentBytes * kLockBytesOfAPool;
}
// @errors as os::FileLock::try_lock
inline Result<os::FileLock> lock_byte(const os::SharedFile& file, std::uint64_t byte) {
  return os::FileLock::try_lock(file.fd(), lock_offset(file, byte), os::Forks::kLeave);
}
// @errors as os::who_holds
inline Result<std::optional<std::int64_t>> find_lock_holder(const os::SharedFile& file,
                                                            std::uint64_t byte) {
  return os::who_holds(file.fd(), lock_offset(file, byte));
}

}  // namespace cachalot::pool
