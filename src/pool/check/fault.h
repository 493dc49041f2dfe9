// What `cachalot pool fsck` finds in a pool: kinds of faults, and a log that keeps the first of each kind.
//
// A *fault* is damage, or lines that contradict each other. A *remnant* is what a process leaves that died between
// two lines of one operation: the rules of the pool allow it, and the next keeper removes it.
//
// @threads any, for one FaultLog
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "pool/format/format.h"

namespace cachalot::pool {

enum class FaultKind : std::uint32_t {
  kHeaderLine,
  kGeometryLine,
  kHeaderContent,
  kShortDevice,
  kAddedList,
  kAddedHeader,
  kAddedDevice,
  kKeeperLine,
  kKeeperContent,
  kKeeperLost,
  kNamespaceLine,
  kNamespaceTwice,
  kNameLine,
  kViewLine,
  kContextLine,
  kReportLine,
  kLedgerLine,
  kLedgerContent,
  kClientLine,
  kClientContent,
  kPinLine,
  kEntryLine,
  kEntryContent,
  kEntryBucket,
  kEntryEpoch,
  kEntryGeneration,
  kEntryNamespace,
  kBlockTwice,
  kHashTwice,
  kParentGone,
  kParentCircle,
  kLedgerState,
  kPayload,
  kNote,
  kAccounting,
  // Remnants.
  kKeeperPair,
  kVoidEntry,
  kHiddenEntry,
  kSpillBit,
  kCount
};
inline constexpr std::size_t kFaultKinds = static_cast<std::size_t>(FaultKind::kCount);

// What is said of every fault of a kind.
struct FaultText {
  const char* name;     // in JSON; stays what it is
  const char* follows;  // what is true of a pool with this fault
  const char* repair;   // what --repair does; null: it does not mend it
  bool is_remnant = false;
};
const FaultText& text_of(FaultKind kind);

struct Fault {
  FaultKind kind;
  std::uint32_t device = 0;  // those that were added follow those that the pool was made with
  std::uint64_t offset = 0;  // on the device
  std::uint32_t block = kNoBlock;
  std::uint32_t slot = kNoBlock;  // of the directory, or of the client
  std::string what;

  // Equal for the same finding in two passes.
  using Place = std::tuple<FaultKind, std::uint32_t, std::uint64_t, std::string>;
  Place place() const { return {kind, device, offset, what}; }
};

class FaultLog {
 public:
  // @param most_of_kind  faults of one kind that are kept with their places; all are counted
  explicit FaultLog(std::uint32_t most_of_kind) : most_of_kind_(most_of_kind) {}

  void add(Fault fault);
  // In the order of kinds, then of places.
  std::vector<Fault> faults() const;
  std::uint64_t count(FaultKind kind) const;
  std::uint64_t faults_in_all() const { return sum(false); }
  std::uint64_t remnants_in_all() const { return sum(true); }

 private:
  std::uint64_t sum(bool of_remnants) const;

  std::uint32_t most_of_kind_;
  mutable std::mutex mutex_;
  std::array<std::uint64_t, kFaultKinds> counts_{};
  std::array<std::vector<Fault>, kFaultKinds> kept_;
};

}  // namespace cachalot::pool
