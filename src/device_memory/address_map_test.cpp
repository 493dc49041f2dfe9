#include "device_memory/address_map.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <map>

namespace cachalot::device_memory {
namespace {

RC_GTEST_PROP(AddressMap, HoldsWhatAnOrderedMapHolds, ()) {
  AddressMap<int> map;
  std::map<std::uint64_t, int> naive;
  const auto steps = *rc::gen::inRange(0, 400);
  for (int step = 0; step < steps; ++step) {
    const auto address = *rc::gen::inRange<std::uint64_t>(1, 120) * 512;
    if (naive.contains(address)) {
      RC_ASSERT(*map.find(address) == naive[address]);
      RC_ASSERT(map.take(address) == naive[address]);
      naive.erase(address);
    } else {
      RC_ASSERT(map.find(address) == nullptr);
      map.insert(address, step);
      naive[address] = step;
    }
    RC_ASSERT(map.size() == naive.size());
  }
  std::map<std::uint64_t, int> seen;
  map.for_each([&](std::uint64_t address, int value) { seen[address] = value; });
  RC_ASSERT(seen == naive);
}

}  // namespace
}  // namespace cachalot::device_memory
