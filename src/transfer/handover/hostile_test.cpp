// A peer that lies: versions, names, sizes, places, keys, counts. The rank has one clear error, writes nothing outside of
// the receiving pages, and works with the next peer.
#include <functional>

#include "testing/transfer/lying_peers.h"

namespace cachalot::transfer {
namespace {

TEST_F(LyingPrefill, ThatTellsTheTruthIsBelieved) {
  ask();
  const std::uint64_t window = open_window();
  peer->send(whole(window).encoded());
  EXPECT_EQ(ended_ask(*decode.rank, number).state, HandoverState::kDone);
  EXPECT_TRUE(decode.is_rest_untouched());
  for (const auto& tensor : decode.tensors)
    EXPECT_EQ(tensor[Victim::kGuard + kUsed[0] * kPageBytes], std::byte{0x11});
}

TEST_F(LyingPrefill, OfAnotherVersionIsNamed) {
  for (const int version : {1, 2, 3, 9}) {
    ask();
    Bytes bytes = encode(hello(), 0);
    bytes[6] = static_cast<std::byte>(version);
    peer->send(bytes);
    expect_failure(Code::kVersionMismatch, ("version " + std::to_string(version)).c_str());
    EXPECT_TRUE(peer->is_closed());
    peer.reset();
  }
}

TEST_F(LyingPrefill, ThatIsNoPeerAtAllIsNamed) {
  ask();
  const std::string web = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
  const auto raw = std::as_bytes(std::span(web));
  peer->send(Bytes(raw.begin(), raw.end()));
  expect_failure(Code::kBadInput, "not a Cachalot transfer peer");
}

TEST_F(LyingPrefill, OfAnotherNameIsNotAsked) {
  ask();
  peer->send(hello_of("q/0", 7, decode.facts));
  expect_failure(Code::kStale, "engine q/0 answers");
}

// The connection was not there yet. The prefill rank would keep its pages until its deadline.
TEST_F(LyingPrefill, ThatAnswersAfterTheAskWasReleasedHearsOfBoth) {
  ask();
  decode.rank->release(number);
  const AskMessage m = greet();
  EXPECT_EQ(message_of<CancelMessage>(peer->receive(FrameType::kMessage)).ask, m.ask);
}

TEST_F(LyingPrefill, OfAnotherModelIsRefused) {
  for (const char* key : {"model", "kv"}) {
    ask();
    auto facts = decode.facts;
    facts[key] = "other";
    peer->send(hello_of(instance + "/0", incarnation, facts));
    peer->send(reads_of());
    expect_failure(Code::kRefused, key);
    peer.reset();
  }
  EXPECT_TRUE(decode.is_untouched());
}

// It answers at the address of the reference, and has not read the reference.
TEST_F(LyingPrefill, ThatDoesNotKnowTheOfferWritesNothing) {
  const OfferId other = *random_offer_id();
  const Party self{"p1/0", 1};
  const std::vector<std::function<PlanMessage(PlanMessage)>> lies = {
      [&](PlanMessage m) { return m.proof = {}, m; },
      [&](PlanMessage m) { return m.proof[0] ^= 1, m; },
      [&](PlanMessage m) { return m.proof[3] ^= std::uint64_t{1} << 63, m; },
      [&](PlanMessage m) { return m.orders[0].loops = Loops::kPagePartTokenHead, m; },
      [&](PlanMessage m) {
        return proven(m, other, {instance + "/0", incarnation}, asker, asked.nonce);
      },
      [&](PlanMessage m) { return proven(m, id, self, asker, asked.nonce); },
      [&](PlanMessage m) {
        return proven(m, id, asker, {instance + "/0", incarnation}, asked.nonce);
      },
      [&](PlanMessage m) {
        return proven(m, id, {instance + "/0", incarnation + 1}, asker, asked.nonce);
      },
      [&](PlanMessage m) {
        return proven(m, id, {instance + "/0", incarnation}, asker, {asked.nonce.high, 1});
      },
      [&](PlanMessage m) { return m.proof = asked.proof, m; },
  };
  for (std::size_t i = 0; i < lies.size(); ++i) {
    SCOPED_TRACE(i);
    ask();
    asked = greet();
    EXPECT_NE(asked.offer, (OfferName{id.high, id.low})) << "the secret is sent";
    peer->send(message(NoteMessage{asked.ask, {std::byte{0x66}}}));
    peer->send(message(lies[i](plan(asked))));
    expect_failure(Code::kPermission, "does not know the offer");
    EXPECT_TRUE(decode.rank->status(number)->note.empty());
    peer.reset();
  }
  EXPECT_TRUE(decode.is_untouched());
}

TEST_F(LyingPrefill, ThatPlansWhatDoesNotExistIsAnError) {
  const std::vector<std::vector<StreamOrder>> lies = {
      {},
      {{Loops::kPartTokenHead, 0}, {Loops::kPartTokenHead, 0}},
      {{static_cast<Loops>(11), 0}},
      {{static_cast<Loops>(0xffffffffu), 0}},
      {{Loops::kPartPageHeadToken, 0}},
      {{Loops::kPartPageHeadToken, 3}},
      {{Loops::kPagePartTokenHead, 0xffffffffu}},
  };
  for (const auto& orders : lies) {
    ask();
    const AskMessage m = greet();
    peer->send(message(plan(m, orders)));
    const AskStatus status = ended_ask(*decode.rank, number);
    EXPECT_EQ(status.state, HandoverState::kFailed);
    EXPECT_TRUE(status.error.code == Code::kBadInput || status.error.code == Code::kInvalidArgument)
        << status.error.message;
    peer.reset();
    expect_empty(*decode.rank);
  }
  EXPECT_TRUE(decode.is_untouched());
}

TEST_F(LyingPrefill, ThatPlansTwiceEndsTheRequest) {
  ask();
  open_window();
  peer->send(message(plan(asked)));
  expect_failure(Code::kBadInput, "once");
}

// What a chunk says of itself; the rank must end the request, not write, and say what was wrong.
TEST_F(LyingPrefill, ThatWritesOutsideOfTheWindowIsAnError) {
  const std::vector<std::function<void(ChunkFrame&)>> lies = {
      [](ChunkFrame& c) { c.offset = 1; },
      [](ChunkFrame& c) { c.offset = kStreamBytes; },
      [](ChunkFrame& c) { c.offset = ~std::uint64_t{0}; },
      [](ChunkFrame& c) { c.offset = ~std::uint64_t{0} - kStreamBytes + 1; },
      [](ChunkFrame& c) { c.payload.resize(kStreamBytes + 1); },
      [](ChunkFrame& c) { c.payload.resize(40u << 20); },
  };
  for (const auto& lie : lies) {
    ask();
    ChunkFrame chunk = whole(open_window());
    lie(chunk);
    peer->send(chunk.encoded());
    expect_failure(Code::kInvalidArgument, "of a window of");
    peer.reset();
  }
  EXPECT_TRUE(decode.is_untouched());
}

// These are no error of the window: it stays open for the right push, to its deadline.
TEST_F(LyingPrefill, ThatNamesAnotherWindowOrSizeWritesNothing) {
  const std::vector<std::function<void(ChunkFrame&)>> lies = {
      [](ChunkFrame& c) { c.window ^= 1; },
      [](ChunkFrame& c) { c.window = 0; },
      [](ChunkFrame& c) { c.total -= 1; },
      [](ChunkFrame& c) { c.total = ~std::uint64_t{0}; },
      [](ChunkFrame& c) { c.trailer = make_trailer(PayloadState::kVoid, 0); },
      [](ChunkFrame& c) { c.flags = 1; },  // with a wrong checksum
  };
  for (std::size_t i = 0; i < lies.size(); ++i) {
    ask(kSecond / 2);
    ChunkFrame chunk = whole(open_window());
    lies[i](chunk);
    peer->send(chunk.encoded());
    if (i < 4) {
      const auto end = peer->receive(FrameType::kEnd);
      EXPECT_TRUE(end) << "the peer does not hear it, lie " << i;
    }
    expect_failure(Code::kTimeout, "deadline");
    peer.reset();
    EXPECT_TRUE(i >= 4 || decode.is_untouched());
  }
}

TEST_F(LyingPrefill, WhoseSecondPushWritesIntoTheSameWindowIsRefused) {
  ask();
  const std::uint64_t window = open_window();
  ChunkFrame first = whole(window), second = whole(window);
  first.payload.resize(100);
  second.push = 2;
  second.payload.assign(kStreamBytes, std::byte{0x22});
  peer->send(first.encoded());
  peer->send(second.encoded());
  const auto end = peer->receive(FrameType::kEnd);
  ASSERT_TRUE(end);
  BodyReader body(end->body);
  EXPECT_EQ(body.word(), 1u);
  EXPECT_EQ(body.word(), 2u);
  for (const auto& tensor : decode.tensors) {
    for (const std::byte b : tensor) ASSERT_NE(b, std::byte{0x22});
  }
}

TEST_F(LyingPrefill, WithoutAWholeFrameOrATrailerIsAnError) {
  {
    ask();
    ChunkFrame chunk = whole(open_window());
    chunk.trailer = FrameTrailer{0, 7, 0x54465243u};
    peer->send(chunk.encoded());
    expect_failure(Code::kBadInput, "trailer");
    peer.reset();
  }
  {
    ask();
    Bytes bytes = whole(open_window()).encoded();
    bytes.resize(bytes.size() - 20);
    peer->send(bytes);
    peer.reset();
    expect_failure(Code::kIo, "closed the connection");
  }
  {
    ask();
    Bytes bytes = whole(open_window()).encoded();
    bytes.resize(bytes.size() - 20);
    peer->send(bytes);
    expect_failure(Code::kTimeout, "nothing was heard");  // it keeps the connection, and is silent
  }
}

TEST_F(LyingPrefill, ThatOffersItsMemoryOverTcpIsRefused) {
  ask(kSecond / 2);
  const std::uint64_t window = open_window();
  const ByteStream memory = *ByteStream::make(1, {*Strided::make(0x1000, {}, kStreamBytes)});
  BodyWriter begin;
  begin.word(1).word(window).word(kStreamBytes).word(0).word(1).stream(memory);
  peer->send({FrameType::kBegin, begin.take()});
  peer->send({FrameType::kReady,
              BodyWriter().word(1).word(window).word(0).word(kStreamBytes).word(0).word(0).take()});
  EXPECT_TRUE(peer->receive(FrameType::kEnd));
  expect_failure(Code::kTimeout, "deadline");
  EXPECT_TRUE(decode.is_untouched());
}

TEST_F(LyingDecode, ThatTellsTheTruthGetsTheBytes) {
  offer();
  greet();
  peer->send(message(true_ask()));
  message_of<PlanMessage>(peer->receive(FrameType::kMessage));
  peer->send(message(GoMessage{1, {77}}));
  const auto chunk = peer->receive(FrameType::kChunk);
  ASSERT_TRUE(chunk);
  BodyReader body(chunk->body);
  const std::uint64_t push = body.word();
  EXPECT_EQ(body.word(), 77u);
  peer->send(
      {FrameType::kTaken, BodyWriter().word(push).word(0).word(kStreamBytes).word(0).take()});
  EXPECT_TRUE(ended()->status.ok());
}

TEST_F(LyingDecode, OfAnotherVersionIsToldTheVersionsAndGetsNothing) {
  offer();
  for (const int wanted : {1, 2, 3, kWireVersion + 1, 0xffff}) {
    const auto version = static_cast<std::uint16_t>(wanted);
    peer.emplace(RawPeer::connect(prefill.rank->addresses().front()));
    Bytes bytes = encode(hello_of("d/0", ++incarnation, prefill.facts, "p/0"), 0);
    std::memcpy(bytes.data() + 6, &version, sizeof version);
    peer->send(bytes);
    FrameHeader header{};
    ASSERT_TRUE(peer->read(&header, sizeof header)) << "version " << version;
    EXPECT_EQ(header.version, kWireVersion);
    EXPECT_EQ(static_cast<FrameType>(header.type), FrameType::kRefusal);
    Bytes body(header.body_bytes);
    ASSERT_TRUE(peer->read(body.data(), body.size()));
    const Error error = BodyReader(body).error();
    EXPECT_EQ(error.code, Code::kVersionMismatch);
    EXPECT_NE(std::string(error.message).find("version " + std::to_string(version)),
              std::string::npos)
        << error.message;
    EXPECT_TRUE(peer->is_closed());
  }
  // The offer is still there for a peer of this version.
  greet();
  peer->send(message(true_ask()));
  message_of<PlanMessage>(peer->receive(FrameType::kMessage));
}

TEST_F(LyingDecode, WhoseAskDoesNotFitIsRefusedWithTheReason) {
  struct Lie {
    std::function<void(AskMessage&)> change;
    Code code;
  };
  const std::vector<Lie> lies = {
      {[](AskMessage& m) { m.offer.low ^= 1; }, Code::kNotFound},
      {[](AskMessage& m) { m.tokens -= 1; }, Code::kInvalidArgument},
      {[](AskMessage& m) { m.tokens += 1; }, Code::kInvalidArgument},
      {[](AskMessage& m) { m.first_token = kTokens; }, Code::kInvalidArgument},
      {[](AskMessage& m) { m.rank = 1; }, Code::kInvalidArgument},
      {[](AskMessage& m) { m.fetches.clear(); }, Code::kInvalidArgument},
      {[](AskMessage& m) { m.fetches.resize(2); }, Code::kInvalidArgument},
      {[](AskMessage& m) { m.fetches[0] = {}; }, Code::kInvalidArgument},
      {[](AskMessage& m) { m.fetches[0].heads = 1; }, Code::kInvalidArgument},
      {[](AskMessage& m) { m.fetches[0].page_tokens = 0; }, Code::kInvalidArgument},
      {[](AskMessage& m) { m.fetches[0].page_tokens = ~std::uint64_t{0}; }, Code::kInvalidArgument},
      {[](AskMessage& m) { m.fetches[0].part[0].content_bytes = ~std::uint64_t{0}; },
       Code::kInvalidArgument},
      {[](AskMessage& m) { m.shape.tp_size = 3; }, Code::kInvalidArgument},
      {[](AskMessage& m) { m.shape.pp_size = 4096; }, Code::kInvalidArgument},
      {[](AskMessage& m) {
         m.shape.pp_size = 2;
         m.shape.stage_layers = {~0u, 3};
       },
       Code::kInvalidArgument},
  };
  offer();
  greet();
  for (std::size_t i = 0; i < lies.size(); ++i) {
    AskMessage m = true_ask();
    lies[i].change(m);
    peer->send(message(prove(m)));
    const auto refusal = message_of<RefusalMessage>(peer->receive(FrameType::kMessage));
    EXPECT_EQ(refusal.error.code, lies[i].code) << "lie " << i << ": " << refusal.error.message;
  }
  // The offer is still there for the truth.
  peer->send(message(true_ask()));
  message_of<PlanMessage>(peer->receive(FrameType::kMessage));
}

// It has seen the name of the offer, as each host does that is asked for it, or guesses.
TEST_F(LyingDecode, ThatDoesNotKnowTheOfferGetsNothingAndEndsNothing) {
  offer();
  greet();
  const OfferId other = *random_offer_id();
  const Party self{"d/0", incarnation};
  std::vector<AskMessage> lies(6, true_ask());
  lies[0].proof = {};
  lies[1].proof[2] ^= 1;
  lies[2].tokens -= 4;  // not what was proved
  lies[3] = proven(lies[3], other, self, giver);
  lies[4] = proven(lies[4], id, {"d/0", incarnation + 1}, giver);
  lies[5] = proven(lies[5], id, giver, self);
  for (AskMessage& m : lies) {
    for (const bool waits : {false, true}) {
      // As for an offer that does not exist. One that waits for it is refused as well: the offer is there.
      if (waits && m.proof != Proof{}) continue;
      m.waits_for_offer = waits;
      peer->send(message(m));
      const auto refusal = message_of<RefusalMessage>(peer->receive(FrameType::kMessage));
      EXPECT_EQ(refusal.error.code, Code::kNotFound) << refusal.error.message;
    }
  }
  const DeclineMessage decline{name_of(id), {}};
  const NothingMessage nothing{name_of(id), {}, {}};
  peer->send(message(decline));
  peer->send(message(proven(decline, other, self, giver)));
  peer->send(message(nothing));
  peer->send(message(proven(nothing, other, self, giver)));
  peer->send(message(true_ask()));
  message_of<PlanMessage>(peer->receive(FrameType::kMessage));
  EXPECT_TRUE(prefill.rank->ended_offers().empty());
  EXPECT_EQ(prefill.rank->statistics().open_offers, 1u);

  offer();
  peer->send(message(proven(DeclineMessage{name_of(id), {}}, id, self, giver)));
  const auto end = ended();
  ASSERT_TRUE(end);
  EXPECT_EQ(end->id, id);
  EXPECT_TRUE(end->status.ok());
}

TEST_F(LyingDecode, ThatDoesNotKnowAStandingOfferGetsNothing) {
  id = *random_offer_id();
  const std::array<BlockHash, 2> hashes = {BlockHash{1, 2}, BlockHash{3, 4}};
  ASSERT_TRUE(prefill.rank
                  ->offer({.id = id,
                           .pages = kUsed,
                           .tokens = kTokens,
                           .deadline_ns = 20 * kSecond,
                           .hashes = hashes,
                           .is_standing = true})
                  .ok());
  greet();
  AskMessage m = true_ask();
  m.hash = hashes[1];
  peer->send(message(m));  // the proof is of another message
  EXPECT_EQ(message_of<RefusalMessage>(peer->receive(FrameType::kMessage)).error.code,
            Code::kNotFound);
  peer->send(message(prove(m)));
  message_of<PlanMessage>(peer->receive(FrameType::kMessage));
}

// Names of offers that will never come. Those of one connection give way to each other, and to no other.
TEST_F(LyingDecode, WhoseAsksHaveInventedNamesLeavesRoomForOthers) {
  greet();
  const auto invented = [&](std::uint64_t number) {
    AskMessage m = true_ask();
    m.ask = number;
    m.offer = {7, number};
    m.waits_for_offer = true;
    return m;
  };
  std::uint64_t next = 1;
  for (; next <= 512; ++next) peer->send(message(invented(next)));
  EXPECT_FALSE(peer->receive(FrameType::kMessage, 100));
  for (; next <= 600; ++next) {
    peer->send(message(invented(next)));
    const auto refusal = message_of<RefusalMessage>(peer->receive(FrameType::kMessage));
    EXPECT_EQ(refusal.ask, next);
    EXPECT_EQ(refusal.error.code, Code::kBusy);
    EXPECT_NE(std::string(refusal.error.message).find("at most 512 of a rank, 1024 in all"),
              std::string::npos)
        << refusal.error.message;
  }
  // More connections fill the table; the rank that asks for an offer that comes later has its place in it.
  Victim taker("d");
  id = *random_offer_id();
  const AskId number =
      *taker.rank->ask(KvReference{"p", id, kTokens, {}, {prefill.rank->addresses()}, false},
                       {.pages = kUsed, .deadline_ns = 20 * kSecond, .waits_for_offer = true});
  std::vector<RawPeer> others;
  for (int i = 0; i < 4; ++i) {
    others.push_back(std::move(*peer));
    greet();
    for (int k = 0; k < 512; ++k) peer->send(message(invented(next++)));
    peer->send({FrameType::kPing, {}});
    ASSERT_TRUE(peer->receive(FrameType::kPong));
  }
  ASSERT_TRUE(
      prefill.rank
          ->offer({.id = id, .pages = kUsed, .tokens = kTokens, .deadline_ns = 20 * kSecond})
          .ok());
  EXPECT_EQ(ended_ask(*taker.rank, number).state, HandoverState::kDone);
  // An ask for more transfers than a pair of ranks has does not wait.
  AskMessage large = invented(next);
  large.fetches.resize(257);
  peer->send(message(large));
  for (;;) {
    const auto refusal = message_of<RefusalMessage>(peer->receive(FrameType::kMessage));
    if (refusal.ask != next && refusal.ask != 0) continue;
    EXPECT_EQ(refusal.error.code, Code::kInvalidArgument) << refusal.error.message;
    break;
  }
}

TEST_F(LyingDecode, WhoseMessageCannotBeReadIsDisconnected) {
  AskMessage wrong_tokens = true_ask(), wrong_shape = true_ask();
  wrong_tokens.first_token = 2 * kTokens;
  wrong_shape.shape.tp_size = 0;
  const std::vector<Bytes> lies = {
      {},
      Bytes(8, std::byte{0xff}),
      Bytes(7, std::byte{1}),
      encode(wrong_tokens),
      encode(wrong_shape),
      BodyWriter().word(3).word(1).word(1u << 30).take(),
  };
  for (const Bytes& lie : lies) {
    greet();
    peer->send({FrameType::kMessage, BodyWriter().bytes(lie).take()});
    EXPECT_TRUE(peer->is_closed());
  }
}

TEST_F(LyingDecode, WhoseAcknowledgementsAreWrongEndsNothing) {
  offer(kSecond);
  greet();
  peer->send(message(true_ask()));
  message_of<PlanMessage>(peer->receive(FrameType::kMessage));
  peer->send(message(GoMessage{1, {}}));
  peer->send(message(GoMessage{1, {1, 2}}));
  peer->send(message(GoMessage{2, {1}}));
  peer->send(message(GoMessage{1, {77}}));
  const auto chunk = peer->receive(FrameType::kChunk);
  ASSERT_TRUE(chunk);
  BodyReader body(chunk->body);
  const std::uint64_t push = body.word();
  const auto taken = [&](std::uint64_t p, std::uint64_t offset, std::uint64_t bytes) {
    peer->send({FrameType::kTaken, BodyWriter().word(p).word(offset).word(bytes).word(0).take()});
  };
  taken(push + 1, 0, kStreamBytes);
  taken(push, 0, kStreamBytes - 1);
  taken(push, 1, kStreamBytes - 1);
  taken(push, ~std::uint64_t{0}, 2);
  taken(push, 0, ~std::uint64_t{0});
  peer->send({FrameType::kEnd,
              BodyWriter().word(1).word(push).word(78).word(1).text("of another window").take()});
  const auto end = ended();
  ASSERT_TRUE(end);
  ASSERT_FALSE(end->status.ok());
  EXPECT_EQ(end->status.error().code, Code::kTimeout) << end->status.error().message;
}

TEST_F(LyingDecode, ThatIsLostBetweenPlanAndGoFreesTheOffer) {
  for (const bool has_note : {false, true}) {
    offer(20 * kSecond, has_note);
    greet();
    peer->send(message(true_ask()));
    message_of<PlanMessage>(peer->receive(FrameType::kMessage));
    peer.reset();
    const auto end = ended();  // before its deadline
    ASSERT_TRUE(end);
    EXPECT_EQ(end->id, id);
    ASSERT_FALSE(end->status.ok());
    EXPECT_NE(end->status.error().code, Code::kTimeout) << end->status.error().message;
    EXPECT_EQ(prefill.rank->statistics().open_offers, 0u);
    // Its late Go comes by another connection: no byte leaves.
    greet();
    peer->send(message(GoMessage{1, {77}}));
    EXPECT_FALSE(peer->receive(FrameType::kChunk, 200));
  }
}

TEST_F(LyingDecode, ThatCancelsBetweenPlanAndGoFreesTheOffer) {
  offer();
  greet();
  peer->send(message(true_ask()));
  message_of<PlanMessage>(peer->receive(FrameType::kMessage));
  peer->send(message(CancelMessage{1}));
  peer->send(message(GoMessage{1, {77}}));
  const auto end = ended();
  ASSERT_TRUE(end);
  ASSERT_FALSE(end->status.ok());
  EXPECT_EQ(end->status.error().code, Code::kCancelled) << end->status.error().message;
  EXPECT_FALSE(peer->receive(FrameType::kChunk, 200));
}

TEST_F(LyingDecode, ThatStartsItsTransfersTwiceGetsThemOnce) {
  offer(20 * kSecond, true);
  greet();
  peer->send(message(true_ask()));
  message_of<PlanMessage>(peer->receive(FrameType::kMessage));
  for (int i = 0; i < 2; ++i) {
    peer->send(message(GoMessage{1, {77}}));
    const auto chunk = peer->receive(FrameType::kChunk, i == 0 ? 5000 : 300);
    if (i == 1) {
      EXPECT_FALSE(chunk) << "the pages were read again";
      break;
    }
    ASSERT_TRUE(chunk);
    BodyReader body(chunk->body);
    peer->send({FrameType::kTaken,
                BodyWriter().word(body.word()).word(0).word(kStreamBytes).word(0).take()});
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the push has ended by now
  }
}

TEST_F(LyingDecode, ThatNeverReadsItsAnswersDoesNotFillTheMemory) {
  greet();
  // 32 bytes each, and as many of answers.
  Bytes pings;
  for (int i = 0; i < 32768; ++i) {
    const Bytes one = encode({FrameType::kPing, {}}, 0);
    pings.insert(pings.end(), one.begin(), one.end());
  }
  bool is_connected = true;
  for (int mib = 0; mib < 160 && is_connected; ++mib) is_connected = peer->send(pings);
  EXPECT_FALSE(is_connected) << "answers of 160 MiB are kept for a peer that does not read";
}

}  // namespace
}  // namespace cachalot::transfer
