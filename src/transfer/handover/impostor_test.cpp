// Processes that connect and say that they are a rank which they are not, with a lie in each field of the hello and of
// every message. The ranks that they speak of hand over all the same: each page of an ask that is done is right, and no
// connection of a real rank ends.
#include <cachalot/transfer.h>
#include <gtest/gtest.h>

#include <atomic>
#include <list>
#include <thread>

#include "testing/transfer/live_instance.h"
#include "testing/transfer/proofs.h"
#include "testing/transfer/raw_peer.h"
#include "transfer/handover/instance.h"

namespace cachalot {
namespace {

using namespace transfer;  // NOLINT

Frame message(const Message& m) {
  return {FrameType::kMessage, BodyWriter().bytes(encode(m)).take()};
}

// None: another one, or none came.
template <class T>
std::optional<T> receive(RawPeer& peer, int timeout_ms = 5000) {
  const auto frame = peer.receive(FrameType::kMessage, timeout_ms);
  if (!frame) return std::nullopt;
  BodyReader body(frame->body);
  Result<Message> read = transfer::decode(body.bytes(kMostMessageBytes));
  if (!read || !std::holds_alternative<T>(*read)) return std::nullopt;
  return std::get<T>(*read);
}

// All that a process can say in a hello.
struct Said {
  std::string name;
  std::uint64_t incarnation = 0;
  std::uint64_t session_high = 5, session_low = 6;
  std::string expected = {};
  std::uint64_t expected_incarnation = 0;
  std::vector<std::uint64_t> memory = {0};  // 1, then a lease file, a probe, segments
  std::map<std::string, std::string> facts = {};

  Frame hello() const {
    BodyWriter body;
    body.text(name).word(incarnation).word(session_high).word(session_low);
    body.text(expected).word(expected_incarnation);
    for (const std::uint64_t word : memory) body.word(word);
    body.word(facts.size());
    for (const auto& [key, value] : facts) body.text(key).text(value);
    return {FrameType::kHello, body.take()};
  }
};

struct Impostors : ::testing::Test {
  base::Rng rng{7};
  const std::uint64_t tokens = 50;
  KvGeometry model = small_model();
  LiveInstance prefill{"p", model, 1, 1, tokens, rng, "tcp:127.0.0.1:0"};
  LiveInstance decode{"d", model, 1, 1, tokens, rng, "tcp:127.0.0.1:0"};
  TransferRank& p = prefill.ranks[0];
  TransferRank& d = decode.ranks[0];
  OfferId id;
  AskId number = {};
  std::vector<std::vector<std::vector<std::uint64_t>>> before;
  const std::map<std::string, std::string> facts = {
      {"model", "test"},
      {"kv", *model_text(prefill.memory.cache(0).view().geometry(), prefill.shape)}};

