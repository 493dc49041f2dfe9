// Ways to get faults wrong that need a schedule so particular that chance does not find it: the
// shortest schedules of the model (specs/schedules), played by hand on the production code. Each is
// played twice: the right protocol survives it, the broken one hands out wrong bytes.

#include <gtest/gtest.h>

#include <functional>

#include "base/fail_point.h"
#include "memory/forwarding_domain.h"
#include "testing/pool/test_pool.h"

#ifdef CACHALOT_RULE_SWITCHES

namespace cachalot::pool {
namespace {

using memory::Rule;

ClientOptions as_process(std::uint32_t pid) {
  ClientOptions options;
  options.pid = pid;
  options.start_time = 1000 + pid;
  options.grant_target = 2;
  options.verify_checksums = false;
  return options;
}

class KnownBadTest : public ::testing::TestWithParam<bool> {
 protected:
  bool is_broken() const { return GetParam(); }

  void make(Rule rule, std::uint32_t capacity, std::uint32_t slack) {
    pool_ = std::make_unique<TestPool>(small_geometry(capacity, slack));
    if (is_broken()) pool_->domain().break_rule(rule);
    pool_->start_keeper();
  }

  void put(Client& client, std::uint64_t name) {
    const auto bytes = payload_of(name, 256);
    const PutItem item{hash_of(name), bytes};
    Verdict verdict{};
    const Status status = client.put(nullptr, {&item, 1}, {&verdict, 1});
    ASSERT_TRUE(status) << (status ? "" : status.error().message);
    ASSERT_EQ(verdict, Verdict::kCommitted) << name;
  }
  Found look_up(Client& client, std::uint64_t name) {
    Found found;
    const BlockHash hash = hash_of(name);
    EXPECT_EQ(client.lookup({&hash, 1}, {&found, 1}), 1u);
    return found;
  }
  // Whether `found`, once read, is handed out, and whether its bytes are those of `name`.
  enum class Read { kDiscarded, kRight, kWrong };
  Read read(Client& client, const Found& found, std::uint64_t name) {
    std::vector<std::byte> bytes(256);
    std::byte* const to = bytes.data();
    if (client.read({&found, 1}, {&to, 1}) == 0) return Read::kDiscarded;
    return bytes == payload_of(name, 256) ? Read::kRight : Read::kWrong;
  }
  Read get(Client& client, std::uint64_t name) {
    Found found;
    const BlockHash hash = hash_of(name);
    if (client.lookup({&hash, 1}, {&found, 1}) == 0) return Read::kDiscarded;
    return read(client, found, name);
  }
  // What a copying thread that is late stores.
  void store(std::uint32_t block, std::uint64_t name) {
    const auto bytes = payload_of(name, 256);
    pool_->access().for_each_extent(
        block, 256, [&](std::byte* to, std::uint64_t n) { std::memcpy(to, bytes.data(), n); });
  }

