// What all clients of a slot have counted since the pool was made; `cachalot pool info` adds up the slots.
//
// The lines are in the client's page and only the slot's client writes them (R1). A client begins to count
// where the slot's last client ended. So a client's counts stay in the pool however it ends, and no keeper
// takes part in that.
//
// Each line has two copies, which are written in turn. A client that is killed while it writes one copy leaves
// the other: what is lost is what it counted since its last publication.
#pragma once

#include <array>
#include <cstdint>

#include "pool/format/access.h"
#include "pool/format/statistics.h"

namespace cachalot::pool {

// @threads one at a time
class SlotTotals {
 public:
  // What was published last; zeros where nothing was.
  static SlotTotals read(const Access& access, std::uint32_t slot);

  const ClientCounters& values() const { return values_; }
  void publish(const Access& access, std::uint32_t slot, const ClientCounters& values);

 private:
  // Where the newer copy of a line is.
  struct Newest {
    std::uint32_t copy = 1;
    std::uint32_t sequence = 0;  // 0: the line was never published
  };

  ClientCounters values_;
  std::array<Newest, ClientCounters::kLines> newest_{};
};

}  // namespace cachalot::pool
