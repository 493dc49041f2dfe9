#include "storage/store.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>

#include "base/log.h"
#include "storage/backends.h"
#include "testing/storage/chains.h"
#include "testing/storage/fake_backend.h"
#include "testing/storage/log_lines.h"

namespace cachalot::storage {
namespace {

class StoreTest : public ::testing::Test {
 protected:
  void open(const StoreOptions& options = {}) {
    store_.reset();
    store_ = Store::make(std::make_unique<FakeBackend>(disk_), options);
  }
  // @return leading blocks that are stored
  std::size_t put(const Chain& chain, std::size_t first = 0, std::size_t last = ~std::size_t{0},
                  const Store::StillValid& still_valid = {}) {
    last = std::min(last, chain.size());
    std::vector<std::vector<Bytes>> payloads;
    std::vector<BlockPut> blocks;
    for (std::size_t i = 0; i < chain.size(); ++i) payloads.push_back(chain.payload(i));
    for (std::size_t i = first; i < last; ++i)
      blocks.push_back({chain.hashes()[i], payloads[i], chain.tokens(i)});
    const BlockHash* const parent = first == 0 ? nullptr : &chain.hashes()[first - 1];
    return store_->put(kSpace, parent, blocks, soon(), still_valid);
  }
  std::vector<bool> get(Chain& chain) {
    std::vector<std::vector<Room>> rooms;
    std::vector<Get> gets;
    for (std::size_t i = 0; i < chain.size(); ++i) {
      chain.clear(i);
      rooms.push_back(chain.room(i));
    }
    for (std::size_t i = 0; i < chain.size(); ++i) gets.push_back({chain.key(i), rooms[i]});
    store_->get(gets, soon());
    std::vector<bool> right;
    for (std::size_t i = 0; i < chain.size(); ++i) {
      right.push_back(gets[i].status.ok());
      if (gets[i].status) {
        EXPECT_TRUE(chain.is_right(i) && gets[i].tokens == chain.tokens(i)) << i;
      }
    }
    return right;
  }
  std::size_t known(const Chain& chain) {
    return store_->catalogue().count_prefix(kSpace, chain.hashes());
  }

  static bool comes_true(const std::function<bool()>& condition) {
    const std::uint64_t until_ns = soon();
    while (!condition() && base::SteadyClock::read() < until_ns)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return condition();
  }

