#include "vtensor/vtensor_set.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <utility>

#include "base/rng.h"
#include "testing/device_memory/faulty_backend.h"

namespace cachalot::vtensor {
namespace {

constexpr std::uint64_t kChunk = device_memory::FaultyBackend::kGranule;

std::vector<BlockHash> prompt_of(std::uint64_t name, std::size_t blocks) {
  std::vector<BlockHash> hashes;
  for (std::size_t i = 1; i <= blocks; ++i) hashes.push_back({base::mix64(name * 1000 + i), i});
  return hashes;
}

// Two layers of two parts of 16 bytes: 4 tokens a chunk in each of 4 planes; 64 bytes a token.
class VTensorSetTest : public testing::Test {
 protected:
  VTensorOptions options() const {
    return {.shape = {.layers = 2, .part_bytes = {16, 16}},
            .layout = KvLayout::kPerLayer,
            .chunk_bytes = kChunk,
            .max_tokens = 64,
            .block_tokens = 4,
            .with_thread = false};
  }
  void open(const VTensorOptions& options, std::uint64_t limit = LocalBudget::kNoLimit) {
    budget_.emplace(limit);
    auto set = VTensorSet::open(backend_, *budget_, options);
    ASSERT_TRUE(set) << set.error().message;
    set_ = *std::move(set);
  }
  VTensor* create(std::uint64_t tokens, std::span<const BlockHash> hashes = {}) {
    const auto created = set_->create(tokens, 64, hashes);
    EXPECT_TRUE(created) << created.error().message;
    return created ? created->vtensor : nullptr;
  }
  std::uint64_t used() const { return set_->stats().chunks.used; }

