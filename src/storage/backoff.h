// How long to wait before a request is tried again that a server has refused in passing.
//
// The limit of the pause doubles with each try, and the pause is of random length up to it ("full jitter": M. Brooker,
// Exponential Backoff And Jitter, 2015), so that clients that failed together do not come back together.
//
// @threads one at a time
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>

#include "base/rng.h"

namespace cachalot::storage {

class Backoff {
 public:
  static constexpr unsigned kMostTries = 7;  // of one request
  static constexpr std::uint64_t kFirstNs = 50'000'000, kLongestNs = 2'000'000'000;

  explicit Backoff(std::uint64_t seed = std::random_device{}()) : random_(seed) {}

  // @param tries  that have failed, at least 1
  std::uint64_t next_ns(unsigned tries) {
    const unsigned doublings = std::min(tries, 10u) - 1;
    return random_.below(std::min(kFirstNs << doublings, kLongestNs)) + 1;
  }

 private:
  base::Rng random_;
};

}  // namespace cachalot::storage