  FakeBackend::Disk disk_;
  std::unique_ptr<Store> store_;
};

TEST_F(StoreTest, AChainComesBackAlsoAfterARestart) {
  open();
  Chain chain(1, 6, 4096, 4);
  EXPECT_EQ(put(chain, 0, 4), 4u);
  EXPECT_EQ(put(chain, 4), 2u);
  EXPECT_EQ(get(chain), std::vector<bool>(6, true));
  open();
  EXPECT_EQ(known(chain), 6u);
  EXPECT_EQ(get(chain), std::vector<bool>(6, true));
}

TEST_F(StoreTest, ObjectsMayBeListedBeforeTheirParents) {
  open();
  Chain chain(1, 5, 4096, 4), headless(2, 4, 4096);
  put(chain);
  put(headless);
  for (std::size_t i = 0; i < chain.size(); ++i) disk_.objects.at(chain.key(i)).sequence = 1000 - i;
  disk_.objects.erase(headless.key(1));
  open();
  EXPECT_EQ(known(chain), 5u);
  EXPECT_EQ(get(chain), std::vector<bool>(5, true));
  EXPECT_EQ(known(headless), 1u);
  EXPECT_EQ(store_->catalogue().objects(), 6u);
  EXPECT_EQ(disk_.count(), 6u);  // what no prefix leads to is removed
  EXPECT_TRUE(store_->catalogue().is_valid());
}

// For a keeper that ends: to list a large storage takes long.
TEST_F(StoreTest, TheFirstListingEndsWhenItIsToldTo) {
  open();
  Chain chain(1, 6, 4096);
  put(chain);
  int asked = 0;
  store_.reset();
  store_ = Store::make(std::make_unique<FakeBackend>(disk_), {}, [&] { return ++asked >= 3; });
  EXPECT_EQ(asked, 4);  // and once at the end
  EXPECT_EQ(disk_.count(), 6u);
}

TEST_F(StoreTest, BlocksWithoutTheirPrefixAreNotStored) {
  open();
  Chain chain(1, 6, 4096);
  EXPECT_EQ(put(chain, 3), 0u);
  EXPECT_EQ(known(chain), 0u);
  EXPECT_EQ(store_->counts().refused_puts, 3u);
}

TEST_F(StoreTest, OfABackendThatKeepsNothingNothingIsKnown) {
  Result<std::unique_ptr<Backend>> null = open_backend("null:", {});
  ASSERT_TRUE(null);
  store_ = Store::make(*std::move(null), {.limits = {.objects = 3}});
  Chain chain(1, 2, 4096);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(put(chain), 2u);
    EXPECT_EQ(known(chain), 0u);
  }
  EXPECT_EQ(put(chain, 1), 1u);
  EXPECT_EQ(store_->counts().put_objects, 7u);
  EXPECT_EQ(store_->counts().evicted_objects, 0u);
}

TEST_F(StoreTest, TheLimitEvictsTheLeastRecentlyUsedLeaves) {
  open({.limits = {.objects = 6}});
  Chain first(1, 3, 4096), second(2, 3, 4096), third(3, 2, 4096);
  put(first), put(second);
  EXPECT_TRUE(store_->touch(first.key(2)));
  EXPECT_EQ(put(third), 2u);
  EXPECT_EQ(known(first), 3u);
  EXPECT_EQ(known(second), 1u);
  EXPECT_EQ(store_->counts().evicted_objects, 2u);
  EXPECT_EQ(disk_.objects.size(), 6u);
}

TEST_F(StoreTest, AChainLongerThanTheLimitIsCut) {
  open({.limits = {.bytes = 4 * 4096}});
  Chain chain(1, 6, 4096);
  EXPECT_EQ(put(chain), 4u);
  EXPECT_EQ(get(chain), (std::vector<bool>{true, true, true, true, false, false}));
}

TEST_F(StoreTest, ALimitThatHasShrunkIsKeptFromTheStartOn) {
  open();
  Chain chain(1, 6, 4096);
  put(chain);
  open({.limits = {.objects = 2}});
  EXPECT_EQ(known(chain), 2u);
  EXPECT_EQ(disk_.objects.size(), 2u);
}

TEST_F(StoreTest, WhatTheBudgetDoesNotAdmitIsNotStoredAndCounted) {
  open({.write_bytes_per_day = 24 * 7 * 2048});  // three and a half blocks an hour
  Chain first(1, 3, 4096), second(2, 3, 4096);
  EXPECT_EQ(put(first), 3u);
  EXPECT_EQ(put(second), 1u);  // the last leaves a debt
  EXPECT_EQ(disk_.objects.size(), 4u);
  EXPECT_EQ(store_->counts().over_budget_puts, 2u);
  EXPECT_EQ(put(first), 3u);  // is there: nothing is written
  EXPECT_EQ(get(second), (std::vector<bool>{true, false, false}));
  EXPECT_EQ(store_->counts().over_budget_puts, 2u);
  EXPECT_TRUE(store_->is_up());
}

TEST_F(StoreTest, PayloadsThatChangedWhileTheyWereSealedAreNotStored) {
  open();
  Chain chain(1, 4, 4096);
  EXPECT_EQ(put(chain, 0, 4, [] { return std::size_t{2}; }), 2u);
  EXPECT_EQ(disk_.objects.size(), 2u);
}

// Each damage, and what the store says of it.
TEST_F(StoreTest, NoWrongByteIsEverHandedOut) {
  const std::pair<const char*, std::function<void(FakeBackend::Object&)>> damages[] = {
      {"a bit", [](auto& object) { object.body[77] ^= std::byte{1}; }},
      {"a token", [](auto& object) { object.body.back() ^= std::byte{1}; }},
      {"cut off", [](auto& object) { object.body.resize(100); }},
      {"of another key", [](auto& object) { object.head.key.block.low ^= 1; }},
      {"the body of another object",
       [this](auto& object) { object.body = disk_.objects.at(Chain(2, 1, 4096, 2).key(0)).body; }},
      {"another object",
       [this](auto& object) { object = disk_.objects.at(Chain(2, 1, 4096, 2).key(0)); }},
      {"another parent", [](auto& object) { object.head.parent.low ^= 1; }},
      {"no head", [](auto& object) { object.head.magic = 0; }},
  };
  for (const auto& [name, damage] : damages) {
    disk_.on_get = nullptr;
    disk_.objects.clear();
    open();
    Chain chain(1, 3, 4096, 2), other(2, 1, 4096, 2);
    put(chain), put(other);
    const ObjectKey hit = chain.key(1);
    disk_.on_get = [&, damage = damage](FakeBackend::Object& object) {
      if (object.head.key == hit) damage(object);
    };
    EXPECT_EQ(get(chain), (std::vector<bool>{true, false, true})) << name;
    EXPECT_EQ(store_->counts().damaged_objects, 1u) << name;
    EXPECT_EQ(known(chain), 1u) << name;  // what was below it went, too
    EXPECT_TRUE(store_->is_up()) << name;
    disk_.on_get = nullptr;
    Chain again(1, 3, 4096, 2);
    EXPECT_EQ(put(again), 3u) << name;
    EXPECT_EQ(get(again), std::vector<bool>(3, true)) << name;
  }
}

TEST_F(StoreTest, ObjectsThatOthersRemovedAreMissesAndCounted) {
  open();
  Chain chain(1, 3, 4096);
  put(chain);
  disk_.objects.erase(chain.key(1));
  EXPECT_EQ(get(chain), (std::vector<bool>{true, false, true}));
  EXPECT_EQ(store_->counts().missing_objects, 1u);
  EXPECT_EQ(known(chain), 1u);
}

TEST_F(StoreTest, ABackendThatFailsIsTakenOutOfUseAndComesBack) {
  open();
  Chain chain(1, 3, 4096), other(2, 3, 4096);
  put(chain);
  disk_.fail(Error::make(Code::kIo, "the server is down"));
  for (std::uint32_t i = 0; i < Breaker::kFailures; ++i) {
    EXPECT_EQ(get(chain), std::vector<bool>(3, false));
  }
  EXPECT_FALSE(store_->is_up());
  const std::uint64_t calls = disk_.count_calls();
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(get(chain), std::vector<bool>(3, false));
    EXPECT_EQ(put(other), 0u);
  }
  EXPECT_LE(disk_.count_calls(), calls + 2);  // the store's own tries
  EXPECT_EQ(store_->counts().outages, 1u);
  disk_.fail({});
  const std::uint64_t until = soon();
  while (!store_->is_up() && base::SteadyClock::read() < until) (void)get(chain);
  EXPECT_EQ(get(chain), std::vector<bool>(3, true));
  EXPECT_EQ(put(other), 3u);
}

