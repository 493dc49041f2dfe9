// Counters that anyone who maps the pool can read: the keeper's in its page, each client's in its own.
//
// They are 64-bit and only informative: published every 10 ms or so, each line consistent in
// itself, different lines perhaps of different moments.
#pragma once

#include <array>
#include <cstdint>

#include "memory/sealed_region.h"
#include "pool/format/format.h"

namespace cachalot::pool {

// In the order in which they lie in the pool: append only.
enum class KeeperCounter : std::uint32_t {
  kFree,
  kGranted,
  kLive,
  kLimbo,
  kQuarantined,
  kBad,  // blocks, at this moment
  kClients,
  kNamespaces,  // at this moment
  kRequests,
  kMalformed,
  kCommits,
  kDuplicates,
  kRefused,
  kEvictions,
  kTouches,
  kStaleTouches,
  kGrants,
  kBucketEvictions,
  kSuspicions,
  kReleasedBlocks,
  kRepairedLines,
  kExpired,
  kCount
};
enum class ClientCounter : std::uint32_t {
  kLookups,
  kLookedUpBlocks,
  kHitBlocks,
  kReadBlocks,
  kReadBytes,
  kStaleReads,
  kDamagedReads,
  kPuts,
  kWrittenBytes,
  kCommitted,
  kDuplicates,
  kRefused,
  kLostReports,
  kReattachments,
  kCount
};

const char* counter_name(KeeperCounter counter);
const char* counter_name(ClientCounter counter);

template <class Counter>
class Counters {
 public:
  static constexpr std::uint32_t kCount = static_cast<std::uint32_t>(Counter::kCount);

  std::uint64_t& operator[](Counter counter) {
    return values_[static_cast<std::uint32_t>(counter)];
  }
  std::uint64_t operator[](Counter counter) const {
    return values_[static_cast<std::uint32_t>(counter)];
  }

  void publish(const memory::SealedRegion& region, std::uint64_t offset,
               std::uint32_t sequence) const {
    for (std::uint32_t line = 0; line * 7 < kCount; ++line) {
      CounterLine out{};
      for (std::uint32_t i = 0; i < 7 && line * 7 + i < kCount; ++i)
        out.values[i] = values_[line * 7 + i];
      out.sequence = sequence;
      region.publish(offset + line * memory::kLineBytes, out);
    }
  }
  // False if they were never published.
  bool read(const memory::SealedRegion& region, std::uint64_t offset) {
    for (std::uint32_t line = 0; line * 7 < kCount; ++line) {
      CounterLine in{};
      if (!region.read_as(offset + line * memory::kLineBytes, in)) return false;
      for (std::uint32_t i = 0; i < 7 && line * 7 + i < kCount; ++i)
        values_[line * 7 + i] = in.values[i];
    }
    return true;
  }

 private:
  std::array<std::uint64_t, kCount> values_{};
};

using KeeperCounters = Counters<KeeperCounter>;
using ClientCounters = Counters<ClientCounter>;

}  // namespace cachalot::pool
