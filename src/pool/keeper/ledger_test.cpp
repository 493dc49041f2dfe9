// What the keeper remembers of blocks, and what it leaves in the pool for its successor.

#include "pool/keeper/ledger.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <deque>

#include "testing/pool/test_pool.h"

namespace cachalot::pool {
namespace {

RC_GTEST_PROP(BlockTable, FreeBlocksComeBackFirstInFirstOutAndAllAreAccountedFor, ()) {
  BlockTable table(20);
  std::deque<std::uint32_t> free;
  std::vector<std::uint32_t> held;
  for (std::uint32_t block = 0; block < 20; ++block) {
    table.push_free(block);
    free.push_back(block);
  }
  for (const auto dice : *rc::gen::arbitrary<std::vector<std::uint8_t>>()) {
    if (dice % 2 == 0) {
      const std::uint32_t block = table.pop_free();
      RC_ASSERT(block == (free.empty() ? kNoBlock : free.front()));
      if (block == kNoBlock) continue;
      free.pop_front();
      table.set_state(block, dice % 4 == 0 ? BlockState::kGranted : BlockState::kLive);
      held.push_back(block);
    } else if (!held.empty()) {
      const std::size_t at = dice % held.size();
      table.set_state(held[at], BlockState::kFree);
      table.push_free(held[at]);
      free.push_back(held[at]);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
    }
    RC_ASSERT(table.is_valid());
    RC_ASSERT(table.count(BlockState::kFree) == free.size());
    RC_ASSERT(table.count(BlockState::kGranted) + table.count(BlockState::kLive) == held.size());
  }
}

TEST(BlockTable, NoticesABlockThatIsFreeTwiceOrNotQueued) {
  BlockTable table(4);
  EXPECT_FALSE(table.is_valid());  // all free, none in the queue
  for (std::uint32_t block = 0; block < 3; ++block) table.push_free(block);
  EXPECT_FALSE(table.is_valid());
  BlockTable good = table;
  good.push_free(3);
  EXPECT_TRUE(good.is_valid());
  table.push_free(2);
  EXPECT_FALSE(table.is_valid());
}

TEST(Ledger, RecordsComeBackAsTheyWereWritten) {
  TestPool pool;
  BlockTable table(pool.access().geometry.blocks);
  Ledger ledger(pool.access(), table);
  ledger.rule(2);
  constexpr BlockState kStates[] = {BlockState::kFree, BlockState::kGranted, BlockState::kLive,
                                    BlockState::kQuarantined, BlockState::kBad};
  constexpr LedgerState kWritten[] = {LedgerState::kFree, LedgerState::kGranted, LedgerState::kLive,
                                      LedgerState::kQuarantined, LedgerState::kBad};
  for (std::uint32_t block = 0; block < table.size(); ++block) {
    table.set_state(block, kStates[block % 5]);
    table.set_generation(block, block * 7 + 1);
    table.record(block).holder = static_cast<std::uint16_t>(block % 3);
    table.record(block).incarnation = block + 1000;
  }
  ledger.write(0, table.size());
  for (std::uint32_t block = 0; block < table.size(); ++block) {
    const LedgerRecord record = Ledger::read(pool.access(), 2, block);
    EXPECT_EQ(record.state, kWritten[block % 5]);
    EXPECT_EQ(record.generation, block * 7 + 1);
    EXPECT_EQ(record.holder, block % 3);
    EXPECT_EQ(record.incarnation, block + 1000);
  }
}

TEST(Ledger, FlushWritesTheLinesOfTouchedBlocksAndNoOthers) {
  TestPool pool;
  BlockTable table(pool.access().geometry.blocks);
  Ledger ledger(pool.access(), table);
  ledger.rule(0);
  ledger.write(0, table.size());
  for (std::uint32_t block = 0; block < table.size(); ++block) table.set_generation(block, 9);
  for (const std::uint32_t block : {12u, 3u, 12u, 11u, 127u, 3u}) ledger.touch(block);
  ledger.flush();
  for (std::uint32_t block = 0; block < table.size(); ++block) {
    const std::uint32_t line = block / kLedgerRecordsPerLine;
    const bool touched = line == 0 || line == 2 || line == 127 / kLedgerRecordsPerLine;
    EXPECT_EQ(Ledger::read(pool.access(), 0, block).generation, touched ? 9u : 0u) << block;
  }
}

TEST(Ledger, ALineThatDoesNotCheckReadsAsHeldBySomebody) {
  TestPool pool;
  BlockTable table(pool.access().geometry.blocks);
  Ledger ledger(pool.access(), table);
  ledger.rule(0);
  ledger.write(0, table.size());
  EXPECT_EQ(Ledger::read(pool.access(), 0, 7).state, LedgerState::kFree);
  pool.damage(pool.access().layout.ledger_line(0, 7));
  const LedgerRecord record = Ledger::read(pool.access(), 0, 7);
  EXPECT_EQ(record.state, LedgerState::kQuarantined);
  EXPECT_EQ(record.holder, kUnknownHolder);
}

}  // namespace
}  // namespace cachalot::pool
