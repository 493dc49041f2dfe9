#include "pool/flights.h"

#include <algorithm>

namespace cachalot::pool {
namespace {

// Far behind any byte that exists, and before the locks of keepers and clients (pool.cpp).
constexpr std::uint64_t kFirstFlight = std::uint64_t{1} << 61;
constexpr std::uint64_t kFlightBytes = std::uint64_t{1} << 48;

std::uint64_t offset_of(const BlockHash& hash) {
  return kFirstFlight + (hash.low ^ hash.high) % kFlightBytes;
}

}  // namespace

Result<Flights> Flights::open(const Pool& pool) {
  CACHALOT_TRY_ASSIGN(os::FileLockSet locks, os::FileLockSet::open(pool.devices().file(0).fd()));
  return Flights(std::move(locks));
}

std::size_t Flights::claim(std::span<const BlockHash> hashes) {
  std::size_t claimed = 0;
  for (; claimed < hashes.size() && claims_.size() < kMostClaims; ++claimed) {
    const std::uint64_t offset = offset_of(hashes[claimed]);
    const Status locked = locks_.try_lock(offset);
    if (!locked && locked.error().code == Code::kBusy) break;
    claims_.push_back(offset);
  }
  return claimed;
}

void Flights::release(std::size_t claims) {
  for (; claims != 0 && !claims_.empty(); --claims) {
    const std::uint64_t offset = claims_.front();
    claims_.pop_front();
    // Two claims on one byte are one lock: the last one unlocks.
    if (std::find(claims_.begin(), claims_.end(), offset) == claims_.end()) locks_.unlock(offset);
  }
}

}  // namespace cachalot::pool