  Impostors() { prefill.memory.fill(0, tokens); }
  void offer(OfferOptions options = {}) {
    id = *random_offer_id();
    options.id = id;
    options.pages = prefill.pages(0, tokens);
    options.tokens = tokens;
    options.deadline_ns = kLong;
    ASSERT_TRUE(p.offer(options).ok());
  }
  void ask(bool expects_note = false) {
    before = {decode.memory.cache(0).memory()};
    KvReference reference = prefill.reference(id, tokens);
    reference.expects_note = expects_note;
    number = *d.ask(reference, {.pages = decode.pages(0, tokens), .deadline_ns = kLong});
  }
  void expect_right_bytes() {
    const AskStatus status = *d.wait(number);
    ASSERT_EQ(status.state, HandoverState::kDone) << status.error.message;
    expect_model_bytes(decode, 0, tokens, before);
    decode.memory.cache(0).memory() = before[0];
    d.release(number);
  }
  std::uint64_t bytes_of_all() {
    const kv::EngineCache& cache = decode.memory.cache(0).view();
    const KvSlice all{decode.memory.cache(0).pages(),
                      0,
                      tokens,
                      {0, model.layers},
                      {0, cache.geometry().kv_heads}};
    return kv_stream(cache, all, {Loops::kPartTokenHead, 0})->bytes();
  }
  // What a rank says to each process that connects.
  static Party met(const TransferRank& rank) {
    RawPeer peer = RawPeer::connect(rank.addresses().front());
    peer.send(hello_of("x/0", 1, {}));
    const auto hello = peer.receive(FrameType::kHello);
    return hello ? party_in(*hello) : Party{};
  }
  // Until the rank has read all that was sent before, or has ended the connection.
  static void flush(RawPeer& peer) {
    peer.send({FrameType::kPing, {}});
    while (const auto frame = peer.receive()) {
      if (frame->type == FrameType::kPong) return;
    }
  }
  // Plans what it is asked for, and pushes bytes of its own.
  void attack(RawPeer& peer, const AskMessage& asked) {
    PlanMessage plan{asked.ask, {}};
    plan.orders.resize(asked.fetches.size(), {Loops::kPartTokenHead, 0});
    peer.send(message(plan));
    const auto go = receive<GoMessage>(peer);
    if (!go) return;
    for (const std::uint64_t window : go->windows)
      peer.send(ChunkFrame{.window = window,
                           .total = bytes_of_all(),
                           .payload = Bytes(bytes_of_all(), std::byte{0x66})}
                    .encoded());
    flush(peer);
  }
};

TEST_F(Impostors, APrefillRankOfTheSameNameIsNotAskedAndWritesNothing) {
  const Party real = met(p);
  ASSERT_EQ(real.name, "p/0");
  std::atomic<bool> ends = false;
  std::atomic<int> hellos = 0, asked = 0;
  std::string address = d.addresses().front();
  std::thread impostor([&] {
    for (std::uint64_t round = 0; !ends; ++round) {
      const std::uint64_t incarnation = round % 2 == 0 ? real.incarnation : 1000 + round;
      RawPeer peer = RawPeer::connect(address);
      peer.send(hello_of("p/0", incarnation, facts, "d/0"));
      peer.send(reads_of());
      ++hellos;
      const auto heard = receive<AskMessage>(peer, 20);
      if (!heard) continue;
      ++asked;
      attack(peer, *heard);
    }
  });
  for (int i = 0; i < 200 && !HasFatalFailure(); ++i) {
    // Ranks that are connected, and from time to time a decode rank that has just started.
    if (i % 20 == 19) {
      { const TransferRank gone = std::move(d); }
      decode.start(0, address);
    }
    offer();
    ask();
    expect_right_bytes();
  }
  while (hellos < 20) std::this_thread::yield();
  ends = true;
  impostor.join();
  EXPECT_EQ(asked, 0);
}

TEST_F(Impostors, NoHelloMovesARankThatIsConnected) {
  const Party prefill_rank = met(p), decode_rank = met(d);
  offer({.layers_ready = 1});
  ask();
  ASSERT_EQ(d.wait(number, kLong, 1)->layers, 1u);
  const std::uint64_t most = ~std::uint64_t{0};
  std::vector<Said> lies;
  for (const std::string& name : {std::string("p/0"), std::string("d/0"), std::string("p/1"),
                                  std::string(), std::string(256, 'x'), std::string(257, 'x')}) {
    for (const std::uint64_t incarnation : {prefill_rank.incarnation, decode_rank.incarnation,
                                            std::uint64_t{0}, std::uint64_t{1}, most})
      lies.push_back({.name = name, .incarnation = incarnation, .facts = facts});
  }
  const Said truth{.name = "p/0", .incarnation = prefill_rank.incarnation, .facts = facts};
  const auto lie = [&](auto change) { change(lies.emplace_back(truth)); };
  lie([&](Said& s) { s.session_high = s.session_low = 0; });
  lie([&](Said& s) { s.session_high = s.session_low = most; });
  lie([&](Said& s) { s.expected = "p/0"; });
  lie([&](Said& s) { s.expected_incarnation = prefill_rank.incarnation; });
  lie([&](Said& s) { s.memory = {1, 0, 4096, 7, 0}; });
  lie([&](Said& s) { s.memory = {1, 0, 4096, 7, 2, 4096, most, 1, 0, 0, 1, 2, most}; });
  lie([&](Said& s) { s.memory = {1, 0, 4096, 7, most}; });
  lie([&](Said& s) { s.facts = {}; });
  lie([&](Said& s) { s.facts["division"] = "TP 8, PP 8"; });
  lie([&](Said& s) { s.facts["segments"] = "1"; });
  lie([&](Said& s) { s.facts["x"].assign(200 << 10, 'x'); });
  std::list<RawPeer> peers;  // they stay
  for (const Said& said : lies) {
    for (const TransferRank* rank : {&p, &d}) {
      RawPeer& peer = peers.emplace_back(RawPeer::connect(rank->addresses().front()));
      peer.send(said.hello());
      peer.send(reads_of(1));
      flush(peer);
    }
  }
  ASSERT_TRUE(p.layers_ready(id, model.layers).ok());
  expect_right_bytes();
  EXPECT_EQ(p.statistics().failed_offers, 0u);
  offer();
  ask();
  expect_right_bytes();
}

// What one process sends to both ranks: each message and frame with numbers that the ranks use, or may use.
struct EveryLie {
  Bytes bytes;

