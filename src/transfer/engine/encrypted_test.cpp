// Links with a cluster key: what a machine between two hosts, and a process without the key, can do.
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <span>
#include <thread>

#include "base/clock.h"
#include "base/rng.h"
#include "testing/transfer/middle.h"
#include "testing/transfer/raw_peer.h"
#include "transfer/engine/engine.h"

namespace cachalot::transfer {
namespace {

constexpr std::size_t kStreamBytes = 1 << 20;
// Longer than the deadline of a push: nothing else wakes a receiver.
constexpr std::uint64_t kPatienceNs = 60'000'000'000;

std::uint64_t in(std::uint64_t milliseconds) {
  return base::SteadyClock::read() + milliseconds * 1'000'000;
}
os::SecretKey key_of(unsigned char first) {
  return {{first}};
}

struct Receiver : EngineEvents {
  explicit Receiver(const std::optional<os::SecretKey>& key) {
    EngineOptions options;
    options.name = "receiver";
    options.listen = {"tcp:127.0.0.1:0"};
    options.cluster_key = key;
    options.peer_timeout_ns = kPatienceNs;
    engine = *TransferEngine::open(options, this);
  }
  ~Receiver() override { engine->close(); }
  void on_peer(PeerId peer, const PeerInfo&) override {
    from = static_cast<std::uint64_t>(peer);
    ++peers;
  }
  void on_peer_lost(PeerId, const Error&) override { ++lost; }
  const std::string& address() const { return engine->addresses().front(); }