  device_memory::FaultyBackend backend_;
  std::optional<LocalBudget> budget_;
  std::unique_ptr<VTensorSet> set_;
};

TEST_F(VTensorSetTest, GrowsByWholeChunksInAllPlanes) {
  open(options());
  VTensor* const vtensor = create(1);
  EXPECT_EQ(used(), 4u);
  EXPECT_EQ(vtensor->ready_tokens(), 4u);
  ASSERT_TRUE(set_->extend(*vtensor, 4));
  EXPECT_EQ(used(), 4u);
  ASSERT_TRUE(set_->extend(*vtensor, 5));
  EXPECT_EQ(used(), 8u);
  ASSERT_TRUE(set_->shrink(*vtensor, 4));
  EXPECT_EQ(used(), 4u);
  EXPECT_EQ(vtensor->ready_tokens(), 4u);
}

TEST_F(VTensorSetTest, PrepareMapsInTheBackgroundSoThatDecodeNeverWaits) {
  open(options());
  VTensor* const vtensor = create(3);
  for (std::uint64_t tokens = 4; tokens <= 64; ++tokens) {
    set_->prepare(*vtensor, tokens);
    set_->work();  // while the step computes
    const device_memory::CallCounts before = backend_.counts();
    ASSERT_TRUE(set_->wait_ready(*vtensor, tokens));
    EXPECT_EQ(backend_.counts(), before);
  }
  EXPECT_EQ(set_->stats().waits, 0u);
  EXPECT_EQ(set_->stats().prepared, 15u);
}

TEST_F(VTensorSetTest, WithoutPrepareItWaitsAndSaysSo) {
  open(options());
  VTensor* const vtensor = create(4);
  ASSERT_TRUE(set_->wait_ready(*vtensor, 5));
  ASSERT_TRUE(set_->wait_ready(*vtensor, 6));
  EXPECT_EQ(set_->stats().waits, 1u);
}

TEST_F(VTensorSetTest, ReadyChunksComeWithoutACreate) {
  VTensorOptions with = options();
  with.ready_chunks = 8;
  open(with);
  set_->work();
  EXPECT_EQ(backend_.counts().create, 8u);
  create(8);
  EXPECT_EQ(set_->stats().chunks.created_late, 0u);
  set_->work();
  EXPECT_EQ(set_->stats().chunks.ready, 8u);
}

// Each call of the device fails once, at each of the planes.
TEST_F(VTensorSetTest, AFailureInTheMiddleLosesNothing) {
  open(options());
  VTensor* const vtensor = create(6);
  for (const std::string call : {"map", "set_access"}) {
    for (std::uint64_t nth = 1; nth <= 4; ++nth) {
      SCOPED_TRACE(call + std::to_string(nth));
      backend_.fail(call, nth);
      EXPECT_FALSE(set_->extend(*vtensor, 12));
      backend_.heal();
      EXPECT_EQ(used(), 8u);
      EXPECT_EQ(vtensor->ready_tokens(), 8u);
      EXPECT_EQ(backend_.mapped_bytes(), 8 * kChunk);
      backend_.fail(call, nth);
      EXPECT_FALSE(set_->create(9, 64));
      backend_.heal();
      set_->work();
      EXPECT_EQ(used(), 8u);
      EXPECT_EQ(set_->stats().live, 1u);
    }
  }
  EXPECT_TRUE(set_->extend(*vtensor, 64));
}

TEST_F(VTensorSetTest, WhatTheDeviceDoesNotUnmapNobodyGets) {
  VTensorOptions lazy_off = options();
  lazy_off.idle_chunks = 0;
  open(lazy_off);
  VTensor* const vtensor = create(16);
  backend_.fail("unmap", 2);
  set_->release(vtensor);
  set_->work();
  EXPECT_EQ(set_->stats().stuck_chunks, 4u);
  EXPECT_EQ(used(), 4u);
  EXPECT_NE(create(16), vtensor);
}

// The last plane's access fails, and then nothing can be unmapped: all of it is mapped, none is ready.
TEST_F(VTensorSetTest, WhatIsMappedWithoutAccessIsNotReady) {
  open(options());
  VTensor* const vtensor = create(6);
  backend_.fail("set_access", 4);
  backend_.fail("unmap", 1, 9);
  EXPECT_FALSE(set_->extend(*vtensor, 12));
  backend_.heal();
  EXPECT_EQ(vtensor->ready_tokens(), 8u);
  EXPECT_FALSE(set_->wait_ready(*vtensor, 12));
  EXPECT_TRUE(set_->shrink(*vtensor, 0));
  EXPECT_TRUE(set_->wait_ready(*vtensor, 12));
  EXPECT_EQ(used(), 12u);
}

TEST_F(VTensorSetTest, ShrinkingToMoreThanThereCanBeDoesNothing) {
  open(options());
  VTensor* const vtensor = create(8);
  EXPECT_TRUE(set_->shrink(*vtensor, std::uint64_t{1} << 60));  // 16 times that is 2^64
  EXPECT_EQ(vtensor->ready_tokens(), 8u);
  EXPECT_EQ(used(), 8u);
}

TEST_F(VTensorSetTest, AReleasedOneIsLeftMappedForTheNextThatFits) {
  open(options());
  VTensor* const small = create(8);
  VTensor* const large = create(32);
  set_->release(large);
  set_->release(small);
  set_->work();
  EXPECT_EQ(used(), 8u + 32u);
  const device_memory::CallCounts before = backend_.counts();
  EXPECT_EQ(create(7), small);
  EXPECT_EQ(create(9), large);
  EXPECT_EQ(backend_.counts(), before);
}

TEST_F(VTensorSetTest, OneWithMoreThanARequestCanUseIsNotForIt) {
  open(options());
  VTensor* const large = create(32);
  set_->release(large);
  const auto created = set_->create(4, 16);
  ASSERT_TRUE(created);
  EXPECT_NE(created->vtensor, large);
}

TEST_F(VTensorSetTest, UnderPressureIdleOnesAreUnmappedTheOldestFirst) {
  open(options(), 24);
  VTensor* const first = create(8);
  VTensor* const second = create(8);
  VTensor* const live = create(4);
  set_->release(first);
  set_->release(second);
  ASSERT_TRUE(set_->extend(*live, 16));
  EXPECT_EQ(set_->stats().idle_chunks, 8u);
  EXPECT_EQ(first->ready_tokens(), 0u);
  EXPECT_EQ(second->ready_tokens(), 8u);
  const Status refused = set_->extend(*live, 64);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kNoSpace);
  EXPECT_EQ(live->ready_tokens(), 16u);
  EXPECT_EQ(used(), 16u);
}

TEST_F(VTensorSetTest, KeepsNoMoreIdleChunksThanItMay) {
  VTensorOptions few = options();
  few.idle_chunks = 10;
  open(few);
  VTensor* const first = create(8);
  VTensor* const second = create(8);
  set_->release(first);
  set_->release(second);
  set_->work();
  EXPECT_EQ(set_->stats().idle_chunks, 8u);
}

TEST_F(VTensorSetTest, SharesTheFullChunksOfARecordedPrefix) {
  open(options());
  const auto prompt = prompt_of(1, 5);
  VTensor* const first = create(21);
  ASSERT_TRUE(set_->record(*first, prompt));
  const auto second = set_->create(23, 64, prompt);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->shared_tokens, 20u);
  EXPECT_EQ(used(), 24u + 4u);  // six chunks a plane, and one of its own
  EXPECT_EQ(set_->stats().borrowed_chunks, 20u);
  // A prompt that is recorded to its last token has one to compute all the same.
  const auto third = set_->create(20, 64, prompt);
  ASSERT_TRUE(third);
  EXPECT_EQ(third->shared_tokens, 16u);  // 19, less the tail that cannot be copied
  EXPECT_EQ(set_->stats().borrowed_chunks_total, 36u);
}