// A failure of an object is none of the backend, if other objects of the call worked.
TEST_F(StoreTest, AnObjectThatFailsBesideOthersIsNoOutage) {
  open();
  const Chain chain(1, 8, 4096);
  Chain whole(2, 8, 4096);
  ASSERT_EQ(put(whole), 8u);
  const auto fails = [](const ObjectKey& bad) {
    return [bad](const ObjectKey& key) {
      return key == bad ? Status(Error::make(Code::kIo, "HTTP 503, SlowDown")) : Status();
    };
  };
  LogLines lines;
  disk_.answer_put = fails(chain.key(5));
  disk_.answer_get = fails(whole.key(3));
  std::vector<bool> expected(8, true);
  expected[3] = false;
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(put(chain), 5u);
    EXPECT_EQ(get(whole), expected);
  }
  EXPECT_TRUE(store_->is_up());
  EXPECT_EQ(store_->counts().outages, 0u);
  EXPECT_GE(store_->gaps(), 10u);
  EXPECT_EQ(store_->last_error(), "HTTP 503, SlowDown");
  EXPECT_LE(lines.all().size(), 3u);
  disk_.answer_put = {};
  EXPECT_EQ(put(chain), 8u);
  EXPECT_EQ(known(chain), 8u);
  // A call of which nothing worked is one of the backend.
  disk_.answer_get = [](const ObjectKey&) { return Status(Error::make(Code::kIo, "HTTP 500")); };
  for (std::uint32_t i = 0; i < Breaker::kFailures; ++i) (void)get(whole);
  EXPECT_EQ(store_->counts().outages, 1u);
}

