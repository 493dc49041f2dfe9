// Valid conversations with one frame changed at random, thousands of them: the rank ends each, writes nothing outside of the
// receiving pages, and works with the next peer.
#include "base/rng.h"
#include "testing/transfer/frame_mutator.h"
#include "testing/transfer/lying_peers.h"

namespace cachalot::transfer {
namespace {

constexpr std::uint64_t kMutations = 3000;

TEST_F(LyingPrefill, MutatedFramesOfAPrefillRankDoNoHarm) {
  std::uint64_t done = 0, failed = 0;
  for (std::uint64_t seed = 0; seed < kMutations; ++seed) {
    SCOPED_TRACE(seed);
    FrameMutator mutator(base::mix64(seed + 1));
    const std::uint64_t which = mutator.rng().below(4);  // hello, reads, plan, chunk
    ask(5 * kSecond);
    const auto send = [&](std::uint64_t i, const Bytes& bytes) {
      return peer->send(i == which ? mutator.change(bytes) : bytes);
    };
    bool goes_on = send(0, encode(hello(), 0)) && send(1, encode(reads_of(), 0));
    std::uint64_t window = 0;
    const auto heard = peer->receive(FrameType::kHello);
    ASSERT_TRUE(heard);
    asker = party_in(*heard);
    if (goes_on) {
      const auto came = peer->receive(FrameType::kMessage, which < 2 ? 10 : 5000);
      goes_on = came.has_value();
      if (came) send(2, encode(message(plan(message_of<AskMessage>(came))), 0));
    }
    if (goes_on) {
      const auto went = peer->receive(FrameType::kMessage, which < 3 ? 10 : 5000);
      if (went) {
        BodyReader body(went->body);
        const Result<Message> m = transfer::decode(body.bytes(kMostMessageBytes));
        if (m && std::holds_alternative<GoMessage>(*m)) {
          window = std::get<GoMessage>(*m).windows.at(0);
          send(3, whole(window).encoded());
          if (which == 3 && mutator.rng().chance(0.5)) peer->send(whole(window).encoded());
          (void)peer->receive(FrameType::kTaken, 10);
        }
      }
    }
    peer.reset();
    const AskStatus status = ended_ask(*decode.rank, number);
    ++(status.state == HandoverState::kDone ? done : failed);
    decode.rank->release(number);
    ASSERT_TRUE(decode.is_rest_untouched());
  }
  expect_empty(*decode.rank);
  EXPECT_GT(done, 0u);
  EXPECT_GT(failed, kMutations / 4);
  // The next one is served.
  ask();
  peer->send(whole(open_window()).encoded());
  EXPECT_EQ(ended_ask(*decode.rank, number).state, HandoverState::kDone);
}

TEST_F(LyingDecode, MutatedFramesOfADecodeRankDoNoHarm) {
  for (std::uint64_t seed = 0; seed < kMutations; ++seed) {
    SCOPED_TRACE(seed);
    FrameMutator mutator(base::mix64(seed + 7'000'001));
    const std::uint64_t which = mutator.rng().below(5);  // hello, reads, ask, go, taken
    offer(60 * kSecond);
    peer.emplace(RawPeer::connect(prefill.rank->addresses().front()));
    const auto send = [&](std::uint64_t i, const Frame& frame) {
      const Bytes bytes = encode(frame, 0);
      return peer->send(i == which ? mutator.change(bytes) : bytes);
    };
    bool goes_on =
        send(0, hello_of("d/0", ++incarnation, prefill.facts, "p/0")) && send(1, reads_of());
    const auto heard = peer->receive(FrameType::kHello, which < 1 ? 10 : 5000);
    if (heard) giver = party_in(*heard);
    goes_on = goes_on && heard && send(2, message(true_ask()));
    goes_on = goes_on && peer->receive(FrameType::kMessage, which < 3 ? 10 : 5000);
    if (goes_on) send(3, message(GoMessage{1, {77}}));
    if (goes_on) {
      if (const auto chunk = peer->receive(FrameType::kChunk, which < 4 ? 10 : 5000)) {
        BodyReader body(chunk->body);
        send(4, {FrameType::kTaken,
                 BodyWriter().word(body.word()).word(0).word(kStreamBytes).word(0).take()});
        (void)peer->receive(1);
      }
    }
    peer.reset();
    (void)prefill.rank->withdraw(id);
    (void)prefill.rank->ended_offers();
    ASSERT_EQ(prefill.rank->statistics().open_offers, 0u);
  }
  EXPECT_TRUE(prefill.is_untouched());
  offer();
  greet();
  peer->send(message(true_ask()));
  message_of<PlanMessage>(peer->receive(FrameType::kMessage));
}

}  // namespace
}  // namespace cachalot::transfer
