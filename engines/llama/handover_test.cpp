// Blocks between two processes' hand-overs, here both in one.
#include "handover.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

namespace cachalot::llama {
namespace {

constexpr std::uint64_t kBlockBytes = 1000;  // of 64 tokens: pages are a little larger
constexpr std::uint64_t kPageBytes = 1024;

std::vector<BlockHash> hashes_of(std::size_t blocks) {
  std::vector<BlockHash> hashes;
  for (std::size_t i = 0; i < blocks; ++i) hashes.push_back({i + 1, 7});
  return hashes;
}

Status fill(std::size_t block, std::span<std::byte> room) {
  std::memset(room.data(), static_cast<int>(block + 1), room.size());
  return {};
}

class HandoverTest : public testing::Test {
 protected:
  std::shared_ptr<Handover> open(std::uint64_t pages = 8) {
    HandoverOptions options;
    options.listen = {"tcp:127.0.0.1:0"};
    options.deadline_ns = 20'000'000'000;
    options.staging_bytes = pages * kPageBytes;
    options.on_warning = [this](const char* message) { log_.emplace_back(message); };
    Result<std::shared_ptr<Handover>> opened = Handover::open(options, identity_, kBlockBytes);
    EXPECT_TRUE(opened) << (opened ? "" : opened.error().message);
    return opened ? *std::move(opened) : nullptr;
  }

  static Handover::Arrival::State wait(Handover::Arrival& arrival) {
    while (arrival.state() == Handover::Arrival::kComing)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return arrival.state();
  }

  // An offer's end is heard of a moment after the arrival.
  static void expect_all_free(Handover& handover) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (handover.counts().free_pages != handover.counts().pages &&
           std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(handover.counts().free_pages, handover.counts().pages);
  }

  bool has_logged(const char* text) const {
    return std::any_of(log_.begin(), log_.end(), [&](const std::string& line) {
      return line.find(text) != std::string::npos;
    });
  }