  std::unique_ptr<TestPool> pool_;
};

// The block is evicted and written again between the lookup and the copy, and the reader does not look again.
TEST_P(KnownBadTest, PayloadNotValidatedAfterReading) {
  make(Rule::kR6ValidateAfterReading, 2, 2);
  const auto writer = pool_->attach(0, as_process(1)), reader = pool_->attach(1, as_process(2));
  put(*writer, 1);
  const Found found = look_up(*reader, 1);
  ASSERT_TRUE(writer->requests().evict(hash_of(1)));
  store(found.entry.block, 99);  // its new holder does so, at any time after its grant
  EXPECT_EQ(read(*reader, found, 1), is_broken() ? Read::kWrong : Read::kDiscarded);
}

// The line of the entry is used again, for another block that happens to have the same generation:
// first uses of blocks all have generation 1.
TEST_P(KnownBadTest, PayloadValidatedByGenerationAlone) {
  make(Rule::kValidateGenerationOnly, 2, 2);
  const auto writer = pool_->attach(0, as_process(1)), reader = pool_->attach(1, as_process(2));
  put(*writer, 1);
  const Found found = look_up(*reader, 1);
  ASSERT_TRUE(writer->requests().evict(hash_of(1)));
  // Another hash with the same home, in another block.
  const std::uint32_t slots = pool_->access().geometry.directory_slots;
  const std::uint32_t space = writer->namespace_id();
  std::uint64_t other = 2;
  while (home_of(hash_of(other), space, slots).slot != found.slot) ++other;
  put(*writer, other);
  ASSERT_EQ(pool_->entry_of(hash_of(other)).generation, found.entry.generation);
  ASSERT_NE(pool_->entry_of(hash_of(other)).block, found.entry.block);
  store(found.entry.block, 99);  // its new holder does so, at any time after its grant
  EXPECT_EQ(read(*reader, found, 1), is_broken() ? Read::kWrong : Read::kDiscarded);
}

// A tombstone that never reached the device, over a block that was granted since.
TEST_P(KnownBadTest, GenerationForgottenAtTakeover) {
  make(Rule::kForgetGenerationAtTakeover, 4, 4);
  const auto writer = pool_->attach(0, as_process(1));
  put(*writer, 1);
  const Found found = look_up(*writer, 1);
  const std::uint64_t line = pool_->access().layout.entry(found.slot);
  ASSERT_TRUE(writer->requests().evict(hash_of(1)));
  RawClient other(*pool_, 1);
  bool is_granted = false;
  for (const BlockUse& use : other.grant(16)) is_granted |= use.block == found.entry.block;
  ASSERT_TRUE(is_granted);
  pool_->kill_keeper();
  pool_->put_line(line, found.entry);
  pool_->start_keeper();
  store(found.entry.block, 99);
  const auto reader = pool_->attach(2, as_process(2));
  EXPECT_EQ(get(*reader, 1), is_broken() ? Read::kWrong : Read::kDiscarded);
}

// What was committed and never answered is sent again: the next keeper must know it.
TEST_P(KnownBadTest, CommitReplayedByTheNextKeeperNotIdempotent) {
  make(Rule::kCommitNotIdempotent, 4, 4);
  const auto writer = pool_->attach(0, as_process(1));
  put(*writer, 1);
  const auto bytes = payload_of(2, 256);
  ASSERT_TRUE(writer->post_put(nullptr, {hash_of(2), bytes}));
  pool_->keeper().poll();  // published; the answer is never taken
  pool_->kill_keeper();
  pool_->start_keeper();
  const std::uint64_t committed = writer->counters()[ClientCounter::kCommitted];
  ASSERT_TRUE(writer->reattach(0));
  EXPECT_EQ(get(*writer, 2), Read::kRight);
  // A client that is told that its published block is not published stores it again, or worse, over it.
  EXPECT_EQ(writer->counters()[ClientCounter::kCommitted] - committed, is_broken() ? 0u : 1u);
}

// A commit is executed twice; in between, its block came back and was filled for another hash.
TEST_P(KnownBadTest, ReturnedBlockKeepsItsGeneration) {
  make(Rule::kReturnedBlockKeepsGeneration, 4, 4);
  const auto reader = pool_->attach(0, as_process(1));
  put(*reader, 1);
  RawClient writer(*pool_, 1);
  const std::uint32_t space = reader->namespace_id();
  const BlockUse use = writer.grant(1).at(0);
  store(use.block, 1);
  ASSERT_EQ(writer.commit_one(space, nullptr, RawClient::item(1, use)), Verdict::kDuplicate);
  store(use.block, 99);  // it is the writer's again
  ASSERT_TRUE(reader->requests().evict(hash_of(1)));
  const Verdict again = writer.commit_one(space, nullptr, RawClient::item(1, use));
  EXPECT_EQ(again, is_broken() ? Verdict::kCommitted : Verdict::kNotHeld);
  EXPECT_EQ(get(*reader, 1), is_broken() ? Read::kWrong : Read::kDiscarded);
}

// An old keeper wakes up and executes a commit of its time; the block was used again since.
TEST_P(KnownBadTest, NewKeeperAnswersBeforeMinEpochIsRaised) {
  make(Rule::kAnswerBeforeMinEpoch, 4, 4);
  auto old_writer = pool_->attach(0, as_process(1));
  put(*old_writer, 1);
  const Found found = look_up(*old_writer, 1);
  ASSERT_TRUE(old_writer->requests().evict(hash_of(1)));
  old_writer.reset();
  pool_->kill_keeper();
  pool_->start_keeper();
  const auto writer = pool_->attach(0, as_process(2));
  for (std::uint64_t name = 10; name < 30; ++name) {
    put(*writer, name);
    if (pool_->entry_of(hash_of(name)).block == found.entry.block) break;
  }
  pool_->put_line(pool_->access().layout.entry(found.slot), found.entry);
  const auto reader = pool_->attach(1, as_process(3));
  EXPECT_EQ(get(*reader, 1), is_broken() ? Read::kWrong : Read::kDiscarded);
}

// A writer stalls in the middle of a copy, and wakes up under another keeper.
TEST_P(KnownBadTest, QuarantineLostAtTakeover) {
  make(Rule::kLoseQuarantineAtTakeover, 4, 4);
  RawClient sleeper(*pool_, 1);
  const std::vector<BlockUse> uses = sleeper.grant(4);
  pool_->kill_keeper();
  pool_->start_keeper();
  const auto writer = pool_->attach(0, as_process(1));
  for (std::uint64_t name = 1; name <= 4; ++name) put(*writer, name);
  for (const BlockUse& use : uses) store(use.block, 99);
  int wrong = 0;
  for (std::uint64_t name = 1; name <= 4; ++name) wrong += get(*writer, name) == Read::kWrong;
  EXPECT_EQ(wrong != 0, is_broken());
}

// A new process in a dead one's slot says nothing about the copying threads of the old one.
TEST_P(KnownBadTest, ReleasedBecauseItReattached) {
  make(Rule::kReleaseOnReattach, 6, 6);
  std::vector<std::uint32_t> held;
  const auto sleeper = pool_->attach(1, as_process(7));
  put(*sleeper, 50);
  for (std::uint32_t block = 0; block < 12; ++block) {
    if (Ledger::read(pool_->access(), 0, block).state == LedgerState::kGranted)
      held.push_back(block);
  }
  ASSERT_FALSE(held.empty());
  const auto successor = pool_->try_attach(1, as_process(8));
  EXPECT_EQ(successor.ok(), is_broken()) << (successor ? "" : successor.error().message);
  const auto writer = pool_->attach(0, as_process(1));
  bool is_wrong = false;
  for (std::uint64_t name = 1; name <= 20; ++name) {
    put(*writer, name);
    const std::uint32_t block = pool_->entry_of(hash_of(name)).block;
    if (std::find(held.begin(), held.end(), block) == held.end()) continue;
    store(block, 99);
    is_wrong |= get(*writer, name) == Read::kWrong;
  }
  EXPECT_EQ(is_wrong, is_broken());
}

#ifdef CACHALOT_FAIL_POINTS

// A host whose lines of one range stay in its write buffer until it orders or completes them: the
// laziest that hardware may be.
class LazyDomain final : public memory::ForwardingDomain {
 public:
  void hold(const std::byte* from, const std::byte* to) { from_ = from, to_ = to; }

