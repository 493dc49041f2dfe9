#include "testing/memory/write_buffer.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <vector>

namespace cachalot::memory {
namespace {

constexpr std::uint64_t kLines = 8;

Line filled(std::uint64_t value) {
  Line line;
  for (std::uint64_t& word : line.words) word = value;
  return line;
}

// Write n stores the value n in all words of its line.
struct Write {
  std::size_t core;
  std::uint64_t line;
  std::size_t ordered_before;  // how many writes had been ordered, by any core
  std::uint8_t performed = 0;  // words that have drained
};

RC_GTEST_PROP(WriteBuffer, DrainsNothingBeforeWhatWasOrderedEarlier, ()) {
  WriteBuffer buffer(kLines);
  base::Rng rng(*rc::gen::arbitrary<std::uint64_t>());
  std::vector<Write> writes = {{99, 0, 0}};
  std::vector<std::size_t> ordered;                      // in the order of closing
  std::map<std::size_t, std::vector<std::size_t>> open;  // by core
  std::size_t device[kLines][8] = {};
  WriteBuffer::Drained drained;
  for (int step = 0; step < 300; ++step) {
    const std::size_t core = rng.below(3);
    const std::uint64_t kind = rng.below(8);
    if (kind < 2) {
      const std::uint64_t line = rng.below(kLines);
      buffer.put(core, line, filled(writes.size()));
      // What is still open there may never be seen.
      std::erase_if(open[core], [&](std::size_t n) { return writes[n].line == line; });
      open[core].push_back(writes.size());
      writes.push_back({core, line, ordered.size()});
    } else if (kind == 2) {
      buffer.order(core);
      ordered.insert(ordered.end(), open[core].begin(), open[core].end());
      open[core].clear();
    } else if (buffer.drain_any(rng, 0.2, drained)) {
      for (unsigned word = 0; word < 8; ++word) {
        if ((drained.mask >> word & 1) == 0) continue;
        const std::size_t n = drained.value.words[word];
        Write& write = writes[n];
        RC_ASSERT(write.line == drained.line);
        for (std::size_t i = 0; i < write.ordered_before; ++i) {
          RC_ASSERT(writes[ordered[i]].performed == 0xff);
        }
        std::size_t& on_device = device[drained.line][word];
        RC_ASSERT(writes[on_device].core != write.core || on_device < n);
        on_device = n;
        write.performed = static_cast<std::uint8_t>(write.performed | 1 << word);
      }
    }
  }
}

TEST(WriteBuffer, DrainsUpToAStampAndNoFurther) {
  WriteBuffer buffer(kLines);
  base::Rng rng(1);
  WriteBuffer::Drained drained;
  buffer.put(0, 1, filled(1));
  const std::uint64_t stamp = buffer.order(0);
  buffer.put(1, 2, filled(2));
  buffer.order(1);
  buffer.put(0, 3, filled(3));
  while (buffer.drain_through(stamp, rng, 0.0, drained)) EXPECT_EQ(drained.line, 1u);
  EXPECT_FALSE(buffer.holds(1));
  EXPECT_TRUE(buffer.holds(2));
  EXPECT_TRUE(buffer.holds(3));
  EXPECT_EQ(buffer.lines(), 2u);
  while (buffer.drain_any(rng, 0.0, drained)) {
  }
  EXPECT_EQ(buffer.lines(), 0u);
}

TEST(WriteBuffer, ShowsACoreItsOwnWordsAndOthersOnlyWhatIsOrdered) {
  WriteBuffer buffer(kLines);
  buffer.put(0, 1, filled(5));
  Line own = filled(0), other = filled(0);
  buffer.overlay(0, 1, own);
  buffer.overlay(1, 1, other);
  EXPECT_EQ(own, filled(5));
  EXPECT_EQ(other, filled(0));
  buffer.order(0);
  buffer.overlay(1, 1, other);
  EXPECT_EQ(other, filled(5));
}

}  // namespace
}  // namespace cachalot::memory
