// What the simulated worlds have in common: the names and bytes of blocks, a waiter, the pool's geometry.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/rng.h"
#include "pool/format/access.h"
#include "rpc/waiter.h"
#include "testing/memory/scheduler.h"

namespace cachalot::model {

// Lets the other fibers run.
class YieldWaiter final : public rpc::Waiter {
 public:
  explicit YieldWaiter(memory::Scheduler& scheduler) : scheduler_(scheduler) {}
  void wait(std::uint32_t) override { scheduler_.yield(); }

 private:
  memory::Scheduler& scheduler_;
};

inline BlockHash name_of(std::uint32_t chain, std::uint32_t depth) {
  const std::uint64_t id = chain * 1000 + depth;
  return {base::mix64(id + 1), base::mix64(~id)};
}

inline std::byte byte_of(const BlockHash& hash, std::uint32_t i) {
  return static_cast<std::byte>(base::mix64(hash.high + i / 8) >> (i % 8 * 8));
}

// A directory of one bucket. @param options  of a world
template <class Options>
pool::Geometry geometry_of(const Options& options, std::uint32_t clients) {
  pool::Geometry g;
  g.domain = memory::DomainKind::kLossy;
  g.block_bytes = options.block_bytes;
  g.capacity_blocks = options.capacity;
  g.blocks = options.capacity + options.slack;
  g.directory_slots = pool::kBucketSlots;
  g.clients = clients;
  return g;
}

inline std::uint64_t device_bytes_of(const pool::Geometry& geometry) {
  const Result<std::uint64_t> bytes = pool::device_bytes_needed(geometry);
  return bytes ? *bytes : 0;
}

}  // namespace cachalot::model