  BlockIdentity identity_{std::string(64, 'a'), "f16/f16", 64, std::string(64, 'b')};
  std::vector<std::string> log_;  // outlives the hand-overs
};

TEST_F(HandoverTest, BlocksArriveAsTheyWereFilledAndAllPagesAreFreeAfterwards) {
  const auto prefill = open(), decode = open();
  const std::vector<BlockHash> hashes = hashes_of(5);
  for (const std::size_t first : {0u, 3u, 5u}) {
    const auto reference = prefill->offer(hashes, fill);
    ASSERT_TRUE(reference);
    EXPECT_EQ(reference->kv.tokens, 5u * 64);
    {
      auto arrival = decode->ask(*reference, hashes, first);
      ASSERT_TRUE(arrival);
      ASSERT_EQ(wait(*arrival), Handover::Arrival::kHere);
      EXPECT_EQ(arrival->first(), std::min<std::size_t>(first, 4));  // one block ends an offer
      EXPECT_EQ(arrival->end(), 5u);
      for (std::size_t block = arrival->first(); block < 5; ++block) {
        ASSERT_EQ(arrival->block(block).size(), kBlockBytes);
        for (const std::byte byte : arrival->block(block))
          ASSERT_EQ(byte, static_cast<std::byte>(block + 1));
      }
      EXPECT_EQ(decode->counts().free_pages, 8u - (5 - arrival->first()));
    }
    EXPECT_EQ(decode->counts().free_pages, 8u);
    expect_all_free(*prefill);
  }
  EXPECT_TRUE(log_.empty()) << log_.front();
}

TEST_F(HandoverTest, AnArrivalThatIsDestroyedEarlyGivesItsPagesBack) {
  const auto prefill = open(), decode = open();
  const std::vector<BlockHash> hashes = hashes_of(8);
  const auto reference = prefill->offer(hashes, fill);
  ASSERT_TRUE(reference);
  EXPECT_TRUE(decode->ask(*reference, hashes, 0));
  EXPECT_EQ(decode->counts().free_pages, 8u);
  EXPECT_EQ(decode->counts().of_rank.open_asks, 0u);
}

TEST_F(HandoverTest, WithoutRoomOrWithABlockThatCannotBeWrittenNothingIsOfferedOrHeld) {
  const auto small = open(3), prefill = open();
  const std::vector<BlockHash> hashes = hashes_of(4);
  EXPECT_FALSE(small->offer(hashes, fill));
  EXPECT_TRUE(has_logged("4 blocks, and 3 of 3 pages of staging memory are free"));
  EXPECT_FALSE(prefill->offer({}, fill));
  EXPECT_FALSE(prefill->offer(hashes, [](std::size_t block, std::span<std::byte>) -> Status {
    if (block < 2) return {};
    return Error::make(Code::kUnsupported, "block 2 is odd");
  }));
  EXPECT_TRUE(has_logged("a prompt cannot be offered: block 2 is odd"));
  const auto reference = prefill->offer(hashes, fill);
  ASSERT_TRUE(reference);
  EXPECT_FALSE(small->ask(*reference, hashes, 0));
  EXPECT_TRUE(has_logged("cannot be taken over"));
  EXPECT_TRUE(small->ask(*reference, hashes, 1));  // three blocks have room
  EXPECT_EQ(small->counts().free_pages, 3u);
}

TEST_F(HandoverTest, AReferenceOfSomethingElseIsNamedAndNotAskedFor) {
  const auto prefill = open();
  const std::vector<BlockHash> hashes = hashes_of(4);
  const auto reference = prefill->offer(hashes, fill);
  ASSERT_TRUE(reference);
  const auto expect_refused = [&](const PromptReference& given, std::span<const BlockHash> prompt,
                                  const char* reason) {
    const auto decode = open();
    EXPECT_FALSE(decode->ask(given, prompt, 0)) << reason;
    EXPECT_TRUE(has_logged(reason)) << reason;
    EXPECT_EQ(decode->counts().of_rank.asks, 0u);
    EXPECT_EQ(decode->counts().free_pages, 8u);
  };
  PromptReference other = *reference;
  other.identity.model = std::string(64, 'c');
  expect_refused(other, hashes, "it has model cccccccccccccccccccc, this process aaaa");
  other = *reference;
  other.identity.kv_types = "q8_0/q8_0";
  expect_refused(other, hashes, "it has KV types q8_0/q8_0, this process f16/f16");
  other = *reference;
  other.identity.block_tokens = 32;
  expect_refused(other, hashes, "its blocks have 32 tokens, those of this process 64");
  other = *reference;
  other.identity.fingerprint = std::string(64, 'c');
  expect_refused(other, hashes, "another libllama, CPU, setting or salt");
  other = *reference;
  other.kv.tokens = 100;
  expect_refused(other, hashes, "it has 100 tokens, the prompt 256");
  other.kv.tokens = std::uint64_t{1} << 40;
  expect_refused(other, hashes, "the prompt 256");
  other.kv.tokens = 0;
  expect_refused(other, hashes, "it has 0 tokens");
  std::vector<BlockHash> prompt = hashes;
  prompt.back().low ^= 1;
  expect_refused(*reference, prompt, "it is of another prompt");
  expect_refused(*reference, std::span(hashes).first(3), "it has 256 tokens, the prompt 192");
}

TEST_F(HandoverTest, TheEndOfTheOtherSideEndsWhatIsUnderWay) {
  auto prefill = open();
  const auto decode = open();
  const std::vector<BlockHash> hashes = hashes_of(4);
  const auto reference = prefill->offer(hashes, fill);
  ASSERT_TRUE(reference);
  prefill.reset();
  {
    auto arrival = decode->ask(*reference, hashes, 0);
    ASSERT_TRUE(arrival);
    EXPECT_EQ(wait(*arrival), Handover::Arrival::kFailed);
  }
  EXPECT_TRUE(has_logged("a transfer failed, its blocks are computed"));
  EXPECT_EQ(decode->counts().free_pages, 8u);
}

TEST_F(HandoverTest, LessMemoryThanABlockIsRefused) {
  HandoverOptions options;
  options.listen = {"auto"};
  options.staging_bytes = kPageBytes - 1;
  const auto opened = Handover::open(options, identity_, kBlockBytes);
  ASSERT_FALSE(opened);
  EXPECT_STREQ(opened.error().message,
               "staging memory: 1023 bytes, expected at least a block of this model, 1024 bytes");
}

}  // namespace
}  // namespace cachalot::llama
