// For tests of a hand-over with a peer that lies: a rank between guards, and fixtures that write the frames of the other
// rank by hand. In the fixtures the liar's true conversation is one call, so that a test changes one thing of it.
#pragma once

#include <cachalot/transfer.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "testing/transfer/proofs.h"
#include "testing/transfer/raw_peer.h"
#include "testing/transfer/second.h"
#include "transfer/engine/engine.h"
#include "transfer/handover/instance.h"
#include "transfer/handover/messages.h"

namespace cachalot::transfer {

inline constexpr std::uint32_t kLayers = 2, kPages = 8, kTokens = 8;  // two pages of 4 tokens
inline constexpr std::uint64_t kPageBytes = 4 * 2 * 16;               // of a part of a layer
inline constexpr std::uint64_t kTensorBytes = kParts * kPages * kPageBytes;
inline constexpr std::uint64_t kStreamBytes = kLayers * kParts * 2 * kPageBytes;
inline constexpr std::array<PageId, 2> kUsed = {5, 2};

// A rank, and its memory between guards.
struct Victim {
  Victim(const char* instance, bool has_checksums = false) {
    for (auto& tensor : tensors) tensor.assign(kTensorBytes + 2 * kGuard, std::byte{0x5a});
    TransferOptions o;
    o.instance = instance;
    o.model = "test@1";
    o.geometry.layers = kLayers;
    o.geometry.kv_heads = 2;
    o.geometry.head_dim = 16;
    o.geometry.dtype = DType::kI8;
    o.geometry.block_tokens = 4;
    o.cache.layout = "vllm_kbnhc";
    o.cache.pages = kPages;
    for (auto& tensor : tensors) o.cache.tensors.push_back({tensor.data() + kGuard, kTensorBytes});
    o.listen = {"tcp:127.0.0.1:0"};
    o.checksums = has_checksums;
    o.peer_timeout_ns = 5 * kSecond;  // a large lie takes a busy machine a second to encode
    Result<TransferRank> opened = TransferRank::open(o);
    if (!opened) ADD_FAILURE() << opened.error().message;
    rank.emplace(*std::move(opened));
    facts = {{"model", "test@1"}, {"kv", *model_text(o.geometry, o.shape)}};
  }
  // Everything that no used page has is as it was.
  bool is_rest_untouched() const {
    for (const auto& tensor : tensors) {
      for (std::size_t i = 0; i < tensor.size(); ++i) {
        const bool is_inside = i >= kGuard && i < kGuard + kTensorBytes;
        const auto page = static_cast<PageId>((i - kGuard) / kPageBytes % kPages);
        if (is_inside && (page == kUsed[0] || page == kUsed[1])) continue;
        if (tensor[i] != std::byte{0x5a}) return false;
      }
    }
    return true;
  }
  bool is_untouched() const {
    for (const auto& tensor : tensors) {
      for (const std::byte b : tensor) {
        if (b != std::byte{0x5a}) return false;
      }
    }
    return true;
  }

