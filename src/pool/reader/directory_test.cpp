// The directory between its writer and its readers, over plain memory.

#include "pool/reader/directory.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdio>
#include <map>

#include "memory/forwarding_domain.h"
#include "pool/keeper/directory_writer.h"
#include "pool/reader/validated_read.h"
#include "testing/pool/test_pool.h"

namespace cachalot::pool {
namespace {

using memory::Line;

// Counts the lines that lookups gather.
class CountingDomain final : public memory::ForwardingDomain {
 public:
  void gather_lines(const void* const* from, std::size_t n, Line* lines) override {
    gathered += n;
    ++gathers;
    ForwardingDomain::gather_lines(from, n, lines);
  }

  std::uint64_t gathered = 0, gathers = 0;
};

constexpr std::uint32_t kNamespace = 1;

// A writer with its table, as a keeper has them, and a ruling keeper's line.
class Directory {
 public:
  explicit Directory(std::uint32_t slots, std::uint32_t blocks)
      : Directory(slots, blocks, memory::make_coherent_domain()) {}
  Directory(std::uint32_t slots, std::uint32_t blocks, std::unique_ptr<memory::Domain> domain)
      : pool_(geometry(slots, blocks), std::move(domain)),
        table_(blocks),
        writer_(pool_.access(), table_),
        reader_(pool_.access()) {
    writer_.rule(1);
    KeeperLine line{};
    line.epoch = line.min_epoch = 1;
    pool_.put_line(pool_.access().layout.keeper_line(0), line);
    for (std::uint32_t block = 0; block < blocks; ++block) table_.push_free(block);
  }

  // False if the bucket is full.
  bool insert(const BlockHash& hash) {
    const std::uint32_t slot = writer_.choose_slot(hash, kNamespace);
    if (slot == DirectoryWriter::kNoSlot) return false;
    const std::uint32_t block = table_.pop_free();
    table_.set_generation(block, table_.use(block).generation + 1);
    table_.set_namespace(block, kNamespace);
    table_.set_state(block, BlockState::kLive);
    BlockTable::Record& record = table_.record(block);
    record.hash = hash;
    record.length = 64;
    record.slot = slot;
    writer_.publish(block);
    return true;
  }
  void erase(const BlockHash& hash) {
    const std::uint32_t block = writer_.find(hash, kNamespace);
    writer_.retract(block);
    table_.set_state(block, BlockState::kFree);
    table_.push_free(block);
  }
  // What find_each() says of all of them.
  std::vector<bool> find_each(const std::vector<BlockHash>& hashes) const {
    const auto is_published = std::make_unique<bool[]>(hashes.size());
    reader_.find_each(hashes, kNamespace, {is_published.get(), hashes.size()});
    return std::vector<bool>(is_published.get(), is_published.get() + hashes.size());
  }
  std::vector<bool> look_one_by_one(const std::vector<BlockHash>& hashes) const {
    std::vector<bool> is_published;
    for (const BlockHash& hash : hashes) is_published.push_back(look(hash) != kNoBlock);
    return is_published;
  }
  std::uint32_t block_of(const BlockHash& hash) const { return writer_.find(hash, kNamespace); }
  std::size_t count_unchanged(const KeeperView& view, std::span<const Found> found) const {
    return ValidatedRead(pool_.access(), view, found, false).validate().valid;
  }
  // The block that a reader finds, or kNoBlock.
  std::uint32_t look(const BlockHash& hash) const {
    Found found;
    KeeperView view;
    return reader_.lookup({&hash, 1}, kNamespace, view, {&found, 1}) == 1 ? found.entry.block
                                                                          : kNoBlock;
  }
  bool is_valid() const { return writer_.is_valid() && table_.is_valid(); }

  TestPool& pool() { return pool_; }
  DirectoryWriter& writer() { return writer_; }
  DirectoryReader& reader() { return reader_; }
  Layout layout() const { return pool_.access().layout; }

 private:
  static Geometry geometry(std::uint32_t slots, std::uint32_t blocks) {
    Geometry g = small_geometry();
    g.block_bytes = 64;
    g.blocks = g.capacity_blocks = blocks;
    g.directory_slots = slots;
    g.clients = 1;
    return g;
  }

