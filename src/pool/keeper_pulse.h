// Whether a keeper's thread still works, by the count of its publications: some hundred a second, idle or not.
#pragma once

#include <cstdint>

#include "pool/pool_state.h"

namespace cachalot::pool {

// @threads one
class KeeperPulse {
 public:
  // @return how long the ruling keeper has published nothing, as far as the calls saw it: 0 with the first call for a keeper,
  //         and where no count can be read
  std::uint64_t silent_ns(const PoolState& state, std::uint64_t now_ns) {
    std::uint32_t publications = 0;
    const bool is_read = state.read_publications(publications);
    return silent_ns(is_read ? state.read_keepers().epoch : 0, publications, now_ns);
  }

  // @param epoch  0: there is no count
  std::uint64_t silent_ns(std::uint32_t epoch, std::uint32_t publications, std::uint64_t now_ns) {
    if (epoch == 0 || epoch != epoch_ || publications != count_) {
      epoch_ = epoch;
      count_ = publications;
      since_ns_ = now_ns;
    }
    return now_ns - since_ns_;
  }

 private:
  std::uint32_t epoch_ = 0;
  std::uint32_t count_ = 0;
  std::uint64_t since_ns_ = 0;
};

}  // namespace cachalot::pool
