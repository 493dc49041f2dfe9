#include "eviction/structure/name_table.h"

#include <gtest/gtest.h>

#include <map>

#include "base/rng.h"

namespace cachalot::eviction {
namespace {

TEST(NameTable, FindsWhatWasAddedAndNotRemoved) {
  NameTable table;
  std::map<std::uint64_t, std::uint32_t> expected;
  std::map<std::uint32_t, std::uint64_t> name_of;
  base::Rng rng(17);
  std::uint32_t number = 0;
  for (int step = 0; step < 100000; ++step) {
    // Some differ in their lowest bits only, some in their highest: those share a tag or a home.
    const std::uint64_t name = rng.below(3000) << (rng.below(2) == 0 ? 0 : 50);
    const std::uint32_t found =
        table.find(name, [&](std::uint32_t n) { return name_of.at(n) == name; });
    const auto at = expected.find(name);
    ASSERT_EQ(found, at == expected.end() ? NameTable::kNone : at->second);
    if (at == expected.end()) {
      name_of[number] = name;
      expected[name] = number;
      table.add(name, number++);
    } else {
      table.remove(name, at->second);
      name_of.erase(at->second);
      expected.erase(at);
    }
  }
}

}  // namespace
}  // namespace cachalot::eviction
