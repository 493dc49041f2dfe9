// Each kind of fault is found, named, and mended as its text says.

#include "pool/check/pool_check.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "memory/forwarding_domain.h"
#include "pool/check/mend.h"
#include "pool/format/notes.h"
#include "pool/keeper/keeper_line.h"
#include "testing/pool/test_pool.h"

namespace cachalot::pool {
namespace {

Geometry with_notes() {
  Geometry g = small_geometry();
  g.note_bytes = 64;
  return g;
}

class PoolCheckTest : public testing::Test {
 protected:
  PoolCheckTest() : pool_(with_notes()) {
    pool_.start_keeper();
    ClientOptions options;
    options.write_checksums = options.verify_checksums = true;
    const auto client = pool_.attach(0, options);
    pool_.put(*client, 1, 5);
    pool_.put(*client, 11, 3);
    const Entry entry = pool_.entry_of(hash_of(2));
    write_note(access(), {entry.block, entry.generation}, hash_of(2), tokens_);
    EXPECT_TRUE(client->detach());
    pool_.stop_keeper();
  }

  const Access& access() const { return pool_.access(); }
  const Layout& layout() const { return access().layout; }
  std::uint64_t entry_offset(std::uint64_t name) const {
    return layout().entry(pool_.slot_of(hash_of(name)));
  }
  void put_entry(std::uint64_t name, const std::function<void(Entry&)>& change) {
    Entry entry = pool_.entry_of(hash_of(name));
    const std::uint64_t at = entry_offset(name);
    change(entry);
    pool_.put_line(at, entry);
  }

  // The kinds that a check finds.
  std::vector<FaultKind> check() {
    FaultLog log(100);
    last_ = check_pool(access(), 1, log);
    std::vector<FaultKind> kinds;
    for (const Fault& fault : log.faults()) kinds.push_back(fault.kind);
    return kinds;
  }
  void expect_one(FaultKind kind) {
    const std::vector<FaultKind> kinds = check();
    EXPECT_EQ(std::count(kinds.begin(), kinds.end(), kind), 1) << text_of(kind).name;
  }
  // What --repair does. Then the pool is clean, and these blocks are served.
  void repair(const std::vector<std::uint64_t>& left) {
    KeeperOptions options;
    options.verify_payloads = true;
    pool_.start_keeper(options);
    pool_.stop_keeper();
    mend_lines(access(), [](std::uint32_t) { return true; });
    for (const FaultKind kind : check()) ADD_FAILURE() << "left: " << text_of(kind).name;
    pool_.start_keeper();
    ClientOptions reading;
    reading.verify_checksums = true;
    const auto reader = pool_.attach(1, reading);
    for (std::uint64_t name = 1; name < 20; ++name) {
      const bool is_left = std::find(left.begin(), left.end(), name) != left.end();
      EXPECT_EQ(pool_.read(*reader, name, 1), is_left ? 1u : 0u) << "block " << name;
    }
  }