  void write_lines(void* to, const memory::Line* lines, std::size_t count) override {
    const auto* const at = static_cast<const std::byte*>(to);
    if (at < from_ || at >= to_) return ForwardingDomain::write_lines(to, lines, count);
    for (std::size_t i = 0; i < count; ++i) {
      held_.push_back({static_cast<std::byte*>(to) + i * memory::kLineBytes, lines[i]});
    }
  }
  void order() override { drain(); }
  void complete() override { drain(); }

 private:
  void drain() {
    for (const auto& [to, line] : held_) ForwardingDomain::write_lines(to, &line, 1);
    held_.clear();
  }
  const std::byte* from_ = nullptr;
  const std::byte* to_ = nullptr;
  std::vector<std::pair<void*, memory::Line>> held_;
};

// Calls `action` once, when this thread reaches a point.
class AtPoint {
 public:
  AtPoint(base::FailPoint point, std::function<void()> action) {
    point_ = point;
    action_ = std::move(action);
    base::fail_point_handler = [](base::FailPoint reached) {
      if (reached != point_ || !action_) return;
      const auto once = std::move(action_);
      action_ = nullptr;
      once();
    };
  }
  ~AtPoint() { base::fail_point_handler = nullptr; }

 private:
  static inline base::FailPoint point_;
  static inline std::function<void()> action_;
};

// The holder of a reused block has stored into it, and the tombstone of what was there before is
// still in the keeper's write buffer.
TEST_P(KnownBadTest, BlockGrantedBeforeItsTombstoneIsComplete) {
  auto lazy = std::make_unique<LazyDomain>();
  LazyDomain& keeper_host = *lazy;
  pool_ = std::make_unique<TestPool>(small_geometry(3, 0), std::move(lazy));
  if (is_broken()) keeper_host.break_rule(Rule::kGrantBeforeTombstoneComplete);
  pool_->start_keeper();
  const Access& access = pool_->access();
  const auto other_host = memory::make_coherent_domain();
  pool_->client_access.emplace(*make_access(access.id, access.geometry, access.view, *other_host));
  ClientOptions one_at_a_time = as_process(1);
  one_at_a_time.grant_target = 1;
  const auto writer = pool_->attach(0, one_at_a_time), reader = pool_->attach(1, as_process(2));
  put(*writer, 1);
  const Found found = look_up(*reader, 1);
  Read seen = Read::kDiscarded;
  keeper_host.hold(access.view.bases[0] + access.layout.directory,
                   access.view.bases[0] + access.layout.entry(access.geometry.directory_slots));
  for (std::uint64_t name = 10; name < 20; ++name) {
    AtPoint stored(base::FailPoint::kPutStored, [&] {
      const Read now = read(*reader, found, 1);
      if (now == Read::kWrong) seen = now;
    });
    put(*writer, name);
  }
  EXPECT_EQ(seen, is_broken() ? Read::kWrong : Read::kDiscarded);
}

// The pin is in the reader's write buffer while the keeper looks for pins.
TEST_P(KnownBadTest, PinnedReadPublishedWithoutCompleting) {
  make(Rule::kNone, 2, 6);
  const auto writer = pool_->attach(0, as_process(1));
  put(*writer, 1);
  LazyDomain reader_host;
  if (is_broken()) reader_host.break_rule(Rule::kPinWithoutComplete);
  const Access& access = pool_->access();
  pool_->client_access.emplace(*make_access(access.id, access.geometry, access.view, reader_host));
  ClientOptions pinning = as_process(2);
  pinning.pins = true;
  const auto reader = pool_->attach(1, pinning);
  const std::byte* const pins = access.view.bases[0] + access.layout.client_pins(1);
  reader_host.hold(pins, pins + memory::kLineBytes);
  const auto pin = reader->pin();
  ASSERT_TRUE(pin);
  const Found found = look_up(*reader, 1);
  // Until there is no block left that the pin does not keep, or the pinned one is used again.
  for (std::uint64_t name = 10; name < 30; ++name) {
    const auto payload = payload_of(name, 256);
    const PutItem item{hash_of(name), payload};
    Verdict verdict{};
    if (!writer->put(nullptr, {&item, 1}, {&verdict, 1})) break;
    if (pool_->entry_of(hash_of(name)).block == found.entry.block) break;
  }
  for (std::uint32_t block = 0; block < access.geometry.blocks; ++block) {
    // The holder of a grant may store at any time.
    if (Ledger::read(access, 0, block).state == LedgerState::kGranted) store(block, 99);
  }
  std::vector<std::byte> bytes(256);
  std::memcpy(bytes.data(),
              access.view.bases[0] + access.layout.data_offset + found.entry.block * 256, 256);
  EXPECT_EQ(bytes != payload_of(1, 256), is_broken());
  reader->unpin(*pin);
}

// A keeper that sleeps in its own time grants a block that its successor has granted to another.
TEST_P(KnownBadTest, OldKeepersGrantsHonoured) {
  pool_ = std::make_unique<TestPool>(small_geometry(4, 4));
  if (is_broken()) pool_->domain().break_rule(Rule::kHonourOldGrants);
  KeeperOptions drowsy;
  drowsy.polls_between_clock_reads = 1u << 30;  // does not look at the epoch
  pool_->start_keeper(drowsy);
  pool_->keeper().tend();
  ClientOptions options = as_process(1);
  options.timeout_ns = 1'000'000;
  std::unique_ptr<Client> late;
  {
    // The old keeper's client table must be read once.
    AtPoint said(base::FailPoint::kAttachLineWritten, [&] { pool_->keeper().tend(); });
    late = pool_->attach(0, options);
  }
  StepClock clock;
  KeeperOptions next_options;
  next_options.use_doorbells = false;
  next_options.tend_interval_ns = 1;
  next_options.polls_between_clock_reads = 1;
  const auto next = Keeper::start(pool_->access(), next_options, clock);
  ASSERT_TRUE(next);
  class NextWaiter final : public rpc::Waiter {
   public:
    explicit NextWaiter(Keeper& keeper) : keeper_(keeper) {}
    void wait(std::uint32_t) override { keeper_.poll(); }

   private:
    Keeper& keeper_;
  } waiter(**next);
  std::unique_ptr<Client> writer;
  const auto use_every_block = [&] {
    ClientOptions other = as_process(2);
    other.use_doorbells = false;
    auto attached = Client::attach(pool_->access(), 1, other, waiter, clock);
    ASSERT_TRUE(attached);
    writer = *std::move(attached);
    for (std::uint64_t name = 10; name < 14; ++name) put(*writer, name);
  };
  AtPoint taken(base::FailPoint::kGrantTaken, use_every_block);
  const auto bytes = payload_of(99, 256);
  const PutItem item{hash_of(99), bytes};
  Verdict verdict{};
  EXPECT_EQ(late->put(nullptr, {&item, 1}, {&verdict, 1}).ok(), is_broken());
  bool is_wrong = false;
  for (std::uint64_t name = 10; writer != nullptr && name < 14; ++name)
    is_wrong |= get(*writer, name) == Read::kWrong;
  EXPECT_EQ(is_wrong, is_broken());
}

#endif  // CACHALOT_FAIL_POINTS

INSTANTIATE_TEST_SUITE_P(Protocols, KnownBadTest, testing::Bool(), [](const auto& is_broken) {
  return is_broken.param ? "broken" : "right";
});

}  // namespace
}  // namespace cachalot::pool

#endif  // CACHALOT_RULE_SWITCHES