  void add(const Frame& frame) {
    const Bytes one = encode(frame, 0);
    bytes.insert(bytes.end(), one.begin(), one.end());
  }
  void add(const Message& m) { add(message(m)); }
  // @param name  of the offer: that of a process that has seen it, and does not know the id
  void add_messages(std::uint64_t ask, const OfferName& name, const InstanceShape& shape) {
    AskMessage asked;
    asked.ask = ask;
    asked.offer = name;
    asked.shape = shape;
    asked.tokens = 50;
    asked.fetches.resize(1);
    for (const bool is_copy : {false, true}) {
      asked.is_copy = is_copy;
      add(asked);
    }
    for (const std::size_t orders : {0u, 1u, 2u})
      add(PlanMessage{ask, std::vector<StreamOrder>(orders), {1, 2, 3, 4}});
    for (const std::uint64_t window : {0u, 1u, 2u}) add(GoMessage{ask, {window}});
    add(GoMessage{ask, {}});
    add(RefusalMessage{ask, Error::make(Code::kNotFound, "no")});
    add(RefusalMessage{ask, Error::make(Code::kBusy, "no")});
    add(NoteMessage{ask, {std::byte{0x66}}});
    add(CancelMessage{ask});
    add(NothingMessage{name, shape, {1, 2, 3, 4}});
    add(DeclineMessage{name, {}});
  }
  void add_frames(std::uint64_t push, std::uint64_t window) {
    const std::uint64_t most = ~std::uint64_t{0};
    const ByteStream memory = *ByteStream::make(1, {*Strided::make(0x1000, {}, 64)});
    add(Frame{FrameType::kBegin,
              BodyWriter().word(push).word(window).word(64).word(0).word(1).stream(memory).take()});
    add(Frame{FrameType::kReady,
              BodyWriter().word(push).word(window).word(0).word(64).word(0).word(0).take()});
    for (const std::uint64_t count : {std::uint64_t{64}, std::uint64_t{1} << 20, most}) {
      for (const std::uint64_t is_corrupt : {0u, 1u})
        add(Frame{FrameType::kTaken,
                  BodyWriter().word(push).word(0).word(count).word(is_corrupt).take()});
    }
    for (const std::uint64_t is_from_receiver : {0u, 1u})
      add(Frame{
          FrameType::kEnd,
          BodyWriter().word(is_from_receiver).word(push).word(window).word(3).text("x").take()});
    add(Frame{FrameType::kPong, {}});
    const Bytes chunk =
        ChunkFrame{
            .push = push, .window = window, .total = 64, .payload = Bytes(64, std::byte{0x66})}
            .encoded();
    bytes.insert(bytes.end(), chunk.begin(), chunk.end());
  }
};

TEST_F(Impostors, NoMessageOfAnotherConnectionChangesAHandover) {
  const Party prefill_rank = met(p), decode_rank = met(d);
  for (int round = 0; round < 3; ++round) {
    offer({.layers_ready = 1, .has_note = true});
    ask(true);
    ASSERT_EQ(d.wait(number, kLong, 1)->layers, 1u);
    EveryLie lies;
    for (std::uint64_t ask = 0; ask < 10; ++ask) lies.add_messages(ask, name_of(id), decode.shape);
    for (std::uint64_t push = 1; push < 200; ++push) lies.add_frames(push, push % 3);
    for (const TransferRank* rank : {&p, &d}) {
      const Party& other = rank == &p ? decode_rank : prefill_rank;
      RawPeer peer = RawPeer::connect(rank->addresses().front());
      peer.send(hello_of(other.name, other.incarnation, facts));
      peer.send(reads_of());
      peer.send(lies.bytes);
      flush(peer);
      // A frame that ends a connection ends its own.
      peer.send({FrameType::kRefusal, BodyWriter().word(1).text("x").take()});
      EXPECT_TRUE(peer.is_closed());
    }
    EXPECT_EQ(d.status(number)->state, HandoverState::kRunning);
    EXPECT_TRUE(p.ended_offers().empty());
    const std::vector<std::byte> note = {std::byte{0x11}};
    ASSERT_TRUE(p.finish(id, note).ok());
    EXPECT_EQ(d.wait(number)->note, note);
    expect_right_bytes();
    const auto end = ended(p);
    ASSERT_TRUE(end.has_value());
    EXPECT_TRUE(end->status.ok()) << end->status.error().message;
  }
}

// A rank that restarts gets in while a process holds its name.
TEST_F(Impostors, ARankThatRestartsGetsInBesideAProcessOfItsName) {
  RawPeer at_prefill = RawPeer::connect(p.addresses().front());
  at_prefill.send(hello_of("d/0", 77, facts));
  at_prefill.send(reads_of());
  flush(at_prefill);
  for (int i = 0; i < 3; ++i) {
    decode.start(0, "tcp:127.0.0.1:0");
    offer();
    ask();
    expect_right_bytes();
  }
  const std::string address = p.addresses().front();
  RawPeer at_decode = RawPeer::connect(d.addresses().front());
  at_decode.send(hello_of("p/0", 77, facts));
  at_decode.send(reads_of());
  flush(at_decode);
  { const TransferRank gone = std::move(p); }
  prefill.start(0, address);
  offer();
  ask();
  // The decode rank may not have heard yet that the old one is gone: that ask ends, a later one finds the new one.
  for (int i = 0; i < 100 && d.wait(number)->state != HandoverState::kDone; ++i) {
    EXPECT_EQ(decode.memory.cache(0).memory(), before[0]);
    d.release(number);
    ask();
  }
  expect_right_bytes();
}

}  // namespace
}  // namespace cachalot
