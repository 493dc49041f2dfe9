// Places at which a test can make a process die or stall, by name.
//
// Every step of the protocol after which the world looks different has one. Compiled in only with
// CACHALOT_FAIL_POINTS (the dev presets); in a release build nothing of it is left.
#pragma once

#include <atomic>
#include <cstdint>

namespace cachalot::base {

enum class FailPoint : std::uint32_t {
  kNone = 0,
  // copies, between two pieces of a payload
  kWriteBulk,
  kReadBulk,
  // client
  kAttachLineWritten,
  kAttachSeen,
  kAttachNamespace,
  kGrantAsked,
  kGrantTaken,
  kPutStored,
  kPutPosted,
  kPutAnswered,
  kLookedUp,
  kReadCopied,
  kReadValidated,
  kPinPublished,
  kPinEnded,
  kEvictAsked,
  kDetachDrained,
  kDetachSaid,
  // keeper
  kSessionOpened,
  kGrantPopped,
  kGrantInLedger,
  kGrantAnswered,
  kExpansionNamed,
  kExpansionEmpty,
  kCommitChecked,
  kEntryWritten,
  kSpillWritten,
  kCommitInLedger,
  kCommitAnswered,
  kTombstoneWritten,
  kEvictionDone,
  kSuspected,
  kReleased,
  kDetachFreed,
  // takeover
  kTakeoverAnnounced,
  kTakeoverEntriesRead,
  kTakeoverLedgerRead,
  kTakeoverHalfSwept,
  kTakeoverSwept,
  kTakeoverLedgerWritten,
  kTakeoverDone,
  kKeeperStopped,
  kCount
};

const char* fail_point_name(FailPoint point);

#ifdef CACHALOT_FAIL_POINTS
using FailPointHandler = void (*)(FailPoint point);
extern std::atomic<FailPointHandler> fail_point_handler;  // of this process; null: none

inline bool fail_points_armed() {
  return fail_point_handler.load(std::memory_order_relaxed) != nullptr;
}
inline void reach(FailPoint point) {
  if (const FailPointHandler handler = fail_point_handler.load(std::memory_order_relaxed)) {
    handler(point);
  }
}
#else
constexpr bool fail_points_armed() {
  return false;
}
constexpr void reach(FailPoint) {}
#endif

}  // namespace cachalot::base
