// From the address that a user holds to what stands there: a hash table with linear probing.
//
// @threads one at a time
// @cost    a cache line or two a call; at most half of the places are taken
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/rng.h"

namespace cachalot::device_memory {

template <class Value>
class AddressMap {
 public:
  std::size_t size() const { return size_; }

  // `address` is not 0 and not in it.
  void insert(std::uint64_t address, Value value) {
    if ((size_ + 1) * 2 > places_.size()) grow();
    place(address, std::move(value));
    ++size_;
  }

  // Null: it is not in it. Valid until the next change.
  Value* find(std::uint64_t address) {
    if (size_ == 0 || address == 0) return nullptr;
    for (std::size_t i = home(address);; i = next(i)) {
      if (places_[i].address == address) return &places_[i].value;
      if (places_[i].address == 0) return nullptr;
    }
  }

  // Takes it out and returns what stood there. @param address  is in it
  // Those behind it move up, so that no gaps stay.
  Value take(std::uint64_t address) {
    std::size_t gap = home(address);
    while (places_[gap].address != address) gap = next(gap);
    Value value = std::move(places_[gap].value);
    for (std::size_t i = next(gap); places_[i].address != 0; i = next(i)) {
      const std::size_t wanted = home(places_[i].address);
      const bool stays = gap <= i ? gap < wanted && wanted <= i : gap < wanted || wanted <= i;
      if (stays) continue;
      places_[gap] = std::move(places_[i]);
      gap = i;
    }
    places_[gap] = Place{};
    --size_;
    return value;
  }

  template <class Visit>
  void for_each(Visit visit) const {
    for (const Place& place : places_) {
      if (place.address != 0) visit(place.address, place.value);
    }
  }

 private:
  struct Place {
    std::uint64_t address = 0;
    Value value{};
  };

  std::size_t next(std::size_t i) const { return (i + 1) & (places_.size() - 1); }
  std::size_t home(std::uint64_t address) const {
    return base::mix64(address) & (places_.size() - 1);
  }
  void place(std::uint64_t address, Value value) {
    std::size_t i = home(address);
    while (places_[i].address != 0) i = next(i);
    places_[i] = {address, std::move(value)};
  }
  void grow() {
    std::vector<Place> old(places_.empty() ? 64 : places_.size() * 2);
    old.swap(places_);
    for (Place& each : old) {
      if (each.address != 0) place(each.address, std::move(each.value));
    }
  }

  std::vector<Place> places_;
  std::size_t size_ = 0;
};

}  // namespace cachalot::device_memory
