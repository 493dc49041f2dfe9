// One rank of a decode instance fails: its sister ranks take what they need, and the pages are free after the last one.
#include "base/rng.h"
#include "testing/transfer/live_instance.h"

namespace cachalot {
namespace {

using namespace transfer;  // NOLINT

// One prefill rank, two decode ranks with half of the heads each.
struct Sisters : ::testing::Test {
  base::Rng rng{23};
  const std::uint64_t tokens = 50;
  KvGeometry model = small_model();
  LiveInstance prefill{"p", model, 1, 1, tokens, rng, "tcp:127.0.0.1:0"};
  LiveInstance decode{"d", model, 2, 1, tokens, rng, "tcp:127.0.0.1:0"};
  TransferRank& p = prefill.ranks[0];
  OfferId id = *random_offer_id();

  void offer(OfferOptions options = {}) {
    prefill.memory.fill(0, tokens);
    options.id = id;
    options.pages = prefill.pages(0, tokens);
    options.tokens = tokens;
    if (options.deadline_ns == 0) options.deadline_ns = kLong;
    const Status offered = p.offer(options);
    ASSERT_TRUE(offered.ok()) << offered.error().message;
  }
  AskId ask(std::size_t rank) { return ask(rank, id); }
  AskId ask(std::size_t rank, OfferId offer) {
    return *decode.ranks[rank].ask(prefill.reference(offer, tokens),
                                   {.pages = decode.pages(rank, tokens), .deadline_ns = kLong});
  }
  // An answer on the connection of this rank: the prefill rank has read all that it sent before.
  void expect_heard(std::size_t rank) {
    EXPECT_EQ(decode.ranks[rank].wait(ask(rank, *random_offer_id()))->error.code, Code::kNotFound);
  }
  void expect_taken_by(std::size_t rank, AskId number) {
    const auto before = decode.memory.cache(rank).memory();
    ASSERT_TRUE(p.layers_ready(id, model.layers).ok());
    const AskStatus status = *decode.ranks[rank].wait(number);
    ASSERT_EQ(status.state, HandoverState::kDone) << status.error.message;
    TestCache& cache = decode.memory.cache(rank);
    const auto after = cache.memory();
    cache.memory() = before;
    decode.memory.fill(rank, 0, tokens);
    EXPECT_EQ(after, cache.memory());
  }
};

TEST_F(Sisters, ARankThatCancelsLeavesTheTransfersOfItsSisterAlone) {
  offer({.layers_ready = 1});
  const AskId gone = ask(0), stays = ask(1);
  ASSERT_EQ(decode.ranks[0].wait(gone, kLong, 1)->layers, 1u);
  ASSERT_EQ(decode.ranks[1].wait(stays, kLong, 1)->layers, 1u);
  decode.ranks[0].release(gone);
  expect_heard(0);
  EXPECT_TRUE(p.ended_offers().empty());
  expect_taken_by(1, stays);
  const auto end = ended(p);
  ASSERT_TRUE(end.has_value());
  ASSERT_FALSE(end->status.ok());
  EXPECT_EQ(end->status.error().code, Code::kCancelled);
  EXPECT_EQ(p.statistics().open_offers, 0u);
  EXPECT_EQ(p.statistics().failed_offers, 1u);
}

TEST_F(Sisters, ARankThatDiesLeavesTheTransfersOfItsSisterAlone) {
  offer({.layers_ready = 1});
  const AskId gone = ask(0), stays = ask(1);
  ASSERT_EQ(decode.ranks[0].wait(gone, kLong, 1)->layers, 1u);
  ASSERT_EQ(decode.ranks[1].wait(stays, kLong, 1)->layers, 1u);
  { const TransferRank dead = std::move(decode.ranks[0]); }
  EXPECT_FALSE(ended(p, kSecond / 5).has_value());
  expect_taken_by(1, stays);
  const auto end = ended(p);
  ASSERT_TRUE(end.has_value());
  EXPECT_FALSE(end->status.ok());
  decode.start(0, "tcp:127.0.0.1:0");
}

TEST_F(Sisters, ARankMayAskAfterItsSisterHasFailed) {
  offer({.layers_ready = 1});
  const AskId gone = ask(0);
  ASSERT_EQ(decode.ranks[0].wait(gone, kLong, 1)->layers, 1u);
  decode.ranks[0].release(gone);
  expect_heard(0);
  expect_taken_by(1, ask(1));
  EXPECT_TRUE(ended(p).has_value());
}

TEST_F(Sisters, ThePagesAreFreeAtOnceWhenAllRanksHaveFailed) {
  offer({.layers_ready = 1, .has_note = true});
  const AskId one = ask(0), two = ask(1);
  ASSERT_EQ(decode.ranks[0].wait(one, kLong, 1)->layers, 1u);
  ASSERT_EQ(decode.ranks[1].wait(two, kLong, 1)->layers, 1u);
  decode.ranks[0].release(one);
  decode.ranks[1].release(two);
  const auto end = ended(p);  // long before the deadline, and without a note
  ASSERT_TRUE(end.has_value());
  EXPECT_FALSE(end->status.ok());
  const AskStatus late = *decode.ranks[1].wait(ask(1));
  EXPECT_EQ(late.error.code, Code::kStale);
}

TEST_F(Sisters, ARankThatHasFailedDoesNotGetTheOfferAgain) {
  offer({.layers_ready = 1});
  const AskId gone = ask(0), stays = ask(1);
  ASSERT_EQ(decode.ranks[0].wait(gone, kLong, 1)->layers, 1u);
  decode.ranks[0].release(gone);
  const AskStatus again = *decode.ranks[0].wait(ask(0));
  EXPECT_EQ(again.error.code, Code::kRefused) << again.error.message;
  // Also after a restart, with another connection.
  decode.start(0, "tcp:127.0.0.1:0");
  const AskStatus other = *decode.ranks[0].wait(ask(0));
  EXPECT_EQ(other.error.code, Code::kRefused) << other.error.message;
  expect_taken_by(1, stays);
}

TEST_F(Sisters, AnOfferOfWhichARankFailedAndAnotherNeverAskedEndsAtItsDeadline) {
  offer({.deadline_ns = kSecond / 2, .layers_ready = 1});
  const AskId gone = ask(0);
  ASSERT_EQ(decode.ranks[0].wait(gone, kLong, 1)->layers, 1u);
  decode.ranks[0].release(gone);
  const auto end = ended(p);
  ASSERT_TRUE(end.has_value());
  ASSERT_FALSE(end->status.ok());
  EXPECT_EQ(end->status.error().code, Code::kTimeout);
}

}  // namespace
}  // namespace cachalot
