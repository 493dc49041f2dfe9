// Counters that any process that maps the pool can read: the keeper's in its page, each client's in its own.
//
// They are 64-bit and only informative: published every 10 ms or so, each line consistent in
// itself, different lines perhaps of different moments.
#pragma once

#include <array>
#include <atomic>
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
  kCapacityEvictions,
  kRequestedEvictions,
  kNoSpaceGrants,
  kOverLimitGrants,
  // kRefused by reason
  kNoSpaceCommits,
  kNoParentCommits,
  kInvalidCommits,
  // others
  kNotHeldCommits,
  kNoSpaceNamespaces,
  kAbsent,  // blocks, at this moment
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
  // Each prompt once; see Statistics in cachalot/client.h.
  kPrompts,
  kPromptBlocks,
  kUsedPoolBlocks,
  kUsedPeerBlocks,
  kUsedStorageBlocks,
  kCount
};

const char* counter_name(KeeperCounter counter);
const char* counter_name(ClientCounter counter);

template <class Counter>
class Counters {
 public:
  static constexpr std::uint32_t kCount = static_cast<std::uint32_t>(Counter::kCount);
  static constexpr std::uint32_t kLines = (kCount + 6) / 7;

  std::uint64_t& operator[](Counter counter) {
    return values_[static_cast<std::uint32_t>(counter)];
  }
  std::uint64_t operator[](Counter counter) const {
    return values_[static_cast<std::uint32_t>(counter)];
  }

  Counters& operator+=(const Counters& more) {
    for (std::uint32_t i = 0; i < kCount; ++i) values_[i] += more.values_[i];
    return *this;
  }
  bool operator==(const Counters&) const = default;

  CounterLine line(std::uint32_t line, std::uint32_t sequence) const {
    CounterLine out{};
    for (std::uint32_t i = 0; i < 7 && line * 7 + i < kCount; ++i)
      out.values[i] = values_[line * 7 + i];
    out.sequence = sequence;
    return out;
  }
  void take_line(std::uint32_t line, const CounterLine& in) {
    for (std::uint32_t i = 0; i < 7 && line * 7 + i < kCount; ++i)
      values_[line * 7 + i] = in.values[i];
  }

  void publish(const memory::SealedRegion& region, std::uint64_t offset,
               std::uint32_t sequence) const {
    for (std::uint32_t i = 0; i < kLines; ++i)
      region.publish(offset + i * memory::kLineBytes, line(i, sequence));
  }
  // False if they were never published. A process of an earlier version publishes fewer lines: the rest is zeros.
  bool read(const memory::SealedRegion& region, std::uint64_t offset) {
    for (std::uint32_t i = 0; i < kLines; ++i) {
      CounterLine in{};
      if (!region.read_as(offset + i * memory::kLineBytes, in)) return i != 0;
      take_line(i, in);
    }
    return true;
  }

 private:
  std::array<std::uint64_t, kCount> values_{};
};

using KeeperCounters = Counters<KeeperCounter>;
using ClientCounters = Counters<ClientCounter>;

// A client's counters while it counts: one thread counts, any thread reads.
class LiveClientCounters {
 public:
  // Relaxed: a count orders nothing.
  class Count {
   public:
    Count& operator+=(std::uint64_t n) {
      value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
      return *this;
    }
    Count& operator++() { return *this += 1; }
    operator std::uint64_t() const {  // NOLINT: reads like the number that it is
      return value_.load(std::memory_order_relaxed);
    }

   private:
    std::atomic<std::uint64_t> value_ = 0;
  };

  Count& operator[](ClientCounter counter) { return values_[static_cast<std::uint32_t>(counter)]; }
  std::uint64_t operator[](ClientCounter counter) const {
    return values_[static_cast<std::uint32_t>(counter)];
  }
  ClientCounters read() const {
    ClientCounters now;
    for (std::uint32_t i = 0; i < ClientCounters::kCount; ++i)
      now[static_cast<ClientCounter>(i)] = values_[i];
    return now;
  }

 private:
  std::array<Count, ClientCounters::kCount> values_;
};

}  // namespace cachalot::pool
