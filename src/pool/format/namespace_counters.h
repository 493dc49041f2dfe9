// What a keeper counts of each namespace, for any process that maps the pool.
#pragma once

#include <cstdint>

#include "pool/format/access.h"

namespace cachalot::pool {

struct NamespaceCounters {
  std::uint64_t live_blocks = 0;
  std::uint64_t quota_blocks = 0;  // 0: none
  // by this keeper
  std::uint64_t committed_blocks = 0;
  std::uint64_t evicted_blocks = 0;  // for whatever reason

  bool operator==(const NamespaceCounters&) const = default;
};

// @param id  of the namespace, from 1; nothing is written where the pool has no room for it
void publish_namespace_counters(const Access& access, std::uint32_t area, std::uint32_t epoch,
                                std::uint32_t id, const NamespaceCounters& counters);

// Zeros where this keeper has written none.
NamespaceCounters read_namespace_counters(const Access& access, std::uint32_t area,
                                          std::uint32_t epoch, std::uint32_t id);

}  // namespace cachalot::pool
