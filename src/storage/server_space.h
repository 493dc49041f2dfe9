// How much may be stored in a server that evicts by itself (Redis, allkeys-lru), so that it need not.
//
// Such a server knows no chains: it drops the parent of a block that is used, because only the pool reads that, and any
// block of a chain that was written in one second. So the store keeps it nine tenths full, by removing the coldest leaves
// itself. It can do so for what it knows. If others store there too, or objects are there that have lost their parents, it
// removes its share of what it adds, and leaves the rest to the server.
//
//   known / used = 0.6:   a put of 10 MB removes the coldest 6 MB that are known; the server evicts 4 MB of all
//
// @threads one at a time
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "storage/backend.h"

namespace cachalot::storage {

class ServerSpace {
 public:
  static constexpr std::uint64_t kMostAgeNs = 1'000'000'000;

  // Whether the server is to be asked before `bytes` are put.
  bool is_due(std::uint64_t bytes, std::uint64_t now_ns) const {
    return now_ns >= asked_ns_ + kMostAgeNs || (has_limit() && added_ + bytes > space_.limit / 256);
  }
  // @param known_bytes, known_objects  bodies that the store knows to be there
  void take(const Space& space, std::uint64_t known_bytes, std::uint64_t known_objects,
            std::uint64_t now_ns) {
    space_ = space;
    asked_ns_ = now_ns;
    added_ = 0;
    known_bytes_ = known_bytes;
    known_used_ = used_by(known_bytes, known_objects);
  }
  void add(std::uint64_t bytes) { added_ += bytes; }

  // What all bodies together may have after a put. @param held  bytes of those that are known now
  std::uint64_t limit(std::uint64_t held, std::uint64_t bytes) const {
    if (!has_limit()) return ~std::uint64_t{0};
    const double target = 0.9 * static_cast<double>(space_.limit);
    const double used = static_cast<double>(space_.used);
    const double known = static_cast<double>(known_used_);
    // Bytes of bodies in a byte of the server's.
    const double part = known == 0 ? 0.8 : static_cast<double>(known_bytes_) / known;
    const double share = used == 0 || known >= kNearlyAll * used ? 1 : known / used;
    const double added = static_cast<double>(bytes);
    double growth = (target - used) * part - static_cast<double>(added_);
    if (growth < added) {
      // Little by little back to the target, if all is known.
      const double over = share == 1 ? std::min(-std::min(growth, 0.0), added) : 0;
      growth = std::max(growth, (1 - share) * added - over);
    }
    const double all = static_cast<double>(held) + growth;
    return std::max(2 * bytes, all < 0 ? 0 : static_cast<std::uint64_t>(all));
  }

 private:
  static constexpr double kNearlyAll = 0.8;

  bool has_limit() const { return space_.limit != 0; }
  // Values take blocks of the allocator's classes, four to each power of two, and about 200 bytes more.
  static std::uint64_t used_by(std::uint64_t bytes, std::uint64_t objects) {
    if (objects == 0) return 0;
    const std::uint64_t value = bytes / objects + sizeof(ObjectHead) + 16;
    const std::uint64_t step = std::max<std::uint64_t>(std::bit_floor(value) / 4, 16);
    return objects * ((value + step - 1) / step * step + 200);
  }

  Space space_;
  std::uint64_t asked_ns_ = 0, added_ = 0, known_bytes_ = 0, known_used_ = 0;
};

}  // namespace cachalot::storage