  static constexpr std::size_t kGuard = 4096;
  std::array<std::vector<std::byte>, kLayers> tensors;
  std::optional<TransferRank> rank;
  std::map<std::string, std::string> facts;
};

inline StreamShape shape_of_fetch() {
  StreamShape shape;
  shape.heads = 2;
  shape.page_tokens = 4;
  for (auto& part : shape.part) part = {16, 32, 16};
  shape.part_step = kPages * kPageBytes;
  return shape;
}

inline Frame message(const Message& m) {
  return {FrameType::kMessage, BodyWriter().bytes(encode(m)).take()};
}

// Of the body of a kMessage frame.
template <class T>
T message_of(const std::optional<Frame>& frame) {
  if (!frame) {
    ADD_FAILURE() << "no message came";
    return {};
  }
  BodyReader body(frame->body);
  Result<Message> read = decode(body.bytes(kMostMessageBytes));
  if (!read || !std::holds_alternative<T>(*read)) {
    ADD_FAILURE() << "another message came";
    return {};
  }
  return std::get<T>(*read);
}

inline AskStatus ended_ask(TransferRank& rank, AskId ask) {
  const AskStatus status = *rank.wait(ask, 30 * kSecond);
  EXPECT_NE(status.state, HandoverState::kRunning) << "a request hangs";
  return status;
}

// Until nothing is open.
inline void expect_empty(TransferRank& rank) {
  const std::uint64_t end_ns = base::SteadyClock::read() + 20 * kSecond;
  while (rank.statistics().open_offers + rank.statistics().open_asks > 0) {
    ASSERT_LT(base::SteadyClock::read(), end_ns) << "something is left";
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// --- The decode rank, and a prefill rank that lies -----------------------------------------------------

class LyingPrefill : public ::testing::Test {
 protected:
  void ask(std::uint64_t deadline_ns = 20 * kSecond) {
    // A new name each time: the rank may not have noticed the end of the connection before.
    instance = "p" + std::to_string(++incarnation);
    id = *random_offer_id();
    const KvReference reference{instance, id, kTokens, {}, {{listener.address()}}, false};
    number = *decode.rank->ask(reference, {.pages = kUsed, .deadline_ns = deadline_ns});
    peer = listener.accept();
    ASSERT_TRUE(peer);
  }
  Frame hello() { return hello_of(instance + "/0", incarnation, decode.facts); }
  // Up to the message Ask.
  AskMessage greet() {
    peer->send(hello());
    peer->send(reads_of());
    if (const auto heard = peer->receive(FrameType::kHello)) asker = party_in(*heard);
    return message_of<AskMessage>(peer->receive(FrameType::kMessage));
  }
  PlanMessage plan(const AskMessage& m, std::vector<StreamOrder> orders = {
                                            StreamOrder{Loops::kPartTokenHead, 0}}) const {
    return proven(PlanMessage{m.ask, std::move(orders)}, id, {instance + "/0", incarnation}, asker,
                  m.nonce);
  }
  // Up to the window.
  std::uint64_t open_window() {
    asked = greet();
    EXPECT_EQ(asked.fetches.size(), 1u);
    peer->send(message(plan(asked)));
    const GoMessage go = message_of<GoMessage>(peer->receive(FrameType::kMessage));
    return go.windows.empty() ? 0 : go.windows.front();
  }
  ChunkFrame whole(std::uint64_t window) const {
    return {
        .window = window, .total = kStreamBytes, .payload = Bytes(kStreamBytes, std::byte{0x11})};
  }
  void expect_failure(Code code, const char* part) {
    const AskStatus status = ended_ask(*decode.rank, number);
    EXPECT_EQ(status.state, HandoverState::kFailed);
    EXPECT_EQ(status.error.code, code) << status.error.message;
    EXPECT_NE(std::string(status.error.message).find(part), std::string::npos)
        << status.error.message;
    EXPECT_TRUE(decode.is_rest_untouched());
    expect_empty(*decode.rank);
  }

  Victim decode{"d"};
  RawListener listener;
  std::optional<RawPeer> peer;
  AskId number = {};
  std::string instance;
  OfferId id;
  Party asker;
  AskMessage asked;
  std::uint64_t incarnation = 100;
};

// --- The prefill rank, and a decode rank that lies -----------------------------------------------------

class LyingDecode : public ::testing::Test {
 protected:
  void offer(std::uint64_t deadline_ns = 20 * kSecond, bool has_note = false) {
    id = *random_offer_id();
    const Status offered = prefill.rank->offer({.id = id,
                                                .pages = kUsed,
                                                .tokens = kTokens,
                                                .deadline_ns = deadline_ns,
                                                .has_note = has_note});
    ASSERT_TRUE(offered.ok());
  }
  void greet() {
    peer.emplace(RawPeer::connect(prefill.rank->addresses().front()));
    peer->send(hello_of("d/0", ++incarnation, prefill.facts, "p/0"));
    peer->send(reads_of());
    if (const auto heard = peer->receive(FrameType::kHello)) giver = party_in(*heard);
  }
  AskMessage true_ask() const {
    AskMessage m;
    m.ask = 1;
    m.offer = name_of(id);
    m.tokens = kTokens;
    m.fetches = {shape_of_fetch()};
    return prove(m);
  }
  // Of the rank that has said hello.
  AskMessage prove(const AskMessage& m) const { return proven(m, id, {"d/0", incarnation}, giver); }
  std::optional<EndedOffer> ended() {
    const std::uint64_t end_ns = base::SteadyClock::read() + 20 * kSecond;
    while (base::SteadyClock::read() < end_ns) {
      std::vector<EndedOffer> all = prefill.rank->ended_offers();
      if (!all.empty()) return all.front();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return std::nullopt;
  }

  Victim prefill{"p"};
  std::optional<RawPeer> peer;
  OfferId id;
  Party giver;
  std::uint64_t incarnation = 100;
};

}  // namespace cachalot::transfer