  const std::vector<std::uint32_t> tokens_ = {7, 8, 9};
  TestPool pool_;
  CheckReport last_;
};

const std::vector<std::uint64_t> kAll = {1, 2, 3, 4, 5, 11, 12, 13};
const std::vector<std::uint64_t> kUpTo2 = {1, 2, 11, 12, 13};

TEST_F(PoolCheckTest, APoolThatWasStoppedInOrderIsClean) {
  EXPECT_TRUE(check().empty());
  EXPECT_EQ(last_.epoch, 1u);
  EXPECT_EQ(last_.figures.blocks.live, 8u);
  EXPECT_EQ(last_.figures.blocks.sum(), access().geometry.blocks);
  EXPECT_EQ(last_.figures.payloads, 8u);
  EXPECT_EQ(last_.figures.notes, 1u);
  EXPECT_EQ(last_.figures.lost_blocks, 0u);
}

TEST_F(PoolCheckTest, ANewPoolIsClean) {
  TestPool fresh;
  FaultLog log(10);
  const CheckReport report = check_pool(fresh.access(), 1, log);
  EXPECT_EQ(log.faults_in_all() + log.remnants_in_all(), 0u);
  EXPECT_EQ(report.epoch, 0u);
  EXPECT_EQ(report.figures.blocks.free, fresh.access().geometry.blocks);
}

TEST_F(PoolCheckTest, ADamagedDirectoryOfAPoolThatNeverHadAKeeperIsWrittenAgain) {
  TestPool fresh;
  const std::uint32_t slots = fresh.access().geometry.directory_slots;
  for (const std::uint32_t slot : {0u, slots / 2, slots - 1})
    fresh.damage(fresh.access().layout.entry(slot));
  FaultLog before(10), after(10);
  check_pool(fresh.access(), 1, before);
  EXPECT_EQ(before.count(FaultKind::kEntryLine), 3u);
  fresh.start_keeper();
  fresh.stop_keeper();
  mend_lines(fresh.access(), [](std::uint32_t) { return true; });
  check_pool(fresh.access(), 1, after);
  EXPECT_EQ(after.faults_in_all() + after.remnants_in_all(), 0u);
}

TEST_F(PoolCheckTest, AKilledPoolIsClean) {
  pool_.start_keeper();
  const auto client = pool_.attach(0);
  pool_.put(*client, 30, 4);
  pool_.kill_keeper();
  EXPECT_TRUE(check().empty());
  EXPECT_EQ(last_.figures.blocks.live, 12u);
  EXPECT_GT(last_.figures.blocks.granted, 0u);
}

TEST_F(PoolCheckTest, ADamagedEntryTakesItsSubtree) {
  pool_.damage(entry_offset(3));
  expect_one(FaultKind::kEntryLine);
  EXPECT_EQ(last_.figures.lost_blocks, 2u);  // and the one that no line names
  repair(kUpTo2);
}

TEST_F(PoolCheckTest, ADamagedPayloadTakesItsSubtree) {
  const Entry entry = pool_.entry_of(hash_of(3));
  access().for_each_extent(entry.block, 64,
                           [](std::byte* at, std::uint64_t) { at[5] ^= std::byte{1}; });
  expect_one(FaultKind::kPayload);
  EXPECT_EQ(last_.figures.lost_blocks, 3u);
  repair(kUpTo2);
}

TEST_F(PoolCheckTest, ADamagedNoteIsCleared) {
  const Entry entry = pool_.entry_of(hash_of(2));
  access().view.bases[0][note_offset(access(), entry.block) + 40] ^= std::byte{1};
  expect_one(FaultKind::kNote);
  repair(kAll);
}

TEST_F(PoolCheckTest, EntriesWithAWrongContent) {
  put_entry(3, [](Entry& e) { e.length = 257; });
  expect_one(FaultKind::kEntryContent);
  expect_one(FaultKind::kParentGone);
  repair(kUpTo2);
}

TEST_F(PoolCheckTest, AnEntryOfALaterEpoch) {
  put_entry(3, [](Entry& e) { e.epoch = 9; });
  expect_one(FaultKind::kEntryEpoch);
  repair(kUpTo2);
}

TEST_F(PoolCheckTest, AnEntryOfAnOldKeeperIsARemnant) {
  pool_.start_keeper();
  pool_.stop_keeper();
  put_entry(5, [](Entry& e) { e.epoch = 1; });
  expect_one(FaultKind::kVoidEntry);
  repair({1, 2, 3, 4, 11, 12, 13});
}

TEST_F(PoolCheckTest, AnEntryOfAnUnknownNamespace) {
  put_entry(3, [](Entry& e) { e.namespace_id = 77; });
  const std::vector<FaultKind> kinds = check();
  EXPECT_FALSE(kinds.empty());
  repair(kUpTo2);
}

TEST_F(PoolCheckTest, AnEntryWhoseBlockWasGrantedAgain) {
  const Entry entry = pool_.entry_of(hash_of(3));
  const std::uint64_t at = layout().ledger_line(0, entry.block);
  auto line = pool_.line_at<LedgerLine>(at);
  line.records[entry.block % kLedgerRecordsPerLine].generation = entry.generation + 1;
  pool_.put_line(at, line);
  expect_one(FaultKind::kEntryGeneration);
  repair(kUpTo2);
}

TEST_F(PoolCheckTest, ABlockThatTheLedgerCallsFree) {
  const Entry entry = pool_.entry_of(hash_of(3));
  const std::uint64_t at = layout().ledger_line(0, entry.block);
  auto line = pool_.line_at<LedgerLine>(at);
  line.records[entry.block % kLedgerRecordsPerLine].state = LedgerState::kFree;
  pool_.put_line(at, line);
  expect_one(FaultKind::kLedgerState);
  repair(kAll);
}

TEST_F(PoolCheckTest, ALedgerLineThatCannotBeRead) {
  std::uint32_t block = 0;  // of a line without entries
  std::vector<bool> is_live(access().geometry.blocks + kLedgerRecordsPerLine);
  for (const std::uint64_t name : kAll) is_live[pool_.entry_of(hash_of(name)).block] = true;
  while (std::count(is_live.begin() + block, is_live.begin() + block + kLedgerRecordsPerLine, true))
    block += kLedgerRecordsPerLine;
  pool_.damage(layout().ledger_line(0, block));
  expect_one(FaultKind::kLedgerLine);
  EXPECT_EQ(last_.figures.blocks.quarantined, kLedgerRecordsPerLine);
  repair(kAll);
}

TEST_F(PoolCheckTest, ALedgerRecordThatCannotBe) {
  const std::uint64_t at = layout().ledger_line(0, 100);
  auto line = pool_.line_at<LedgerLine>(at);
  line.records[0].state = static_cast<LedgerState>(9);
  line.records[1].state = LedgerState::kGranted;
  line.records[1].holder = 99;
  pool_.put_line(at, line);
  const std::vector<FaultKind> kinds = check();
  EXPECT_EQ(kinds, (std::vector<FaultKind>(2, FaultKind::kLedgerContent)));
}

TEST_F(PoolCheckTest, TwoEntriesForOneBlock) {
  put_entry(13, [&](Entry& e) { e.block = pool_.entry_of(hash_of(5)).block; });
  expect_one(FaultKind::kBlockTwice);
  KeeperOptions options;
  options.verify_payloads = true;
  pool_.start_keeper(options);
  pool_.stop_keeper();
  EXPECT_TRUE(check().empty());
}

TEST_F(PoolCheckTest, TwoEntriesForOneHash) {
  const Entry entry = pool_.entry_of(hash_of(5));
  const std::uint32_t slot = pool_.slot_of(hash_of(5));
  const std::uint32_t first = slot / kBucketSlots * kBucketSlots;
  std::uint32_t free = first;
  while (pool_.line_at<Entry>(layout().entry(free)).state == kEntryLive) ++free;
  Entry second = entry;
  second.block = 100;
  second.generation = 9;
  second.spill = 0;
  pool_.put_line(layout().entry(free), second);
  const std::uint64_t block_bytes = access().geometry.block_bytes;
  std::byte* const data = access().view.bases[0] + layout().data_offset;
  std::memcpy(data + 100 * block_bytes, data + entry.block * block_bytes, block_bytes);
  expect_one(FaultKind::kHashTwice);
  repair(kAll);
}

TEST_F(PoolCheckTest, ACircleOfParents) {
  put_entry(1, [&](Entry& e) { e.parent = pool_.entry_of(hash_of(3)).block; });
  expect_one(FaultKind::kParentCircle);
  EXPECT_EQ(last_.figures.lost_blocks, 5u);
  repair({11, 12, 13});
}

TEST_F(PoolCheckTest, AnEntryThatNoHomeLeadsToIsARemnant) {
  // Into another slot of its bucket, without a bit.
  const std::uint32_t slot = pool_.slot_of(hash_of(5));
  Entry entry = pool_.entry_of(hash_of(5)), gone{};
  gone.block = gone.parent = kNoBlock;
  gone.state = kEntryFree;
  gone.spill = entry.spill;
  entry.spill = 0;
  std::uint32_t free = slot / kBucketSlots * kBucketSlots;
  while (pool_.line_at<Entry>(layout().entry(free)).state == kEntryLive || free == slot) ++free;
  entry.spill = pool_.line_at<Entry>(layout().entry(free)).spill;
  pool_.put_line(layout().entry(slot), gone);
  pool_.put_line(layout().entry(free), entry);
  expect_one(FaultKind::kHiddenEntry);
  repair(kAll);
}

TEST_F(PoolCheckTest, ABitThatLeadsNowhereIsARemnant) {
  put_entry(5, [](Entry& e) { e.spill |= e.spill + 1; });
  const std::vector<FaultKind> kinds = check();
  EXPECT_EQ(kinds, std::vector<FaultKind>{FaultKind::kSpillBit});
  repair(kAll);
}

TEST_F(PoolCheckTest, ADamagedNamespaceTakesItsBlocks) {
  pool_.damage(layout().namespace_line(0, 0));
  expect_one(FaultKind::kNamespaceLine);
  EXPECT_EQ(last_.figures.lost_blocks, 8u);
  repair({});
}

TEST_F(PoolCheckTest, ADamagedNameCostsOnlyTheName) {
  pool_.damage(layout().name_line(0, 0, 0));
  expect_one(FaultKind::kNameLine);
  repair(kAll);
}

TEST_F(PoolCheckTest, OneOfTheKeepersLines) {
  for (const std::uint64_t at : {layout().keeper_line(0), layout().keeper_line_copy(0)}) {
    pool_.damage(at);
    EXPECT_EQ(check(), std::vector<FaultKind>{FaultKind::kKeeperLine});
    pool_.damage(at);  // as it was
  }
  pool_.damage(layout().keeper_line(0));
  repair(kAll);
}

TEST_F(PoolCheckTest, BothLinesOfTheKeeper) {
  pool_.damage(layout().keeper_line(0));
  pool_.damage(layout().keeper_line_copy(0));
  expect_one(FaultKind::kKeeperLost);
  repair({});
  EXPECT_EQ(last_.figures.blocks.quarantined, access().geometry.blocks);
}

TEST_F(PoolCheckTest, LinesOfTheKeeperThatDifferAreARemnant) {
  KeeperLine line = read_keeper_line(access(), 0);
  line.flags |= kKeeperServing;
  pool_.put_line(layout().keeper_line(0), line);
  EXPECT_EQ(check(), std::vector<FaultKind>{FaultKind::kKeeperPair});
  repair(kAll);
}

TEST_F(PoolCheckTest, AnEpochThatTwoKeeperAreasHave) {
  KeeperLine line{};
  line.epoch = 1;  // that of the keeper in area 0
  pool_.put_line(layout().keeper_line(2), line);
  pool_.put_line(layout().keeper_line_copy(2), line);
  EXPECT_EQ(check(), std::vector<FaultKind>{FaultKind::kKeeperContent});
  repair(kAll);
}

TEST_F(PoolCheckTest, AKeeperLineWhoseOldestEpochIsAboveItsOwn) {
  pool_.start_keeper();  // in area 1
  pool_.stop_keeper();
  KeeperLine line = read_keeper_line(access(), 0);
  line.min_epoch = 7;
  pool_.put_line(layout().keeper_line(0), line);
  pool_.put_line(layout().keeper_line_copy(0), line);
  EXPECT_EQ(check(), (std::vector<FaultKind>(2, FaultKind::kKeeperContent)));
  repair(kAll);
}

TEST_F(PoolCheckTest, ALineOfNoKeeperIsCleared) {
  KeeperLine line{};
  line.pid = 5;
  pool_.put_line(layout().keeper_line(3), line);
  EXPECT_EQ(check(), std::vector<FaultKind>{FaultKind::kKeeperLine});
  repair(kAll);
}

TEST_F(PoolCheckTest, ReportsAndViewsAndClientPages) {
  pool_.damage(layout().keeper_info(0));
  pool_.damage(layout().view_line(0, 0));
  pool_.damage(layout().client_line(0));
  pool_.damage(layout().client_heartbeat(0));
  pool_.damage(layout().client_pins(1));
  pool_.damage(layout().client_totals(0, 1));
  const std::vector<FaultKind> kinds = check();
  EXPECT_EQ(kinds, (std::vector<FaultKind>{FaultKind::kViewLine, FaultKind::kReportLine,
                                           FaultKind::kReportLine, FaultKind::kReportLine,
                                           FaultKind::kClientLine, FaultKind::kPinLine}));
  repair(kAll);
}

TEST_F(PoolCheckTest, DamageInTheAreaThatTheRepairWritesIntoIsCleared) {
  pool_.damage(layout().view_line(1, 2));
  pool_.damage(layout().namespace_line(1, 200));
  pool_.damage(layout().keeper_line(1) + 40 * memory::kLineBytes);
  pool_.damage(layout().keeper_line(3));
  EXPECT_EQ(check(), std::vector<FaultKind>{FaultKind::kKeeperLine});
  repair(kAll);
}

TEST_F(PoolCheckTest, AClientsLineThatIsOlderThanTheKeepersView) {
  auto line = pool_.line_at<ClientLine>(layout().client_line(0));
  line.incarnation = 0;
  pool_.put_line(layout().client_line(0), line);
  EXPECT_EQ(check(), std::vector<FaultKind>{FaultKind::kClientContent});
  repair(kAll);
}

// Between two reads of a line, a process wrote it.
class ChangingDomain final : public memory::ForwardingDomain {
 public:
  explicit ChangingDomain(memory::Domain& inner) : ForwardingDomain(inner) {}
  const void* at = nullptr;
  memory::Line by_itself{};  // what a read of this line alone says

