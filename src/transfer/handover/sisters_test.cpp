// One rank of a decode instance fails: its sister ranks take what they need, and the pages are free after the last one.
#include "base/rng.h"
#include "testing/transfer/live_instance.h"
#include "testing/transfer/proofs.h"
#include "testing/transfer/raw_peer.h"
#include "transfer/engine/engine.h"
#include "transfer/handover/instance.h"
#include "transfer/handover/messages.h"
#include "transfer/pair/kv_stream.h"

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
    offer_as_it_is(options);
  }
  // Writes nothing into pages that another offer may still send.
  void offer_as_it_is(OfferOptions options = {}) {
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

TEST_F(Sisters, WithoutATimeoutOfPeersARankMayAskAfterItsSisterHasFailed) {
  p.close();
  prefill.peer_timeout_ns = ~std::uint64_t{0};
  prefill.start(0, "tcp:127.0.0.1:0");
  offer({.layers_ready = 1});
  const AskId gone = ask(0);
  ASSERT_EQ(decode.ranks[0].wait(gone, kLong, 1)->layers, 1u);
  decode.ranks[0].release(gone);
  expect_heard(0);
  EXPECT_FALSE(ended(p, kSecond / 5).has_value());
  expect_taken_by(1, ask(1));
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

// Two stages prefill. The first one ends its offer with an error of decode rank 1; rank 0 has all of this stage, and waits
// for the second one.
TEST(SisterStages, ARankThatHasAllOfASourceDoesNotHearOfTheFailureOfItsSister) {
  base::Rng rng(29);
  const std::uint64_t tokens = 50;
  const KvGeometry model = small_model();
  LiveInstance prefill("p", model, 1, 2, tokens, rng, "tcp:127.0.0.1:0");
  LiveInstance decode("d", model, 2, 1, tokens, rng, "tcp:127.0.0.1:0");
  prefill.memory.fill(0, tokens);
  const OfferId id = *random_offer_id();
  for (std::size_t r = 0; r < 2; ++r) {
    ASSERT_TRUE(prefill.ranks[r]
                    .offer({.id = id,
                            .pages = prefill.pages(r, tokens),
                            .tokens = tokens,
                            .deadline_ns = kLong,
                            .layers_ready = r == 0 ? ~0u : 0u})
                    .ok());
  }
  const std::uint32_t first = prefill.shape.stage_layers[0];
  TransferRank& d = decode.ranks[0];
  const AskId number = *d.ask(prefill.reference(id, tokens),
                              {.pages = decode.pages(0, tokens), .deadline_ns = kLong});
  ASSERT_EQ(d.wait(number, kLong, first)->layers, first);

  // Rank 1 is lost after the plan of the first stage.
  const kv::EngineCache& cache = decode.memory.cache(1).view();
  AskMessage m;
  m.ask = 1;
  m.offer = name_of(id);
  m.shape = decode.shape;
  m.rank = 1;
  m.tokens = tokens;
  m.fetches = {*stream_shape(
      cache,
      {decode.pages(1, tokens), 0, tokens, {0, first}, {0, decode.memory.box(1).heads.count()}})};
  {
    RawPeer peer = RawPeer::connect(prefill.ranks[0].addresses().front());
    const std::map<std::string, std::string> facts = {
        {"model", "test"}, {"kv", *model_text(cache.geometry(), decode.shape)}};
    peer.send(hello_of("d/1", 77, facts, "p/0"));
    peer.send(reads_of());
    const auto heard = peer.receive(FrameType::kHello);
    ASSERT_TRUE(heard);
    m = proven(m, id, {"d/1", 77}, party_in(*heard));
    peer.send({FrameType::kMessage, BodyWriter().bytes(encode(m)).take()});
    ASSERT_TRUE(peer.receive(FrameType::kMessage));
  }
  const auto end = ended(prefill.ranks[0]);
  ASSERT_TRUE(end.has_value());
  EXPECT_FALSE(end->status.ok());
  EXPECT_EQ(d.wait(number, kSecond / 10)->state, HandoverState::kRunning);
  ASSERT_TRUE(prefill.ranks[1].layers_ready(id, model.layers - first).ok());
  const AskStatus status = *d.wait(number);
  EXPECT_EQ(status.state, HandoverState::kDone) << status.error.message;
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

TEST_F(Sisters, AnOfferOfWhichARankFailedWaitsForAsksNoLongerThanForASilentPeer) {
  offer({.deadline_ns = 1000 * kSecond, .layers_ready = 1});
  const AskId gone = ask(0);
  ASSERT_EQ(decode.ranks[0].wait(gone, kLong, 1)->layers, 1u);
  decode.ranks[0].release(gone);
  const auto end = ended(p);
  ASSERT_TRUE(end.has_value());
  ASSERT_FALSE(end->status.ok());
  EXPECT_EQ(end->status.error().code, Code::kCancelled);  // of the rank that failed
  EXPECT_EQ(decode.ranks[1].wait(ask(1))->error.code, Code::kStale);
}

TEST_F(Sisters, ARankThatHasAskedIsNotSilentHoweverLongItsTransferTakes) {
  offer({.layers_ready = 1});
  const AskId gone = ask(0), stays = ask(1);
  ASSERT_EQ(decode.ranks[0].wait(gone, kLong, 1)->layers, 1u);
  ASSERT_EQ(decode.ranks[1].wait(stays, kLong, 1)->layers, 1u);
  decode.ranks[0].release(gone);
  EXPECT_FALSE(ended(p, 3 * kSecond).has_value());  // more than peer_timeout
  expect_taken_by(1, stays);
  EXPECT_TRUE(ended(p).has_value());
}

// Most of these asks are released before their connection stands: their messages have not been sent.
TEST_F(Sisters, AsksThatAreReleasedAtOnceFreeThePagesSoon) {
  prefill.memory.fill(0, tokens);
  for (int i = 0; i < 20; ++i) {
    id = *random_offer_id();
    offer_as_it_is({.deadline_ns = 1000 * kSecond});
    const AskId one = ask(0), two = ask(1);
    decode.ranks[0].release(one);
    decode.ranks[1].release(two);
  }
  std::size_t count = 0;
  for (const std::uint64_t end_ns = base::SteadyClock::read() + kLong;
       count < 20 && base::SteadyClock::read() < end_ns;) {
    count += p.ended_offers().size();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(count, 20u);
  EXPECT_EQ(p.statistics().open_offers, 0u);
  // Nothing is left behind that would stop a new one.
  id = *random_offer_id();
  offer();
  const AskId one = ask(0), two = ask(1);
  EXPECT_EQ(decode.ranks[0].wait(one)->state, HandoverState::kDone);
  EXPECT_EQ(decode.ranks[1].wait(two)->state, HandoverState::kDone);
}

TEST_F(Sisters, AnAskThatIsReleasedAtOnceLeavesItsSisterAlone) {
  offer({.layers_ready = 0});
  const AskId gone = ask(0), stays = ask(1);
  decode.ranks[0].release(gone);
  expect_taken_by(1, stays);
  const auto end = ended(p, kSecond);
  ASSERT_TRUE(end.has_value());
  ASSERT_FALSE(end->status.ok());
  EXPECT_EQ(end->status.error().code, Code::kCancelled);
}

TEST_F(Sisters, AsksThatAreReleasedBeforeTheirOfferComesFreeItWhenItComes) {
  const auto early = [&](std::size_t rank) {
    return *decode.ranks[rank].ask(prefill.reference(id, tokens),
                                   {.pages = decode.pages(rank, tokens),
                                    .deadline_ns = 1000 * kSecond,
                                    .waits_for_offer = true});
  };
  const AskId one = early(0), two = early(1);
  decode.ranks[0].release(one);
  decode.ranks[1].release(two);
  expect_heard(0);
  expect_heard(1);
  offer({.deadline_ns = 1000 * kSecond});
  const auto end = ended(p, kSecond);
  ASSERT_TRUE(end.has_value());
  ASSERT_FALSE(end->status.ok());
  EXPECT_EQ(end->status.error().code, Code::kCancelled);
}

TEST_F(Sisters, ARankThatAsksAgainBeforeTheOfferComesGetsIt) {
  const auto early = [&](std::size_t rank) {
    return *decode.ranks[rank].ask(
        prefill.reference(id, tokens),
        {.pages = decode.pages(rank, tokens), .deadline_ns = kLong, .waits_for_offer = true});
  };
  decode.ranks[0].release(early(0));
  const AskId one = early(0), two = early(1);
  expect_heard(0);
  expect_heard(1);
  offer();
  EXPECT_EQ(decode.ranks[0].wait(one)->state, HandoverState::kDone);
  EXPECT_EQ(decode.ranks[1].wait(two)->state, HandoverState::kDone);
  const auto end = ended(p);
  ASSERT_TRUE(end.has_value());
  EXPECT_TRUE(end->status.ok()) << end->status.error().message;
}

}  // namespace
}  // namespace cachalot