  TestPool pool_;
  BlockTable table_;
  DirectoryWriter writer_;
  DirectoryReader reader_;
};

void random_use_against_a_map(std::uint32_t slots) {
  Directory directory(slots, slots);
  std::map<std::uint64_t, std::uint32_t> model;  // name -> block
  const auto moves = *rc::gen::container<std::vector<std::pair<bool, std::uint8_t>>>(
      rc::gen::pair(rc::gen::arbitrary<bool>(), rc::gen::arbitrary<std::uint8_t>()));
  for (const auto& [inserts, name] : moves) {
    const BlockHash hash = hash_of(name);
    if (inserts && model.count(name) == 0) {
      if (directory.insert(hash)) model[name] = directory.block_of(hash);
    } else if (!inserts && model.count(name) != 0) {
      directory.erase(hash);
      model.erase(name);
    }
  }
  RC_ASSERT(directory.is_valid());
  for (std::uint64_t name = 0; name < 256; ++name) {
    const auto at = model.find(name);
    RC_ASSERT(directory.look(hash_of(name)) == (at == model.end() ? kNoBlock : at->second));
  }
}

RC_GTEST_PROP(Directory, OneBucketFindsExactlyWhatIsIn, ()) {
  random_use_against_a_map(64);
}
RC_GTEST_PROP(Directory, FourBucketsFindExactlyWhatIsIn, ()) {
  random_use_against_a_map(256);
}

TEST(Directory, ABucketHoldsSixtyFourEntriesAllFoundAndNoMore) {
  Directory directory(64, 80);
  for (std::uint64_t name = 0; name < 64; ++name) EXPECT_TRUE(directory.insert(hash_of(name)));
  EXPECT_FALSE(directory.insert(hash_of(64)));
  for (std::uint64_t name = 0; name < 64; ++name) EXPECT_EQ(directory.look(hash_of(name)), name);
  EXPECT_EQ(directory.look(hash_of(64)), kNoBlock);
  directory.erase(hash_of(17));
  EXPECT_TRUE(directory.insert(hash_of(64)));
  EXPECT_NE(directory.look(hash_of(64)), kNoBlock);
  EXPECT_TRUE(directory.is_valid());
}

TEST(Directory, TheHomeLineHasABitForEachEntryThatStandsElsewhereAndNoOther) {
  Directory directory(64, 64);
  base::Rng rng(3);
  std::map<std::uint64_t, bool> in;
  for (int i = 0; i < 2000; ++i) {
    const std::uint64_t name = rng.below(100);
    if (in[name]) {
      directory.erase(hash_of(name));
      in[name] = false;
    } else {
      in[name] = directory.insert(hash_of(name));
    }
  }
  std::uint64_t expected[64] = {};
  for (const auto& [name, is_in] : in) {
    if (!is_in) continue;
    const std::uint32_t slot = directory.pool().slot_of(hash_of(name));
    const std::uint32_t home = home_of(hash_of(name), kNamespace, 64).slot;
    if (slot != home) expected[home] |= std::uint64_t{1} << slot;
  }
  for (std::uint32_t slot = 0; slot < 64; ++slot) {
    EXPECT_EQ(directory.pool().line_at<Entry>(directory.layout().entry(slot)).spill, expected[slot])
        << slot;
  }
}

TEST(Directory, ALongPromptIsFoundToItsLastBlockWhereverItsEntriesStand) {
  Directory directory(512, 500);
  std::vector<BlockHash> hashes;
  for (std::uint64_t name = 0; name < 480; ++name) {
    if (directory.insert(hash_of(name))) hashes.push_back(hash_of(name));
  }
  // Nearly full, so that spilled entries break batches in many places.
  ASSERT_GT(hashes.size(), 450u);
  std::vector<Found> found(hashes.size() + 1);
  KeeperView view;
  EXPECT_EQ(directory.reader().lookup(hashes, kNamespace, view, found), hashes.size());
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    EXPECT_EQ(found[i].entry.hash_low, hashes[i].low);
    EXPECT_EQ(found[i].entry.block, directory.block_of(hashes[i]));
  }
  EXPECT_EQ(directory.count_unchanged(view, {found.data(), hashes.size()}), hashes.size());
  for (const std::size_t gap : {0ul, 1ul, 127ul, 128ul, 129ul, 300ul}) {
    std::vector<BlockHash> with_gap = hashes;
    with_gap[gap] = hash_of(99'999);
    EXPECT_EQ(directory.reader().lookup(with_gap, kNamespace, view, found), gap);
    for (std::size_t i = 0; i < gap; ++i) EXPECT_EQ(found[i].entry.hash_low, hashes[i].low);
  }
}

// Absent hashes in between, duplicates, entries that were evicted, and spilled ones that break batches.
TEST(Directory, FindEachTellsOfEveryHashWhatALookupOfItAloneTells) {
  for (const bool is_coherent : {true, false}) {
    Directory directory(
        512, 500, is_coherent ? memory::make_coherent_domain() : memory::make_noncoherent_domain());
    std::vector<std::uint64_t> names;
    for (std::uint64_t name = 0; name < 490; ++name) {
      if (directory.insert(hash_of(name))) names.push_back(name);
    }
    for (std::size_t i = 0; i < names.size(); i += 7) directory.erase(hash_of(names[i]));
    base::Rng rng(3);
    for (const std::size_t count : {0ul, 1ul, 2ul, 127ul, 128ul, 129ul, 1000ul}) {
      std::vector<BlockHash> hashes;
      while (hashes.size() < count) hashes.push_back(hash_of(rng.below(700)));
      EXPECT_EQ(directory.find_each(hashes), directory.look_one_by_one(hashes)) << count;
    }
    const std::vector<BlockHash> absent(300, hash_of(99'999)), present(300, hash_of(names[1]));
    EXPECT_EQ(directory.find_each(absent), std::vector<bool>(300, false));
    EXPECT_EQ(directory.find_each(present), std::vector<bool>(300, true));
  }
}

TEST(Directory, FindEachReadsTheLinesOfABatchTogether) {
  auto owned = std::make_unique<CountingDomain>();
  CountingDomain& domain = *owned;
  Directory directory(4096, 1024, std::move(owned));
  std::vector<BlockHash> hashes;
  for (std::uint64_t name = 0; name < 256; ++name) {
    if (name % 2 == 0) directory.insert(hash_of(name));
    hashes.push_back(hash_of(name));
  }
  domain.gathers = 0;
  directory.find_each(hashes);
  EXPECT_LE(domain.gathers, 4u) << "at most two for 128 hashes: where they belong, and elsewhere";
}

TEST(Directory, AnotherNamespaceOrEpochFindsNothing) {
  Directory directory(64, 64);
  directory.insert(hash_of(1));
  const BlockHash hash = hash_of(1);
  Found found;
  KeeperView view;
  EXPECT_EQ(directory.reader().lookup({&hash, 1}, kNamespace + 1, view, {&found, 1}), 0u);
  ASSERT_NE(directory.look(hash), kNoBlock);
  KeeperLine line{};
  line.epoch = line.min_epoch = 2;
  directory.pool().put_line(directory.layout().keeper_line(1), line);
  EXPECT_EQ(directory.look(hash), kNoBlock);
  line.min_epoch = 1;
  directory.pool().put_line(directory.layout().keeper_line(1), line);
  EXPECT_NE(directory.look(hash), kNoBlock);
}

// Between machines a keeper may announce itself by an older look at the pool, with the min_epoch of then.
TEST(Directory, AnEpochThatHasEndedStaysEndedWhileAnOlderLookRules) {
  Directory directory(64, 8);
  ASSERT_TRUE(directory.insert(hash_of(1)));
  KeeperLine line{};
  line.epoch = line.min_epoch = 3;
  directory.pool().put_line(directory.layout().keeper_line(1), line);
  EXPECT_EQ(directory.look(hash_of(1)), kNoBlock);
  line.epoch = 4;
  line.min_epoch = 1;
  directory.pool().put_line(directory.layout().keeper_line(2), line);
  EXPECT_EQ(directory.look(hash_of(1)), kNoBlock);
}

TEST(Directory, ValidationEndsAtTheFirstEntryThatIsNotTheSameUse) {
  Directory directory(256, 64);
  std::vector<BlockHash> hashes;
  for (std::uint64_t name = 0; name < 10; ++name) {
    directory.insert(hash_of(name));
    hashes.push_back(hash_of(name));
  }
  std::vector<Found> found(10);
  KeeperView view;
  ASSERT_EQ(directory.reader().lookup(hashes, kNamespace, view, found), 10u);
  // Neighbours come and go: spill bits change, the entries do not.
  for (std::uint64_t name = 100; name < 150; ++name) directory.insert(hash_of(name));
  EXPECT_EQ(directory.count_unchanged(view, found), 10u);
  // The same hash in the same block, but for another use.
  directory.erase(hash_of(6));
  directory.insert(hash_of(6));
  EXPECT_EQ(directory.count_unchanged(view, found), 6u);
  KeeperLine line{};
  line.epoch = 2;
  line.min_epoch = 1;
  directory.pool().put_line(directory.layout().keeper_line(1), line);
  EXPECT_EQ(directory.count_unchanged(view, found), 0u);
}

TEST(Directory, DamagedAndTornLinesAreAbsentAndNeverAnotherBlock) {
  base::Rng rng(11);
  for (int round = 0; round < 60; ++round) {
    Directory directory(64, 64);
    for (std::uint64_t name = 0; name < 50; ++name) directory.insert(hash_of(name));
    std::byte* lines = directory.pool().access().view.bases[0] + directory.layout().directory;
    const std::size_t hits = 1 + rng.below(64);
    for (std::size_t i = 0; i < hits; ++i) {
      const std::size_t line = rng.below(64) * 64;
      switch (rng.below(4)) {
        case 0:  // one byte
          lines[line + rng.below(64)] = static_cast<std::byte>(rng.next());
          break;
        case 1:  // all of it
          for (int b = 0; b < 64; ++b) lines[line + b] = static_cast<std::byte>(rng.next());
          break;
        case 2:  // torn: the first half of one, the second of another
          std::memcpy(lines + line, lines + rng.below(64) * 64, 32);
          break;
        default:  // what lost memory looks like
          std::memset(lines + line, rng.below(2) == 0 ? 0 : 0xff, 64);
          break;
      }
    }
    std::vector<BlockHash> hashes;
    for (std::uint64_t name = 0; name < 60; ++name) hashes.push_back(hash_of(name));
    EXPECT_EQ(directory.find_each(hashes), directory.look_one_by_one(hashes)) << "round " << round;
    for (std::uint64_t name = 0; name < 60; ++name) {
      const std::uint32_t block = directory.look(hash_of(name));
      EXPECT_TRUE(block == kNoBlock || block == directory.block_of(hash_of(name)))
          << "round " << round;
    }
  }
}

TEST(Directory, AnEntryWhoseNumbersAreOutOfRangeIsAbsentAlthoughItChecks) {
  Directory directory(64, 64);
  const BlockHash hash = hash_of(1);
  directory.insert(hash);
  const std::uint64_t offset = directory.layout().entry(directory.pool().slot_of(hash));
  const auto good = directory.pool().line_at<Entry>(offset);
  const auto look_at = [&](auto&& spoil) {
    Entry entry = good;
    spoil(entry);
    directory.pool().put_line(offset, entry);
    return directory.look(hash);
  };
  EXPECT_NE(look_at([](Entry&) {}), kNoBlock);
  EXPECT_EQ(look_at([](Entry& e) { e.block = 64; }), kNoBlock);
  EXPECT_EQ(look_at([](Entry& e) { e.block = kNoBlock; }), kNoBlock);
  EXPECT_EQ(look_at([](Entry& e) { e.length = 65; }), kNoBlock);
  EXPECT_EQ(look_at([](Entry& e) { e.length = 0; }), kNoBlock);
  EXPECT_EQ(look_at([](Entry& e) { e.state = kEntryFree; }), kNoBlock);
  EXPECT_EQ(look_at([](Entry& e) { e.epoch = 2; }), kNoBlock);
  EXPECT_EQ(look_at([](Entry& e) { e.epoch = 0; }), kNoBlock);
}

// How many lines lookups read at the rated load: the figures of docs/design/pool.md.
TEST(Directory, AHitTakesAboutOneLineAtTheRatedLoad) {
  constexpr std::uint32_t kBlocks = 32 * 512, kSlots = 2 * kBlocks;
  auto owned = std::make_unique<CountingDomain>();
  CountingDomain& domain = *owned;
  Directory directory(kSlots, kBlocks, std::move(owned));
  std::vector<std::uint64_t> names;
  std::uint64_t next_name = 0;
  while (names.size() < kBlocks && directory.insert(hash_of(next_name)))
    names.push_back(next_name++);
  ASSERT_EQ(names.size(), kBlocks);
  const auto lines_each = [&](bool hits) {
    domain.gathered = domain.gathers = 0;
    for (std::uint64_t i = 0; i < kBlocks; ++i) {
      EXPECT_EQ(directory.look(hash_of(hits ? names[i] : (1ull << 40) + i)) != kNoBlock, hits);
    }
    return static_cast<double>(domain.gathered - std::uint64_t{kBlocks} * kKeeperSlots) / kBlocks;
  };
  const double fresh = lines_each(true), fresh_miss = lines_each(false);
  base::Rng rng(5);
  for (int i = 0; i < 200'000; ++i) {
    std::uint64_t& name = names[rng.below(kBlocks)];
    directory.erase(hash_of(name));
    name = next_name++;
    ASSERT_TRUE(directory.insert(hash_of(name)));
  }
  const double churned = lines_each(true), churned_miss = lines_each(false);
  std::printf("lines a hit: %.2f fresh, %.2f churned; a miss: %.2f fresh, %.2f churned\n", fresh,
              churned, fresh_miss, churned_miss);
  EXPECT_LT(fresh, 1.4);
  EXPECT_LT(churned, 1.8);
  EXPECT_LT(churned_miss, 1.6);
}

}  // namespace
}  // namespace cachalot::pool