  void read_lines(const void* from, std::size_t count, memory::Line* lines) override {
    ForwardingDomain::read_lines(from, count, lines);
    if (from == at && count == 1) lines[0] = by_itself;
  }
};

TEST_F(PoolCheckTest, AnEntryThatChangesWhileItIsCheckedIsLookedAtAgain) {
  ChangingDomain domain(pool_.domain());
  Result<Access> access =
      make_access(this->access().id, this->access().geometry, this->access().view, domain);
  ASSERT_TRUE(access) << access.error().message;
  const std::uint64_t offset = layout().entry(pool_.slot_of(hash_of(1)));
  Entry entry = pool_.entry_of(hash_of(1));
  entry.length = 0xffffffc0u;  // more than the whole pool has
  domain.at = access->region.at(offset);
  domain.by_itself = memory::to_line(entry);
  access->region.seal(domain.by_itself, offset);
  FaultLog log(10);
  EXPECT_EQ(check_pool(*access, 1, log).figures.payloads, kAll.size() - 1);
}

TEST_F(PoolCheckTest, ABlockTooManyIsMissedInTheAccounting) {
  const std::uint64_t at = layout().keeper_counters(0);
  auto line = pool_.line_at<CounterLine>(at);
  ++line.values[0];
  pool_.put_line(at, line);
  EXPECT_EQ(check(), std::vector<FaultKind>{FaultKind::kAccounting});
  repair(kAll);
}

TEST_F(PoolCheckTest, AServedPoolIsCleanWhileItChanges) {
  pool_.start_keeper();
  const auto client = pool_.attach(0);
  pool_.put(*client, 100, 30);
  FaultLog log(10);
  check_served_pool(access(), 2, log);
  EXPECT_EQ(log.faults_in_all() + log.remnants_in_all(), 0u);
}

TEST_F(PoolCheckTest, TheLogKeepsTheFirstOfAKindAndCountsAll) {
  for (const std::uint64_t name : kAll) pool_.damage(entry_offset(name));
  FaultLog log(3);
  check_pool(access(), 1, log);
  EXPECT_EQ(log.count(FaultKind::kEntryLine), kAll.size());
  std::size_t kept = 0;
  for (const Fault& fault : log.faults()) kept += fault.kind == FaultKind::kEntryLine;
  EXPECT_EQ(kept, 3u);
}

}  // namespace
}  // namespace cachalot::pool
