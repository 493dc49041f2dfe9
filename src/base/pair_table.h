// Numbers pairs of 64-bit values in the order in which they are first met: 0, 1, 2 …
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/rng.h"

namespace cachalot::trace {

// @cost 16 bytes a pair, and 8 to 16 for its place
class PairTable {
 public:
  struct Pair {
    std::uint64_t first = 0;
    std::uint64_t second = 0;
    friend bool operator==(const Pair&, const Pair&) = default;
  };
  struct Found {
    std::uint64_t number;
    bool is_new;
  };

  PairTable() : places_(kFirstPlaces, 0) {}

  Found find_or_add(const Pair& pair) {
    if ((pairs_.size() + 1) * 2 > places_.size()) grow();
    std::uint64_t& place = place_of(pair);
    if (place != 0) return {place - 1, false};
    pairs_.push_back(pair);
    place = pairs_.size();
    return {place - 1, true};
  }

  // In the order of their numbers.
  std::span<const Pair> pairs() const { return pairs_; }

 private:
  static constexpr std::size_t kFirstPlaces = 1024;  // always a power of two

  std::uint64_t& place_of(const Pair& pair) {
    const std::uint64_t hash =
        base::mix64(pair.first * 0x9e3779b97f4a7c15u ^ base::mix64(pair.second));
    for (std::size_t at = hash;; ++at) {
      std::uint64_t& place = places_[at & (places_.size() - 1)];
      if (place == 0 || pairs_[place - 1] == pair) return place;
    }
  }

  void grow() {
    places_.assign(places_.size() * 2, 0);
    for (std::size_t i = 0; i < pairs_.size(); ++i) place_of(pairs_[i]) = i + 1;
  }

  std::vector<Pair> pairs_;
  std::vector<std::uint64_t> places_;  // number + 1; 0: free
};

}  // namespace cachalot::trace
