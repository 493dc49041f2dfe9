// The parts of a client that need no keeper, each by itself.
#include <utility>

#include "memory/forwarding_domain.h"
#include "pool/client/granted_blocks.h"
#include "pool/expansion/expansion_memory.h"
#include "testing/pool/test_pool.h"

namespace cachalot::pool {
namespace {

// --- CallTime ----------------------------------------------------------------------------------

TEST(CallTime, BelongsToTheOutermostCall) {
  StepClock clock;
  CallTime time(clock, 1'000'000);
  EXPECT_EQ(time.until_ns(), CallTime::kNever);
  {
    const CallTime::Scope call(time);
    const std::uint64_t ends_ns = time.ends_ns();
    clock.pass(500'000);
    {
      const CallTime::Scope step(time);
      EXPECT_EQ(time.ends_ns(), ends_ns);
    }
    EXPECT_FALSE(time.is_over());
    clock.pass(500'000);
    EXPECT_TRUE(time.is_over());
  }
  EXPECT_EQ(time.until_ns(), CallTime::kNever);
}

TEST(CallTime, IsExtendedOnceACall) {
  StepClock clock;
  CallTime time(clock, 1'000'000);
  const CallTime::Scope call(time);
  const std::uint64_t ends_ns = time.ends_ns();
  time.extend(70);
  time.extend(70);
  EXPECT_EQ(time.ends_ns(), ends_ns + 70);
}

TEST(CallTime, TheErrorNamesTheLimitThatComesFirst) {
  StepClock clock;
  CallTime time(clock, 3'000'000);
  const CallTime::Scope call(time);
  EXPECT_STREQ(time.no_answer().message, "the keeper did not answer within 3 ms");
  time.set_deadline(time.ends_ns() - 1);
  EXPECT_EQ(time.until_ns(), time.deadline_ns());
  EXPECT_STREQ(time.no_answer().message, "the keeper did not answer in the time given");
}

// --- Parts with lines in the pool --------------------------------------------------------------

class ClientPartsTest : public ::testing::Test, protected rpc::Waiter {
 protected:
  static constexpr std::uint32_t kSlot = 1;

  ClientContext context() {
    ClientOptions options;
    options.pins = true;
    return {pool_.access(), kSlot, options, *this, pool_.clock(), {}};
  }
  PinLine pin_line() const {
    return pool_.line_at<PinLine>(pool_.access().layout.client_pins(kSlot));
  }
  HeartbeatLine heartbeat_line() const {
    return pool_.line_at<HeartbeatLine>(pool_.access().layout.client_heartbeat(kSlot));
  }
  // What the keeper of area 0 says of the slot.
  void say(std::uint32_t incarnation, std::uint32_t epoch) {
    ViewLine line{};
    line.incarnation = incarnation;
    line.epoch = epoch;
    line.flags = kViewOpen;
    pool_.put_line(pool_.access().layout.view_line(0, kSlot), line);
  }

  TestPool pool_;

 private:
  void wait(std::uint32_t) override {}
};

TEST_F(ClientPartsTest, PinsAnnounceTheOldestInFlightAndTheNewest) {
  const ClientContext context = this->context();
  Pins pins(context);
  pins.begin_incarnation(4);
  EXPECT_EQ(pin_line().oldest, 0u);
  EXPECT_EQ(pin_line().incarnation, 4u);
  const std::uint64_t first = pins.begin(), second = pins.begin();
  EXPECT_EQ(pin_line().oldest, first);
  EXPECT_EQ(pin_line().newest, second);
  pins.end(first);
  pins.publish();
  EXPECT_EQ(pin_line().oldest, second);
  pins.end(second);
  pins.publish();
  EXPECT_TRUE(pins.none());
  EXPECT_EQ(pin_line().oldest, 0u);
  EXPECT_EQ(pin_line().newest, second);
}

TEST_F(ClientPartsTest, TheHeartbeatIsRenewedBetweenStartAndStop) {
  const ClientContext context = this->context();
  Heartbeat heartbeat(context);
  heartbeat.prepare(4, {});
  EXPECT_FALSE(heartbeat.renew());
  heartbeat.start();
  EXPECT_TRUE(heartbeat.renew());
  EXPECT_EQ(heartbeat_line().beat, 1u);
  EXPECT_EQ(heartbeat_line().incarnation, 4u);
  EXPECT_EQ(heartbeat.next_beat(), 2u);
  heartbeat.stop();
  EXPECT_FALSE(heartbeat.renew());
  heartbeat.beat();  // a client that waits beats in any case
  EXPECT_EQ(heartbeat_line().beat, 2u);
  heartbeat.end();
  heartbeat.beat();
  EXPECT_EQ(heartbeat_line().beat, 2u);
}

TEST_F(ClientPartsTest, TheHeartbeatSeesThatTheKeeperServesAnotherIncarnation) {
  pool_.start_keeper();
  const ClientContext context = this->context();
  const KeeperView keeper = DirectoryReader(pool_.access()).read_keepers();
  Heartbeat heartbeat(context);
  heartbeat.prepare(4, keeper);
  say(4, keeper.epoch);
  heartbeat.look_for_loss();
  EXPECT_FALSE(heartbeat.is_lost());
  say(5, keeper.epoch);
  heartbeat.look_for_loss();
  EXPECT_TRUE(heartbeat.is_lost());
}

TEST_F(ClientPartsTest, TheHeartbeatSeesAnotherKeeper) {
  pool_.start_keeper();
  const ClientContext context = this->context();
  KeeperView before = DirectoryReader(pool_.access()).read_keepers();
  --before.epoch;
  Heartbeat heartbeat(context);
  heartbeat.prepare(4, before);
  say(4, before.epoch);
  heartbeat.look_for_loss();
  EXPECT_TRUE(heartbeat.is_lost());
}

// What this process can access is up to `limit`.
class LimitedMemory final : public ExpansionMemory {
 public:
  std::uint32_t limit = 0;

  std::uint32_t follow(const Access&, std::uint32_t, std::uint32_t) override { return limit; }
  std::size_t map(const Access&, std::span<const Expansion>, Status&) override { return 0; }
  Status flush() override { return {}; }
  std::optional<std::string> find_removed(std::span<const Expansion>) const override { return {}; }
  Result<Expansion> look_at(const Access&, const std::string& path) const override {
    return Error::make(Code::kNotFound, "%s", path.c_str());
  }
};

// A block that this process cannot access must not be stored into, also while the keeper hangs and takes no word of it.
TEST_F(ClientPartsTest, ABlockThatCannotBeAccessedIsNotTakenWhileTheKeeperCannotBeTold) {
  pool_.start_keeper();
  LimitedMemory memory;
  memory.limit = 8;
  Access access = pool_.access();
  access.expansions = &memory;
  const ClientOptions options;
  const ClientContext context{access, kSlot, options, *this, pool_.clock(), {}};
  const CallTime time(pool_.clock(), 1'000'000);
  PublishedCounters counters(context);
  KeeperWatch keeper(context);
  keeper.watch(DirectoryReader(access).read_keepers());
  Heartbeat heartbeat(context);
  KeeperCalls calls(context, time, keeper, heartbeat);
  ClientNamespace name_space(context, calls);
  HitReports reports(calls, name_space, counters.live());
  GrantedBlocks grants(context, keeper, heartbeat, calls, name_space, reports);
  calls.open(1);
  while (calls.has_credit(1, 1))
    calls.post({static_cast<std::uint8_t>(Op::kGiveBack), 0, 1, KeeperCalls::kIgnore},
               memory::Line{});

  const BlockUse uses[] = {{5, 1}, {20, 1}};
  rpc::Answer answer;
  answer.count = 2;
  answer.payload = {reinterpret_cast<const unsigned char*>(uses), sizeof uses};
  static_cast<rpc::AnswerSink&>(grants).on_answer(answer);
  const Result<BlockUse> first = grants.take();
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_EQ(first->block, 5u);
  const Result<BlockUse> second = grants.take();
  EXPECT_FALSE(second) << second->block;
  EXPECT_EQ(grants.held(), 1u);  // to be returned
}

// Knows whether stores into payloads are ordered when the client says that it returns blocks.
class OrderedReturns final : public memory::ForwardingDomain {
 public:
  OrderedReturns(memory::Domain& inner, const Layout& layout, const std::byte* base)
      : ForwardingDomain(inner), layout_(layout), base_(base) {}
  std::uint32_t returns = 0, unordered = 0;

  void write_bulk(void* to, const void* from, std::size_t bytes, memory::FusedHash* hash) override {
    has_stored_ = true;
    ForwardingDomain::write_bulk(to, from, bytes, hash);
  }
  void write_lines(void* to, const memory::Line* lines, std::size_t count) override {
    const auto offset = static_cast<std::uint64_t>(static_cast<std::byte*>(to) - base_);
    const bool is_request = offset >= layout_.request_rings && offset < layout_.directory;
    if (is_request && rpc::op_of(lines[0]) == static_cast<std::uint8_t>(Op::kGiveBack)) {
      ++returns;
      unordered += has_stored_;
    }
    ForwardingDomain::write_lines(to, lines, count);
  }
  void order() override {
    has_stored_ = false;
    ForwardingDomain::order();
  }
  void complete() override {
    has_stored_ = false;
    ForwardingDomain::complete();
  }

 private:
  const Layout& layout_;
  const std::byte* const base_;
  bool has_stored_ = false;
};

// The next holder of the block stores into it: what this client stored must not come after that.
TEST_F(ClientPartsTest, ABlockIsReturnedOnlyAfterWhatWasStoredIntoIt) {
  KeeperOptions keeper;
  keeper.max_grants = 1;
  pool_.start_keeper(keeper);
  const Access& seen = pool_.access();
  OrderedReturns domain(pool_.domain(), seen.layout, seen.view.bases[0]);
  LimitedMemory memory;
  memory.limit = seen.geometry.blocks;
  Result<Access> access = make_access(seen.id, seen.geometry, seen.view, domain);
  ASSERT_TRUE(access) << access.error().message;
  access->expansions = &memory;
  pool_.client_access = *access;
  const auto client = pool_.attach(kSlot);
  const std::vector<std::byte> bytes = payload_of(1, 200);
  const PutItem items[] = {{hash_of(1), bytes}, {hash_of(2), bytes}};
  Verdict verdicts[2];
  const Status put = client->put(nullptr, items, verdicts);
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, Code::kNoSpace);  // for the second one
  memory.limit = 0;                             // its device is given up
  client->return_inaccessible();
  EXPECT_EQ(domain.returns, 1u);
  EXPECT_EQ(domain.unordered, 0u);
  EXPECT_EQ(client->grants().held(), 0u);
}

TEST_F(ClientPartsTest, CountersArePublishedFromBeginToEnd) {
  const ClientContext context = this->context();
  PublishedCounters counters(context);
  const auto published = [this] {
    ClientCounters read;
    (void)read.read(pool_.access().region, pool_.access().layout.client_counters(kSlot));
    return read[ClientCounter::kPuts];
  };
  counters.live()[ClientCounter::kPuts] += 3;
  counters.publish();
  EXPECT_EQ(published(), 0u);
  counters.begin();
  counters.publish();
  EXPECT_EQ(published(), 3u);
  counters.end();
  counters.live()[ClientCounter::kPuts] += 1;
  counters.publish();
  EXPECT_EQ(published(), 3u);
}

}  // namespace
}  // namespace cachalot::pool