TEST_F(StoreTest, ABackendThatIsDownAtTheStartIsNoError) {
  open();
  Chain chain(1, 3, 4096);
  put(chain);
  disk_.fail(Error::make(Code::kIo, "the server is down"));
  open();
  EXPECT_EQ(known(chain), 0u);
  EXPECT_FALSE(store_->is_up());
  disk_.fail({});
  EXPECT_TRUE(comes_true([&] { return put(chain) == 3; }));
}

// Also if no engine calls it: the log of its outage has an end.
TEST_F(StoreTest, ASharedBackendThatIsSilentAtTheStartIsOneOutageWithAnEnd) {
  disk_.is_shared = true;
  disk_.fail(Error::make(Code::kTimeout, "no answer"));
  testing::internal::CaptureStderr();
  base::set_log_level(base::LogLevel::kWarn);
  open();
  EXPECT_FALSE(store_->is_up());
  EXPECT_EQ(store_->counts().outages, 1u);
  const std::uint64_t questions = disk_.read(disk_.questions);
  EXPECT_TRUE(comes_true([&] { return disk_.read(disk_.questions) > questions; }));
  EXPECT_FALSE(store_->is_up());
  disk_.fail({});
  EXPECT_TRUE(comes_true([&] { return disk_.read(disk_.lists) != 0; }));
  store_.reset();
  base::set_log_level(base::LogLevel::kOff);
  const std::string log = testing::internal::GetCapturedStderr();
  const std::size_t began = log.find("is out of use, and tried again");
  EXPECT_NE(began, std::string::npos) << log;
  EXPECT_NE(log.find("is back in use", began), std::string::npos) << log;
}

TEST_F(StoreTest, AfterAnOutageItComesBackWithoutAnyCall) {
  for (const bool is_shared : {false, true}) {
    disk_.is_shared = is_shared;
    open();
    Chain chain(is_shared ? 1 : 2, 3, 4096);
    ASSERT_EQ(put(chain), 3u);
    disk_.fail(Error::make(Code::kIo, "the server is down"));
    for (std::uint32_t i = 0; i < Breaker::kFailures; ++i) (void)get(chain);
    EXPECT_FALSE(store_->is_up());
    disk_.fail({});
    EXPECT_TRUE(comes_true([&] { return store_->is_up(); }));
    EXPECT_EQ(get(chain), std::vector<bool>(3, true));
    EXPECT_EQ(store_->counts().outages, 1u);
  }
}

TEST_F(StoreTest, AfterAnOutageWhatASharedBackendHasLostIsKnown) {
  disk_.is_shared = true;
  open();
  Chain chain(1, 3, 4096), other(2, 2, 4096), late(3, 2, 4096);
  put(chain), put(other);
  disk_.fail(Error::make(Code::kIo, "the server is down"));
  for (std::uint32_t i = 0; i < Breaker::kFailures; ++i) (void)get(chain);
  const std::uint64_t gaps = store_->gaps();
  EXPECT_EQ(put(late), 0u);
  EXPECT_GT(store_->gaps(), gaps);
  {
    const std::lock_guard lock(disk_.mutex);
    disk_.objects.erase(chain.key(1));
    disk_.failure = {};
  }
  EXPECT_TRUE(comes_true([&] { return known(chain) == 1; }));
  EXPECT_EQ(known(other), 2u);
  EXPECT_TRUE(store_->is_up());
  EXPECT_EQ(store_->counts().missing_objects, 2u);  // and the one below it
  EXPECT_GT(store_->gaps(), gaps + 1);
  EXPECT_EQ(put(chain), 3u);
  EXPECT_EQ(put(late), 2u);
}

// A server that was restarted, or emptied, between two calls.
TEST_F(StoreTest, ASharedBackendThatLostAllWithoutAFailedCallIsNoticed) {
  disk_.is_shared = true;
  open();
  Chain chain(1, 3, 4096);
  put(chain);
  const std::uint64_t gaps = store_->gaps();
  {
    const std::lock_guard lock(disk_.mutex);
    disk_.objects.clear();
  }
  EXPECT_TRUE(comes_true([&] { return known(chain) == 0; }));
  EXPECT_GT(store_->gaps(), gaps);
  EXPECT_EQ(store_->counts().outages, 0u);
  EXPECT_EQ(put(chain), 3u);
}