TEST_F(VTensorSetTest, AReleasedOneWithSharedChunksIsNotLeftMapped) {
  open(options());
  const auto prompt = prompt_of(1, 2);
  VTensor* const first = create(12);
  ASSERT_TRUE(set_->record(*first, prompt));
  set_->release(first);
  set_->work();
  EXPECT_EQ(used(), 8u);  // what is recorded
  EXPECT_EQ(backend_.mapped_bytes(), 0u);
  const auto again = set_->create(12, 64, prompt);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->shared_tokens, 8u);
  EXPECT_EQ(used(), 12u);
}

// The chunk in which a prefix ends is recorded as well, where tails are copied: it must not go to the
// next request, which would write into it.
TEST_F(VTensorSetTest, AChunkWithARecordedTailIsNotReused) {
  VTensorOptions copying = options();
  copying.block_tokens = 3;
  copying.copy = [](device_memory::Address, device_memory::Address, std::uint64_t) {
    return Status();
  };
  open(copying);
  VTensor* const first = create(4);
  ASSERT_TRUE(set_->record(*first, prompt_of(1, 1)));  // no chunk is full
  set_->release(first);
  EXPECT_EQ(set_->stats().idle_chunks, 4u);
  create(4);
  EXPECT_EQ(used(), 8u);
  const auto match = set_->create(4, 64, prompt_of(1, 1));
  ASSERT_TRUE(match);
  EXPECT_EQ(match->shared_tokens, 3u);
  EXPECT_EQ(set_->stats().copied_bytes, 3 * 64u);
  EXPECT_EQ(set_->stats().borrowed_chunks, 0u);
}

TEST_F(VTensorSetTest, PrefixesGoWhenChunksAreShortLeastRecentlyUsedFirst) {
  open(options(), 36);
  const auto old_prompt = prompt_of(1, 3), new_prompt = prompt_of(2, 3);
  for (const auto& prompt : {old_prompt, new_prompt}) {
    VTensor* const vtensor = create(12);
    ASSERT_TRUE(set_->record(*vtensor, prompt));
    set_->release(vtensor);
  }
  set_->work();
  EXPECT_EQ(used(), 24u);
  set_->release(create(13, old_prompt));  // now the other one is the older
  set_->release(create(24));              // 12 are free
  EXPECT_EQ(set_->stats().evicted_blocks, 3u);
  EXPECT_EQ(set_->stats().recorded_blocks, 3u);
  const auto match = set_->create(13, 64, old_prompt);
  ASSERT_TRUE(match);
  EXPECT_EQ(match->shared_tokens, 12u);
}