  std::atomic<std::uint64_t> from{0};
  std::atomic<int> peers{0}, lost{0};
  std::unique_ptr<TransferEngine> engine;
};

std::unique_ptr<TransferEngine> sender_with(const std::optional<os::SecretKey>& key) {
  EngineOptions options;
  options.name = "sender";
  options.cluster_key = key;
  options.peer_timeout_ns = kPatienceNs;
  options.chunk_bytes = 64 << 10;
  return *TransferEngine::open(options);
}

template <class Condition>
bool comes_true(const Condition& condition) {
  for (const std::uint64_t end = in(20'000); !condition() && base::SteadyClock::read() < end;)
    std::this_thread::yield();
  return condition();
}

Error refusal(TransferEngine& caller, const std::string& address) {
  const std::uint64_t begin_ns = base::SteadyClock::read();
  const Result<PeerId> peer = caller.connect({"", 0, {address}}, in(60'000));
  EXPECT_LT(base::SteadyClock::read() - begin_ns, 30'000'000'000u) << "it waited for its deadline";
  return peer ? Error::make(Code::kInternal, "is let in") : peer.error();
}

// One push of random bytes through a middle machine.
struct Push {
  Push(const std::optional<os::SecretKey>& key, Middle::Change change) : receiver(key) {
    base::Rng rng(7);
    for (auto& byte : source) byte = static_cast<std::byte>(rng.next());
    // What is not written stays as it is.
    for (std::size_t i = 0; i < source.size(); ++i) target[i] = ~source[i];
    middle = std::make_unique<Middle>(receiver.address(), key.has_value(), std::move(change));
    sender = sender_with(key);
    const Result<PeerId> to = sender->connect({"", 0, {middle->address()}}, in(5000));
    const auto is_decided = [&] { return receiver.from != 0 || !sender->info(*to); };
    if (!to || !comes_true(is_decided) || receiver.from == 0) return;
    const WindowKey window = *receiver.engine->open_window(
        PeerId{receiver.from.load()}, Strided::flat(target.data(), target.size()), in(20'000));
    const PushId push =
        *sender->push(*to, window, Strided::flat(source.data(), source.size()), in(20'000));
    window_status = *receiver.engine->wait(window, in(30'000));
    push_status = *sender->wait(push, in(30'000));
  }
  ~Push() { sender->close(); }
  // Bytes that are neither the sender's nor untouched.
  std::size_t wrong_bytes() const {
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < source.size(); ++i)
      wrong += target[i] != source[i] && target[i] != ~source[i];
    const auto counted = static_cast<std::ptrdiff_t>(window_status.bytes);
    wrong += !std::equal(source.begin(), source.begin() + counted, target.begin());
    return wrong;
  }
  void expect_refused() const {
    EXPECT_NE(window_status.state, TransferState::kDone);
    EXPECT_NE(push_status.state, TransferState::kDone);
    EXPECT_LT(window_status.bytes, source.size());
    EXPECT_EQ(wrong_bytes(), 0u);
  }

  Receiver receiver;
  std::unique_ptr<Middle> middle;
  std::unique_ptr<TransferEngine> sender;
  std::vector<std::byte> source = std::vector<std::byte>(kStreamBytes),
                         target = std::vector<std::byte>(kStreamBytes);
  TransferStatus window_status, push_status;
};

TEST(Encrypted, WhatTravelsIsNotToBeReadOnItsWay) {
  const std::string name = "sender";
  for (const bool has_key : {false, true}) {
    const Push push(has_key ? std::optional(key_of(1)) : std::nullopt, {});
    EXPECT_EQ(push.window_status.state, TransferState::kDone);
    EXPECT_EQ(push.source, push.target);
    EXPECT_GT(push.middle->recorded().size(), kStreamBytes);
    const std::span<const std::byte> source(push.source);
    EXPECT_EQ(push.middle->has_seen(source.subspan(500'000, 32)), !has_key);
    EXPECT_EQ(push.middle->has_seen(std::as_bytes(std::span(name))), !has_key);
  }
}

TEST(Encrypted, PartsOfARecordWakeTheReceiver) {
  const Push push(key_of(1), [](bool, std::size_t, Bytes piece) {
    const auto half = piece.begin() + static_cast<std::ptrdiff_t>(piece.size() * 3 / 4);
    return Middle::Pieces{Bytes(piece.begin(), half), Bytes(half, piece.end())};
  });
  EXPECT_EQ(push.window_status.state, TransferState::kDone) << push.window_status.error.message;
  EXPECT_EQ(push.source, push.target);
}

// Records: 0 is the hello of TLS, the next ones end the handshake.
TEST(Encrypted, AChangedByteEndsTheConnection) {
  for (const bool to_target : {true, false}) {
    for (const std::size_t record : {0, 1, 2, 3, 4, 20}) {
      if (!to_target && record > 4) continue;  // it answers with few
      bool has_changed = false;
      const Push push(key_of(1), [&](bool is_to_target, std::size_t number, Bytes piece) {
        if (is_to_target == to_target && number == record) {
          has_changed = true;
          piece.back() ^= std::byte{1};
        }
        return Middle::Pieces{std::move(piece)};
      });
      ASSERT_TRUE(has_changed) << to_target << record;
      SCOPED_TRACE(testing::Message() << "to the target: " << to_target << ", record " << record);
      push.expect_refused();
    }
  }
}

TEST(Encrypted, RecordsThatAreLeftOutRepeatedOrReorderedEndTheConnection) {
  enum class What { kLeftOut, kRepeated, kReordered, kCut };
  for (const What what : {What::kLeftOut, What::kRepeated, What::kReordered, What::kCut}) {
    Bytes kept;
    const Push push(key_of(1), [&](bool to_target, std::size_t number, Bytes piece) {
      Middle::Pieces pieces{piece};
      if (!to_target) return std::optional(pieces);
      if (number == 20 && what == What::kLeftOut) pieces.clear();
      if (number == 20 && what == What::kRepeated) pieces.push_back(piece);
      if (number == 20 && what == What::kReordered) {
        kept = piece;
        pieces.clear();
      }
      if (number == 21 && what == What::kReordered) pieces.push_back(kept);
      if (number == 20 && what == What::kCut) return std::optional<Middle::Pieces>();
      return std::optional(pieces);
    });
    SCOPED_TRACE(static_cast<int>(what));
    push.expect_refused();
  }
}

TEST(Encrypted, ARecordedConnectionOpensNoOther) {
  const Push push(key_of(1), {});
  ASSERT_EQ(push.window_status.state, TransferState::kDone);
  EXPECT_EQ(push.receiver.peers, 1);
  RawPeer replay = RawPeer::connect(push.receiver.address());
  replay.send(push.middle->recorded());
  std::byte byte;
  while (replay.read(&byte, 1)) {
  }
  EXPECT_TRUE(replay.is_closed());
  EXPECT_EQ(push.receiver.peers, 1);
}

TEST(Encrypted, OnlyAPeerWithTheSameKeyIsLetIn) {
  const std::optional<os::SecretKey> keys[] = {key_of(1), key_of(2), std::nullopt};
  for (const auto& called : keys) {
    Receiver receiver(called);
    for (const auto& calls : keys) {
      const bool are_same =
          called.has_value() == calls.has_value() && (!called || called->bytes == calls->bytes);
      const auto sender = sender_with(calls);
      const Error error = refusal(*sender, receiver.address());
      EXPECT_EQ(error.code, are_same ? Code::kInternal : Code::kPermission) << error.message;
      EXPECT_EQ(std::strstr(error.message, "cluster key") == nullptr, are_same) << error.message;
      EXPECT_TRUE(comes_true([&] { return receiver.peers == (are_same ? 1 : 0); }));
      sender->close();
      EXPECT_TRUE(comes_true([&] { return receiver.lost == receiver.peers; }));
      receiver.peers = receiver.lost = 0;
    }
  }
}

// A server of TLS that has a certificate instead of the key.
TEST(Encrypted, ACertificateIsNoKey) {
  const std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key(
      EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"), EVP_PKEY_free);
  const std::unique_ptr<X509, void (*)(X509*)> certificate(X509_new(), X509_free);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
  X509_set_pubkey(certificate.get(), key.get());
  ASSERT_GT(X509_sign(certificate.get(), key.get(), nullptr), 0);
  const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context(SSL_CTX_new(TLS_method()),
                                                             SSL_CTX_free);
  ASSERT_EQ(SSL_CTX_use_certificate(context.get(), certificate.get()), 1);
  ASSERT_EQ(SSL_CTX_use_PrivateKey(context.get(), key.get()), 1);
  RawListener listener;
  std::atomic<bool> has_opened{false};
  std::thread server([&] {
    std::optional<RawPeer> caller = listener.accept();
    if (!caller) return;
    const std::unique_ptr<SSL, void (*)(SSL*)> ssl(SSL_new(context.get()), SSL_free);
    SSL_set_fd(ssl.get(), caller->fd());
    char byte;
    has_opened = SSL_accept(ssl.get()) == 1 && SSL_read(ssl.get(), &byte, 1) == 1;
  });
  const auto sender = sender_with(key_of(1));
  EXPECT_EQ(refusal(*sender, listener.address()).code, Code::kPermission);
  server.join();
  EXPECT_FALSE(has_opened) << "the caller has sent its hello to a stranger";
}

TEST(Encrypted, AMillionHostileBytesOpenNothing) {
  Receiver receiver(key_of(1));
  base::Rng rng(3);
  std::size_t sent = 0;
  for (int i = 0; sent < 1'000'000; ++i) {
    Bytes bytes(1 + rng.next() % 16'000);
    for (auto& byte : bytes) byte = static_cast<std::byte>(rng.next());
    // Half of them look like a record of TLS.
    if (i % 2 == 0 && bytes.size() > 9) {
      const std::size_t length = bytes.size() - 5;
      const unsigned char head[] = {static_cast<unsigned char>(20 + rng.next() % 4), 3,
                                    static_cast<unsigned char>(1 + rng.next() % 3),
                                    static_cast<unsigned char>(length >> 8),
                                    static_cast<unsigned char>(length)};
      std::memcpy(bytes.data(), head, sizeof head);
      if (i % 4 == 0) bytes[5] = std::byte{1};  // the type of a hello
    }
    RawPeer stranger = RawPeer::connect(receiver.address());
    stranger.send(bytes);
    sent += bytes.size();
  }
  EXPECT_EQ(receiver.peers, 0);
  const auto sender = sender_with(key_of(1));
  EXPECT_TRUE(sender->connect({"receiver", 0, {receiver.address()}}, in(20'000)));
}

TEST(Encrypted, ALongConnectionGoesOnToNewKeys) {
  constexpr std::size_t kKeyUpdateBytes = 5 + 5 + 1 + 16;  // no frame is so short
  std::atomic<int> updates{0};
  Receiver receiver(key_of(1));
  Middle middle(receiver.address(), true, [&](bool to_target, std::size_t, Bytes piece) {
    if (to_target && piece.size() == kKeyUpdateBytes) ++updates;
    return Middle::Pieces{std::move(piece)};
  });
  const auto sender = sender_with(key_of(1));
  const PeerId to = *sender->connect({"", 0, {middle.address()}}, in(20'000));
  ASSERT_TRUE(comes_true([&] { return receiver.from != 0; }));
  std::vector<std::byte> source(32 << 20, std::byte{3}), target(source.size());
  for (int i = 0; i < 10; ++i) {
    const WindowKey window = *receiver.engine->open_window(
        PeerId{receiver.from.load()}, Strided::flat(target.data(), target.size()), in(60'000));
    source[static_cast<std::size_t>(i)] = std::byte{9};
    const PushId push =
        *sender->push(to, window, Strided::flat(source.data(), source.size()), in(60'000));
    ASSERT_EQ(receiver.engine->wait(window, in(60'000))->state, TransferState::kDone);
    (void)sender->wait(push, in(60'000));
    ASSERT_EQ(source, target);
  }
  EXPECT_EQ(updates, 1);
  sender->close();
}

}  // namespace
}  // namespace cachalot::transfer
