// Says in the log what the keeper has refused since its last line about it: one line a minute at most.
//
// @threads  one
#pragma once

#include <cstdint>

#include "pool/format/statistics.h"

namespace cachalot::pool {

class RefusalLog {
 public:
  // @cost  a look at seven counters, unless something was refused
  void tell(const KeeperCounters& now, std::uint64_t now_ns);

 private:
  KeeperCounters told_;
  std::uint64_t next_ns_ = 0;
};

}  // namespace cachalot::pool