TEST_F(VTensorSetTest, WhatARunningRequestMapsIsNotForgotten) {
  open(options(), 20);
  VTensor* const running = create(12);
  ASSERT_TRUE(set_->record(*running, prompt_of(1, 3)));
  VTensor* const other = create(8);
  EXPECT_FALSE(set_->extend(*other, 12));
  EXPECT_EQ(set_->stats().recorded_blocks, 3u);
  set_->release(running);
  EXPECT_TRUE(set_->extend(*other, 20));
  EXPECT_EQ(set_->stats().recorded_blocks, 0u);
}

TEST_F(VTensorSetTest, AliasSharesWithoutARecord) {
  open(options());
  VTensor* const from = create(10);
  VTensor* const to = create(0);
  const auto shared = set_->alias(*to, *from, 10);
  ASSERT_TRUE(shared);
  EXPECT_EQ(*shared, 8u);
  EXPECT_EQ(used(), 12u);
  ASSERT_TRUE(set_->extend(*to, 10));
  EXPECT_EQ(used(), 16u);
  EXPECT_FALSE(set_->alias(*to, *from, 4));  // it has memory
  EXPECT_FALSE(set_->alias(*from, *from, 4));
  set_->release(from);
  set_->work();
  EXPECT_EQ(used(), 12u);
  ASSERT_TRUE(set_->shrink(*to, 0));
  EXPECT_EQ(used(), 0u);
  EXPECT_EQ(set_->stats().borrowed_chunks, 0u);
}

TEST_F(VTensorSetTest, SharedTokensCannotBeCutOffAlone) {
  open(options());
  VTensor* const vtensor = create(12);
  ASSERT_TRUE(set_->record(*vtensor, prompt_of(1, 2)));
  EXPECT_FALSE(set_->shrink(*vtensor, 7));
  EXPECT_TRUE(set_->shrink(*vtensor, 8));
  EXPECT_TRUE(set_->shrink(*vtensor, 0));
}

// Of two requests that computed the same, the second has chunks of its own, and a block more that owns none: its
// chunks are read-only and not shared. It must not go back into them either.
TEST_F(VTensorSetTest, WhatCannotBeWrittenCannotBeCutOff) {
  VTensorOptions halves = options();
  halves.block_tokens = 2;
  open(halves);
  VTensor* const first = create(12);
  VTensor* const second = create(12);
  ASSERT_TRUE(set_->record(*first, prompt_of(1, 4)));
  ASSERT_TRUE(set_->record(*second, prompt_of(1, 5)));
  EXPECT_EQ(used(), 24u);
  EXPECT_FALSE(set_->shrink(*second, 5));
  EXPECT_TRUE(set_->shrink(*second, 10));
}

TEST_F(VTensorSetTest, AnAliasThatFailsLeavesTheOtherOneWritable) {
  VTensorOptions copying = options();
  bool fails = true;
  copying.copy = [&](device_memory::Address, device_memory::Address, std::uint64_t) {
    return fails ? Status(Error::make(Code::kIo, "copy: told to fail")) : Status();
  };
  open(copying);
  VTensor* const from = create(16);
  VTensor* const to = create(0);
  EXPECT_FALSE(set_->alias(*to, *from, 10));
  EXPECT_TRUE(set_->shrink(*from, 9));
  fails = false;
  ASSERT_TRUE(set_->alias(*to, *from, 5));
  fails = true;
  VTensor* const third = create(0);
  EXPECT_FALSE(set_->alias(*third, *from, 9));
  EXPECT_FALSE(set_->shrink(*from, 4));  // `to` has them
  EXPECT_TRUE(set_->shrink(*from, 5));
  set_->release(to);
  set_->release(third);
  VTensor* const whole = create(8);
  EXPECT_FALSE(set_->alias(*create(0), *whole, 7));
  set_->release(whole);
  set_->work();
  EXPECT_EQ(set_->stats().idle_chunks, 8u);  // left for the next one: all its own, and writable
}

