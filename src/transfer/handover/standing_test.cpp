// Standing offers, parts of an offer, and offers that are declined.
#include "base/rng.h"
#include "testing/transfer/live_instance.h"

namespace cachalot {
namespace {

using namespace transfer;  // NOLINT

// Prefill instances of any shape, with a prompt of whole pages.
struct Standing : ::testing::Test {
  base::Rng rng{17};
  KvGeometry model = small_model();
  static constexpr std::uint64_t kMostTokens = 200;
  OfferId id = *random_offer_id();
  std::uint64_t page_tokens = 0, tokens = 0;
  std::vector<BlockHash> hashes;

  // A prompt of ten pages of this instance.
  void fill(LiveInstance& prefill) {
    page_tokens = prefill.memory.cache(0).page_tokens();
    tokens = 10 * page_tokens;
    prefill.memory.fill(0, tokens);
    for (std::uint64_t i = 0; i < 10; ++i) hashes.push_back({i + 1, 77});
  }
  Status offer(LiveInstance& prefill, OfferOptions options = {}) {
    for (std::size_t r = 0; r < prefill.ranks.size(); ++r) {
      options.id = id;
      options.pages = prefill.pages(r, tokens);
      options.tokens = tokens;
      options.hashes = hashes;
      if (options.deadline_ns == 0) options.deadline_ns = kLong;
      if (Status offered = prefill.ranks[r].offer(options); !offered) return offered;
    }
    return {};
  }
  Result<AskId> ask(LiveInstance& prefill, LiveInstance& decode, std::size_t rank,
                    std::uint64_t pages, AskOptions options = {}) {
    options.tokens = pages * page_tokens;
    options.pages = decode.pages(rank, options.tokens, options.first_token);
    options.deadline_ns = kLong;
    if (!options.hash) options.hash = hashes[pages - 1];
    return decode.ranks[rank].ask(prefill.reference(id, tokens), options);
  }
  // Takes the first pages on all ranks. Everything else in their memory stays.
  void expect_taken(LiveInstance& prefill, LiveInstance& decode, std::uint64_t pages,
                    std::uint64_t first = 0) {
    const InstanceMemory before = memory_of(decode);
    std::vector<AskId> asks;
    for (std::size_t r = 0; r < decode.ranks.size(); ++r)
      asks.push_back(*ask(prefill, decode, r, pages, {.first_token = first}));
    for (std::size_t r = 0; r < asks.size(); ++r) {
      const AskStatus status = *decode.ranks[r].wait(asks[r]);
      ASSERT_EQ(status.state, HandoverState::kDone) << status.error.message;
    }
    expect_model_bytes(decode, first, pages * page_tokens, before);
  }
  AskStatus refused(LiveInstance& prefill, LiveInstance& decode, std::uint64_t pages,
                    std::optional<BlockHash> hash) {
    const InstanceMemory before = memory_of(decode);
    AskStatus status = *decode.ranks[0].wait(*ask(prefill, decode, 0, pages, {.hash = hash}));
    EXPECT_EQ(status.state, HandoverState::kFailed);
    EXPECT_EQ(before, memory_of(decode));
    return status;
  }
};

TEST_F(Standing, ManyInstancesTakeAnyPartAsOftenAsTheyLike) {
  for (const auto& [p_tp, p_pp] : {std::pair{1, 1}, {2, 1}, {4, 2}}) {
    id = *random_offer_id();
    hashes.clear();
    LiveInstance prefill("p", model, p_tp, p_pp, kMostTokens, rng, "tcp:127.0.0.1:0");
    fill(prefill);
    ASSERT_TRUE(offer(prefill, {.is_standing = true}).ok());
    std::size_t taken = 0;
    for (const auto& [tp, pp] : {std::pair{1, 1}, {2, 1}, {8, 1}, {1, 2}}) {
      LiveInstance decode("d" + std::to_string(taken), model, tp, pp, kMostTokens, rng,
                          taken % 2 ? "auto" : "tcp:127.0.0.1:0");
      expect_taken(prefill, decode, 10);
      expect_taken(prefill, decode, 1 + rng.below(9));
      expect_taken(prefill, decode, 3, rng.below(3 * page_tokens));
      taken += 3;
    }
    for (TransferRank& rank : prefill.ranks) {
      EXPECT_TRUE(rank.ended_offers().empty());
      EXPECT_EQ(rank.statistics().open_offers, 1u);
      EXPECT_EQ(rank.statistics().refused_asks, 0u);
    }
  }
}

TEST_F(Standing, ItEndsAtItsDeadlineWithoutAnError) {
  LiveInstance prefill("p", model, 1, 1, kMostTokens, rng),
      decode("d", model, 1, 1, kMostTokens, rng);
  fill(prefill);
  ASSERT_TRUE(offer(prefill, {.deadline_ns = kSecond / 2, .is_standing = true}).ok());
  expect_taken(prefill, decode, 4);
  const auto end = ended(prefill.ranks[0]);
  ASSERT_TRUE(end.has_value());
  EXPECT_TRUE(end->status.ok()) << end->status.error().message;
  const AskStatus late = refused(prefill, decode, 4, hashes[3]);
  EXPECT_EQ(late.error.code, Code::kStale);
  EXPECT_NE(std::string(late.error.message).find("time is over"), std::string::npos);
  const TransferStatistics statistics = prefill.ranks[0].statistics();
  EXPECT_EQ(statistics.open_offers, 0u);
  EXPECT_EQ(statistics.taken_offers, 1u);
}

TEST_F(Standing, APrefixThatIsAnotherOneIsRefused) {
  LiveInstance prefill("p", model, 1, 1, kMostTokens, rng),
      decode("d", model, 1, 1, kMostTokens, rng);
  fill(prefill);
  ASSERT_TRUE(offer(prefill, {.is_standing = true}).ok());
  for (const std::uint64_t pages : {1, 5, 10}) {
    const AskStatus status = refused(prefill, decode, pages, BlockHash{pages, 78});
    EXPECT_EQ(status.error.code, Code::kRefused) << status.error.message;
    // Also the hash of another of its pages.
    EXPECT_EQ(refused(prefill, decode, pages, hashes[pages % 10]).error.code, Code::kRefused);
  }
  // Not whole pages of the offer.
  if (page_tokens > 1) {
    const AskStatus status = *decode.ranks[0].wait(*decode.ranks[0].ask(
        prefill.reference(id, tokens), {.pages = decode.pages(0, page_tokens + 1),
                                        .deadline_ns = kLong,
                                        .tokens = page_tokens + 1,
                                        .hash = hashes[1]}));
    EXPECT_EQ(status.error.code, Code::kInvalidArgument) << status.error.message;
  }
  // No hash at all.
  const AskStatus none = *decode.ranks[0].wait(*decode.ranks[0].ask(
      prefill.reference(id, tokens), {.pages = decode.pages(0, tokens), .deadline_ns = kLong}));
  EXPECT_EQ(none.error.code, Code::kInvalidArgument);
  EXPECT_NE(std::string(none.error.message).find("without a hash"), std::string::npos);
  expect_taken(prefill, decode, 10);
}

TEST_F(Standing, ATakerThatEndsOrCancelsLeavesTheOtherOnesAlone) {
  LiveInstance prefill("p", model, 1, 1, kMostTokens, rng, "tcp:127.0.0.1:0");
  LiveInstance decode("d", model, 1, 1, kMostTokens, rng, "tcp:127.0.0.1:0");
  fill(prefill);
  ASSERT_TRUE(offer(prefill, {.layers_ready = 1, .is_standing = true}).ok());
  const AskId mine = *ask(prefill, decode, 0, 10);
  ASSERT_EQ(decode.ranks[0].wait(mine, kLong, 1)->layers, 1u);
  {
    LiveInstance gone("g", model, 1, 1, kMostTokens, rng, "tcp:127.0.0.1:0");
    const AskId cancelled = *ask(prefill, gone, 0, 3), cut = *ask(prefill, gone, 0, 10);
    ASSERT_EQ(gone.ranks[0].wait(cancelled, kLong, 1)->layers, 1u);
    ASSERT_EQ(gone.ranks[0].wait(cut, kLong, 1)->layers, 1u);
    gone.ranks[0].release(cancelled);
    // An offer that is used once ends with its taker: so the prefill rank has seen that it ended.
    const OfferId standing = std::exchange(id, *random_offer_id());
    ASSERT_TRUE(offer(prefill, {.layers_ready = 1}).ok());
    ASSERT_EQ(gone.ranks[0].wait(*ask(prefill, gone, 0, 10), kLong, 1)->layers, 1u);
    id = standing;
  }
  const auto once = ended(prefill.ranks[0]);
  ASSERT_TRUE(once.has_value());
  EXPECT_FALSE(once->status.ok());
  ASSERT_TRUE(prefill.ranks[0].layers_ready(id, model.layers).ok());
  EXPECT_EQ(decode.ranks[0].wait(mine)->state, HandoverState::kDone);
  expect_taken(prefill, decode, 6);
  EXPECT_EQ(prefill.ranks[0].statistics().open_offers, 1u);
}

TEST_F(Standing, WithdrawnPagesAreNotReadAnyMore) {
  LiveInstance prefill("p", model, 1, 1, kMostTokens, rng),
      decode("d", model, 1, 1, kMostTokens, rng);
  fill(prefill);
  ASSERT_TRUE(offer(prefill, {.layers_ready = 1, .is_standing = true}).ok());
  const AskId one = *ask(prefill, decode, 0, 10), two = *ask(prefill, decode, 0, 2);
  for (const AskId running : {one, two})
    ASSERT_EQ(decode.ranks[0].wait(running, kLong, 1)->layers, 1u);
  ASSERT_TRUE(prefill.ranks[0].withdraw(id).ok());
  for (const AskId running : {one, two})
    EXPECT_EQ(decode.ranks[0].wait(running)->state, HandoverState::kFailed);
  EXPECT_EQ(prefill.ranks[0].statistics().open_offers, 0u);
}

TEST_F(Standing, APartOfAnOfferThatIsUsedOnceEndsIt) {
  LiveInstance prefill("p", model, 2, 1, kMostTokens, rng),
      decode("d", model, 1, 1, kMostTokens, rng);
  fill(prefill);
  ASSERT_TRUE(offer(prefill).ok());
  EXPECT_EQ(refused(prefill, decode, 7, BlockHash{1, 1}).error.code, Code::kRefused);
  expect_taken(prefill, decode, 7);
  for (TransferRank& rank : prefill.ranks) {
    const auto end = ended(rank);
    ASSERT_TRUE(end.has_value());
    EXPECT_TRUE(end->status.ok());
  }
  EXPECT_EQ(refused(prefill, decode, 7, hashes[6]).error.code, Code::kStale);
}

TEST_F(Standing, AnOfferThatIsDeclinedEndsAtOnceButNotAStandingOne) {
  LiveInstance prefill("p", model, 2, 1, kMostTokens, rng),
      decode("d", model, 2, 1, kMostTokens, rng);
  fill(prefill);
  ASSERT_TRUE(offer(prefill).ok());
  ASSERT_TRUE(
      decode.ranks[1].decline(prefill.reference(id, tokens), kLong).ok());  // not for it to say
  EXPECT_FALSE(ended(prefill.ranks[0], kSecond / 20).has_value());
  ASSERT_TRUE(decode.ranks[0].decline(prefill.reference(id, tokens), kLong).ok());
  for (TransferRank& rank : prefill.ranks) {
    const auto end = ended(rank);
    ASSERT_TRUE(end.has_value());
    EXPECT_TRUE(end->status.ok());
    EXPECT_EQ(rank.statistics().declined_offers, 1u);
    EXPECT_EQ(rank.statistics().taken_offers, 0u);
  }
  const AskStatus late = refused(prefill, decode, 10, hashes[9]);
  EXPECT_NE(std::string(late.error.message).find("did not need it"), std::string::npos);

  id = *random_offer_id();
  ASSERT_TRUE(offer(prefill, {.is_standing = true}).ok());
  ASSERT_TRUE(decode.ranks[0].decline(prefill.reference(id, tokens), kLong).ok());
  expect_taken(prefill, decode, 10);  // after it, on the same connection
}

TEST_F(Standing, OffersWithWrongHashesAreOneClearError) {
  LiveInstance prefill("p", model, 1, 1, kMostTokens, rng);
  fill(prefill);
  const auto message = [&](const OfferOptions& options) {
    const Status offered = prefill.ranks[0].offer(options);
    return std::string(offered.ok() ? "" : offered.error().message);
  };
  const auto pages = prefill.pages(0, tokens);
  const OfferOptions right{.id = id,
                           .pages = pages,
                           .tokens = tokens,
                           .deadline_ns = kLong,
                           .hashes = hashes,
                           .is_standing = true};
  OfferOptions wrong = right;
  wrong.hashes = std::span(hashes).first(9);
  EXPECT_NE(message(wrong).find("9 hashes"), std::string::npos);
  wrong = right;
  wrong.hashes = {};
  EXPECT_NE(message(wrong).find("expected hashes"), std::string::npos);
  wrong = right;
  wrong.has_note = true;
  EXPECT_NE(message(wrong).find("no note"), std::string::npos);
  EXPECT_EQ(message(right), "");
}

TEST_F(Standing, AsksThatAreReleasedAtOnceEndNothing) {
  LiveInstance prefill("p", model, 1, 1, kMostTokens, rng, "tcp:127.0.0.1:0");
  LiveInstance decode("d", model, 2, 1, kMostTokens, rng, "tcp:127.0.0.1:0");
  fill(prefill);
  ASSERT_TRUE(offer(prefill, {.is_standing = true}).ok());
  for (int i = 0; i < 10; ++i) {
    for (std::size_t r = 0; r < 2; ++r) decode.ranks[r].release(*ask(prefill, decode, r, 10));
  }
  expect_taken(prefill, decode, 7);
  EXPECT_TRUE(prefill.ranks[0].ended_offers().empty());
  EXPECT_EQ(prefill.ranks[0].statistics().open_offers, 1u);
}

}  // namespace
}  // namespace cachalot