// A try that works says nothing of a local disk's bodies: one failed call is enough then, and the outage is the same.
TEST_F(StoreTest, WhatFailsAgainAtTheFirstCallIsTheSameOutage) {
  open();
  Chain chain(1, 3, 4096);
  put(chain);
  disk_.fail(Error::make(Code::kIo, "the disk is broken"));
  for (std::uint32_t i = 0; i < Breaker::kFailures; ++i) (void)get(chain);
  disk_.fail({});
  ASSERT_TRUE(comes_true([&] { return store_->is_up(); }));
  disk_.fail(Error::make(Code::kIo, "the disk is broken"));
  (void)get(chain);
  EXPECT_FALSE(store_->is_up());
  EXPECT_EQ(store_->counts().outages, 1u);
}

TEST_F(StoreTest, WhatABackendHasThatWasDownAtTheStartIsKnownOnceItIsThere) {
  open();
  Chain chain(1, 3, 4096), other(2, 2, 4096);
  put(chain);
  disk_.fail(Error::make(Code::kIo, "the server is down"));
  open();
  EXPECT_FALSE(store_->is_up());
  EXPECT_EQ(known(chain), 0u);
  disk_.fail({});
  EXPECT_TRUE(comes_true([&] { return known(chain) == 3; }));
  EXPECT_TRUE(store_->is_up());
  EXPECT_EQ(get(chain), std::vector<bool>(3, true));
  EXPECT_EQ(put(other), 2u);
}

// --- A backend that answers, and refuses ----------------------------------------------------------

TEST_F(StoreTest, RefusedPutsAreNoOutageAndAreNotRepeatedEachTime) {
  open();
  Chain chain(1, 3, 4096), other(2, 3, 4096);
  ASSERT_EQ(put(chain), 3u);
  disk_.fail_puts(Error::make(Code::kPermission, "the token has expired"));
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(put(other), 0u);
    EXPECT_EQ(get(chain), std::vector<bool>(3, true));
    EXPECT_TRUE(store_->is_up());
  }
  EXPECT_LE(disk_.read(disk_.puts), 1 + Breaker::kFailures + 2);  // and the tries of a slow machine
  EXPECT_EQ(store_->counts().outages, 0u);
  EXPECT_EQ(store_->counts().failed_puts, 300u);
  const std::uint64_t gaps = store_->gaps();
  EXPECT_GT(gaps, 0u);
  disk_.fail_puts({});
  EXPECT_TRUE(comes_true([&] { return put(other) == 3; }));
  EXPECT_EQ(get(other), std::vector<bool>(3, true));
}

// It answers, lists, and refuses each get: one outage, which few lines tell of and few calls try to end.
TEST_F(StoreTest, ABackendThatRefusesEachGetIsOneOutageAndAFewLines) {
  disk_.is_shared = true;
  open();
  Chain chain(1, 3, 4096);
  ASSERT_EQ(put(chain), 3u);
  testing::internal::CaptureStderr();
  base::set_log_level(base::LogLevel::kWarn);
  disk_.fail_gets(Error::make(Code::kPermission, "the token has expired"));
  const std::uint64_t questions = disk_.read(disk_.questions), gets = disk_.read(disk_.gets);
  const std::uint64_t lists = disk_.read(disk_.lists);
  EXPECT_TRUE(comes_true([&] {
    (void)get(chain);
    return disk_.read(disk_.questions) >= questions + 8;
  }));
  base::set_log_level(base::LogLevel::kOff);
  const std::string log = testing::internal::GetCapturedStderr();
  // Two failures, the outage, and what is known: once each.
  EXPECT_LE(std::count(log.begin(), log.end(), '\n'), 4) << log;
  EXPECT_NE(log.find("is out of use, and tried again"), std::string::npos) << log;
  EXPECT_EQ(log.find("back in use"), std::string::npos) << log;
  EXPECT_EQ(store_->counts().outages, 1u);
  EXPECT_LE(disk_.read(disk_.gets), gets + Breaker::kFailures + 4);  // tries after 1, 2, 4 s
  EXPECT_LE(disk_.read(disk_.lists), lists + 1);
  disk_.fail_gets({});
  EXPECT_TRUE(comes_true([&] { return get(chain) == std::vector<bool>(3, true); }));
}

}  // namespace
}  // namespace cachalot::storage