// The window through which tails are copied stays mapped: the chunks that can be read through it are not reused.
TEST_F(VTensorSetTest, ATailThatStaysMappedIsNeverReady) {
  VTensorOptions copying = options();
  copying.block_tokens = 3;
  copying.copy = [](device_memory::Address, device_memory::Address, std::uint64_t) {
    return Status();
  };
  open(copying);
  VTensor* const first = create(3);
  ASSERT_TRUE(set_->record(*first, prompt_of(1, 1)));
  set_->release(first);
  set_->work();
  backend_.fail("unmap", 1);
  EXPECT_FALSE(set_->create(4, 64, prompt_of(1, 1)));
  backend_.heal();
  set_->reclaim(100);
  EXPECT_EQ(set_->stats().recorded_blocks, 0u);
  EXPECT_EQ(set_->stats().stuck_chunks, 4u);
  EXPECT_EQ(used(), 4u);
}

TEST_F(VTensorSetTest, AMatchThatFailsGivesItsReferencesBack) {
  VTensorOptions copying = options();
  copying.block_tokens = 3;
  bool fails = true;
  copying.copy = [&](device_memory::Address, device_memory::Address, std::uint64_t) {
    return fails ? Status(Error::make(Code::kIo, "copy: told to fail")) : Status();
  };
  open(copying);
  const auto prompt = prompt_of(1, 3);
  VTensor* const first = create(9);
  ASSERT_TRUE(set_->record(*first, prompt));
  const std::uint64_t references = set_->stats().chunks.references;
  EXPECT_FALSE(set_->create(11, 64, prompt));
  for (const std::string call : {"reserve", "map", "set_access"}) {
    for (std::uint64_t nth = 1; nth <= 9; ++nth) {
      backend_.fail(call, nth);
      const auto created = set_->create(11, 64, prompt);
      EXPECT_FALSE(created);
    }
    backend_.heal();
    set_->work();
    EXPECT_EQ(set_->stats().chunks.references, references) << call;
  }
  fails = false;
  EXPECT_TRUE(set_->create(11, 64, prompt));
}

// Only a tail is found, and then there is no chunk for it: the range that it was to go to is as new.
TEST_F(VTensorSetTest, ARangeThatAFailedMatchLeavesIsReusable) {
  VTensorOptions copying = options();
  copying.block_tokens = 3;
  copying.copy = [](device_memory::Address, device_memory::Address, std::uint64_t) {
    return Status();
  };
  open(copying, 8);
  VTensor* const first = create(3);
  ASSERT_TRUE(set_->record(*first, prompt_of(1, 1)));
  VTensor* const other = create(4);
  EXPECT_FALSE(set_->create(4, 64, prompt_of(1, 1)));
  ASSERT_TRUE(set_->shrink(*other, 0));
  VTensor* const next = create(4);
  EXPECT_TRUE(set_->shrink(*next, 1));
  set_->release(next);
  set_->work();
  EXPECT_EQ(set_->stats().idle_chunks, 4u);
}

TEST_F(VTensorSetTest, RefusesWhatDoesNotFit) {
  open(options());
  EXPECT_FALSE(set_->create(65, 65));
  EXPECT_FALSE(set_->create(9, 8));
  VTensor* const vtensor = set_->create(4, 8)->vtensor;
  EXPECT_FALSE(set_->extend(*vtensor, 9));
  EXPECT_FALSE(set_->wait_ready(*vtensor, 9));
  EXPECT_EQ(set_->stats().waits, 0u);
  set_->prepare(*vtensor, 1000);
  set_->work();
  EXPECT_EQ(vtensor->ready_tokens(), 8u);
  EXPECT_FALSE(set_->record(*vtensor, prompt_of(1, 3)));
  VTensorOptions odd = options();
  odd.chunk_bytes = kChunk + 1;
  EXPECT_FALSE(VTensorSet::open(backend_, *budget_, odd));
}

// Calls back while the background asks it: what happens then must not be forgotten by what it decides.
class BusyBudget final : public ChunkBudget {
 public:
  std::function<std::uint64_t(std::uint64_t wanted)> on_take;
  std::function<std::uint64_t()> on_asked;
  std::function<void()> on_owed;

  std::uint64_t take(std::uint64_t wanted) override { return on_take ? on_take(wanted) : wanted; }
  void give(std::uint64_t /*credits*/) override {}
  std::uint64_t asked() const override { return on_asked ? on_asked() : 0; }
  std::uint64_t owed() const override {
    if (on_owed) on_owed();
    return 0;
  }
};

// Between the attempt and the search for a request that could release memory.
TEST_F(VTensorSetTest, ChunksThatComeBackWhileItLooksForThemAreTaken) {
  BusyBudget budget;
  const auto set = *VTensorSet::open(backend_, budget, options());
  VTensor* const vtensor = set->create(8, 64)->vtensor;
  budget.on_take = [](std::uint64_t) { return std::uint64_t{0}; };
  budget.on_owed = [&] { EXPECT_TRUE(set->shrink(*vtensor, 0)); };
  EXPECT_TRUE(set->create(8, 64));
  budget.on_owed = nullptr;
}

TEST_F(VTensorSetTest, ChunksThatComeBackWhileNoneCouldBeHadAreTriedAgain) {
  BusyBudget budget;
  VTensorOptions with = options();
  with.ready_chunks = 8;
  const auto set = *VTensorSet::open(backend_, budget, with);
  set->work();
  VTensor* const vtensor = set->create(8, 64)->vtensor;
  std::uint64_t calls = 0;
  budget.on_take = [&](std::uint64_t wanted) -> std::uint64_t {
    if (++calls != 1) return wanted;
    EXPECT_TRUE(set->shrink(*vtensor, 4));
    return 0;
  };
  set->work();  // in vain
  set->work();
  EXPECT_EQ(set->stats().chunks.ready, 8u);
}

TEST_F(VTensorSetTest, WhereNoneCanBeHadItRestsUntilSomeComeBack) {
  BusyBudget budget;
  VTensorOptions with = options();
  with.ready_chunks = 8;
  const auto set = *VTensorSet::open(backend_, budget, with);
  std::uint64_t calls = 0;
  budget.on_take = [&](std::uint64_t) { return calls++ * 0; };
  set->work();
  set->work();
  EXPECT_EQ(calls, 1u);
}

TEST_F(VTensorSetTest, WhatIsReleasedWhileNothingCouldBeGivenIsGiven) {
  BusyBudget budget;
  const auto set = *VTensorSet::open(backend_, budget, options());
  VTensor* const vtensor = set->create(8, 64)->vtensor;
  std::uint64_t calls = 0;
  budget.on_asked = [&] {
    // The second time is after all has been looked through; that it is short is not yet decided.
    if (++calls == 2) set->release(vtensor);
    return 8 - std::min<std::uint64_t>(8, backend_.counts().release);
  };
  set->work();
  EXPECT_EQ(backend_.physical_bytes(), 0u);
  budget.on_asked = nullptr;
}

TEST_F(VTensorSetTest, GivesEverythingBack) {
  open(options());
  VTensor* const vtensor = create(20);
  ASSERT_TRUE(set_->record(*vtensor, prompt_of(1, 4)));
  set_->release(create(7));
  set_.reset();
  EXPECT_EQ(backend_.physical_bytes(), 0u);
  EXPECT_EQ(backend_.reserved_bytes(), 0u);
  EXPECT_EQ(budget_->take(LocalBudget::kNoLimit), LocalBudget::kNoLimit);
}

}  // namespace
}  // namespace cachalot::vtensor
