// Links over UCX whose peers die, stall, close or are none.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <csignal>
#include <thread>

#include "base/rng.h"
#include "transfer/link/socket_address.h"
#include "transfer/ucx/ucx_test_peer.h"

namespace cachalot::transfer {
namespace {

// A payload of 64 MiB after the other, always of the same memory.
struct EndlessSource {
  explicit EndlessSource(std::uint64_t piece) : bytes(kBytes * 2, std::byte{3}) {
    memory = std::make_shared<PayloadMemory>(
        *Strided::make(reinterpret_cast<std::uintptr_t>(bytes.data()),
                       {{.count = kBytes / piece, .stride = piece * 2}}, piece));
  }
  void offer(UcxPeer& peer) {
    peer.when_next = [this, number = std::uint64_t{0}](Link&, OutgoingPayload& payload) mutable {
      payload = {word_frame(FrameType::kChunk, number++), memory, 0, kBytes, false};
      return true;
    };
  }
  void receive(UcxPeer& peer) {
    peer.when_payload = [this](Link&, const Frame&, std::uint64_t) {
      return IncomingPayload{memory, 0, false, false};
    };
  }
  static constexpr std::uint64_t kBytes = 64 << 20;
  std::vector<std::byte> bytes;
  std::shared_ptr<PayloadMemory> memory;
};

class UcxFailures : public ::testing::TestWithParam<std::uint64_t> {};

// The one that survives says so on its own channel; then `hurt` does something to the other one.
void expect_survivor(os::Child& survivor) {
  UcxPair::expect_success(survivor, "survivor");
}

TEST_P(UcxFailures, ASenderWhosePeerIsKilledClosesAndEndsAllPayloads) {
  UcxPair pair(
      [&](UcxPair& to) {
        UcxPeer peer;
        to.from_first.say(peer.listen());
        EndlessSource target(GetParam());
        target.receive(peer);
        CACHALOT_MUST(peer.run_until([&] { return !peer.accepted.empty(); }));
        peer.run_until([] { return false; });
      },
      [&](UcxPair& to, const std::string& address) {
        UcxPeer peer;
        EndlessSource source(GetParam());
        source.offer(peer);
        Link& link = peer.connect(address);
        CACHALOT_MUST(peer.run_until([&] { return peer.sent >= 2; }));
        to.from_second.say("running");
        CACHALOT_MUST(peer.run_until([&] { return !peer.closed.empty(); }));
        CACHALOT_MUST(peer.closed[0].first == &link);
        CACHALOT_MUST(peer.sent == peer.begun);
        source.memory->close();  // nothing is inside
        peer.run_until([] { return false; }, 0.2);
      });
  ASSERT_EQ(pair.from_second.hear(), "running");
  pair.first.send(SIGKILL);
  expect_survivor(pair.second);
}

TEST_P(UcxFailures, AReceiverWhosePeerIsKilledClosesAndItsMemoryIsNotTouchedAnyMore) {
  UcxPair pair(
      [&](UcxPair& to) {
        UcxPeer peer;
        to.from_first.say(peer.listen());
        EndlessSource target(GetParam());
        target.receive(peer);
        CACHALOT_MUST(peer.run_until([&] { return peer.ends.size() >= 2; }));
        to.to_second.say("running");
        CACHALOT_MUST(peer.run_until([&] { return !peer.closed.empty(); }));
        CACHALOT_MUST(peer.ends.back().second == PayloadEnd::kVoid ||
                      peer.ends.back().second == PayloadEnd::kWritten);
        target.memory->close();
        std::fill(target.bytes.begin(), target.bytes.end(), std::byte{0});
        peer.run_until([] { return false; }, 0.3);
        for (const std::byte byte : target.bytes) CACHALOT_MUST(byte == std::byte{0});
      },
      [&](UcxPair&, const std::string& address) {
        UcxPeer peer;
        EndlessSource source(GetParam());
        source.offer(peer);
        peer.connect(address);
        peer.run_until([] { return false; });
      });
  ASSERT_EQ(pair.to_second.hear(), "running");
  pair.second.send(SIGKILL);
  expect_survivor(pair.first);
}

TEST_P(UcxFailures, AReceiverThatIsStoppedGivesTheSenderItsMemoryBack) {
  UcxPair pair(
      [&](UcxPair& to) {
        UcxPeer peer;
        to.from_first.say(peer.listen());
        EndlessSource target(GetParam());
        target.receive(peer);
        // Continued, it sees that the link has closed.
        CACHALOT_MUST(peer.run_until([&] { return !peer.closed.empty(); }));
      },
      [&](UcxPair& to, const std::string& address) {
        UcxPeer peer;
        EndlessSource source(GetParam());
        source.offer(peer);
        Link& link = peer.connect(address);
        CACHALOT_MUST(peer.run_until([&] { return peer.sent >= 1; }));
        to.from_second.say("running");
        CACHALOT_MUST(peer.run_until([&] { return to.to_second.has_word(); }));
        peer.run_until([] { return false; }, 0.3);  // all buffers between the two are full
        // The owner waits in its own thread.
        std::atomic<bool> is_back = false;
        std::thread owner([&] {
          source.memory->close();
          is_back = true;
        });
        CACHALOT_MUST(peer.run_until([&] { return is_back.load(); }));
        owner.join();
        link.close(Error::make(Code::kCancelled, "done"));
        CACHALOT_MUST(peer.run_until([&] { return !peer.closed.empty(); }));
        CACHALOT_MUST(peer.sent == peer.begun);
      });
  ASSERT_EQ(pair.from_second.hear(), "running");
  pair.first.send(SIGSTOP);
  pair.to_second.say("stopped");
  expect_survivor(pair.second);
  pair.first.send(SIGCONT);
  expect_survivor(pair.first);
}

TEST_P(UcxFailures, AReceiverGetsItsMemoryBackFromAPeerThatIsStopped) {
  UcxPair pair(
      [&](UcxPair& to) {
        UcxPeer peer;
        to.from_first.say(peer.listen());
        EndlessSource target(GetParam());
        target.receive(peer);
        CACHALOT_MUST(peer.run_until([&] { return peer.ends.size() >= 1; }));
        to.from_first.say("running");
        CACHALOT_MUST(peer.run_until([&] { return to.to_first.has_word(); }));
        peer.run_until([] { return false; }, 0.3);  // all that was sent has come
        std::atomic<bool> is_back = false;
        std::thread owner([&] {
          target.memory->close();
          is_back = true;
        });
        CACHALOT_MUST(peer.run_until([&] { return is_back.load(); }));
        owner.join();
        std::fill(target.bytes.begin(), target.bytes.end(), std::byte{0});
        to.from_first.say("back");
        // Continued, the peer sends what it had begun.
        peer.run_until([] { return false; }, 1);
        for (const std::byte byte : target.bytes) CACHALOT_MUST(byte == std::byte{0});
      },
      [&](UcxPair& to, const std::string& address) {
        UcxPeer peer;
        EndlessSource source(GetParam());
        source.offer(peer);
        peer.connect(address);
        CACHALOT_MUST(peer.run_until([&] { return to.to_second.has_word(); }));
      });
  ASSERT_EQ(pair.from_first.hear(), "running");
  pair.second.send(SIGSTOP);
  pair.to_first.say("stopped");
  ASSERT_EQ(pair.from_first.hear(), "back");
  pair.second.send(SIGCONT);
  expect_survivor(pair.first);
  pair.to_second.say("end");
  expect_survivor(pair.second);
}

TEST_P(UcxFailures, ALinkThatClosesInMidPayloadClosesOnBothSides) {
  UcxPair pair(
      [&](UcxPair& to) {
        UcxPeer peer;
        to.from_first.say(peer.listen());
        EndlessSource both(GetParam());
        both.receive(peer);
        both.offer(peer);
        CACHALOT_MUST(peer.run_until([&] { return peer.ends.size() >= 1 && peer.sent >= 1; }));
        peer.accepted[0]->close(Error::make(Code::kCancelled, "enough"));
        CACHALOT_MUST(peer.run_until([&] { return !peer.closed.empty(); }));
        CACHALOT_MUST(peer.closed[0].second.code == Code::kCancelled);
        CACHALOT_MUST(peer.sent == peer.begun);
        both.memory->close();
        to.to_second.say("closed");
        peer.run_until([] { return false; }, 0.3);
      },
      [&](UcxPair& to, const std::string& address) {
        UcxPeer peer;
        EndlessSource both(GetParam());
        both.receive(peer);
        both.offer(peer);
        peer.connect(address);
        CACHALOT_MUST(peer.run_until([&] { return !peer.closed.empty(); }));
        CACHALOT_MUST(peer.closed[0].second.code == Code::kIo);
        CACHALOT_MUST(peer.sent == peer.begun);
        both.memory->close();
        CACHALOT_MUST(to.to_second.hear() == "closed");
      });
  pair.expect_both_succeed();
}

INSTANTIATE_TEST_SUITE_P(All, UcxFailures, ::testing::Values(kWhole, kPieces), name_of);

TEST(UcxLinks, TheLastFrameBeforeACloseArrives) {
  UcxPair pair(
      [&](UcxPair& to) {
        UcxPeer peer;
        to.from_first.say(peer.listen());
        peer.when_frame = [&](Link& link, const Frame&) {
          link.send({FrameType::kRefusal, BodyWriter().text("no").take()});
          link.close(Error::make(Code::kRefused, "no"));
        };
        CACHALOT_MUST(peer.run_until([&] { return !peer.closed.empty(); }));
        CACHALOT_MUST(peer.run_until([&] { return to.to_first.has_word(); }));
      },
      [&](UcxPair& to, const std::string& address) {
        for (int i = 0; i < 20; ++i) {
          UcxPeer peer;
          bool has_refusal = false;
          peer.when_frame = [&](Link&, const Frame& frame) {
            has_refusal |= frame.type == FrameType::kRefusal;
          };
          peer.connect(address).send(word_frame(FrameType::kHello, 1));
          CACHALOT_MUST(peer.run_until([&] { return !peer.closed.empty(); }));
          CACHALOT_MUST(has_refusal);
        }
        to.to_first.say("end");
      });
  pair.expect_both_succeed();
}

TEST(UcxLinks, ManyLinksCarryPayloadsAtTheSameTime) {
  constexpr std::size_t kLinks = 64;
  constexpr std::uint64_t kBytes = 3 << 20;
  UcxPair pair(
      [&](UcxPair& to) {
        UcxPeer peer;
        to.from_first.say(peer.listen());
        std::vector<std::byte> bytes(kBytes * kLinks);
        peer.when_payload = [&](Link&, const Frame& frame, std::uint64_t size) {
          const std::uint64_t number = BodyReader(frame.body).word();
          return IncomingPayload{
              std::make_shared<PayloadMemory>(Strided::flat(bytes.data() + number * kBytes, size)),
              0, false, false};
        };
        CACHALOT_MUST(peer.run_until([&] { return peer.ends.size() == kLinks; }));
        CACHALOT_MUST(peer.accepted.size() == kLinks);
        for (std::size_t i = 0; i < bytes.size(); i += 4096)
          CACHALOT_MUST(bytes[i] == static_cast<std::byte>(i / kBytes + 1));
        to.to_second.say("end");
        CACHALOT_MUST(peer.run_until([&] { return peer.closed.size() == kLinks; }));
      },
      [&](UcxPair& to, const std::string& address) {
        UcxPeer peer;
        std::vector<std::vector<std::byte>> bytes;
        std::vector<Link*> links;
        std::vector<bool> is_sent(kLinks);
        peer.when_next = [&](Link& link, OutgoingPayload& payload) {
          const auto number = static_cast<std::size_t>(
              std::find(links.begin(), links.end(), &link) - links.begin());
          if (is_sent[number]) return false;
          is_sent[number] = true;
          payload = {word_frame(FrameType::kChunk, number),
                     std::make_shared<PayloadMemory>(Strided::flat(bytes[number].data(), kBytes)),
                     0, kBytes, false};
          return true;
        };
        for (std::size_t i = 0; i < kLinks; ++i) {
          bytes.emplace_back(kBytes, static_cast<std::byte>(i + 1));
          links.push_back(&peer.connect(address));
        }
        CACHALOT_MUST(peer.run_until([&] { return to.to_second.has_word(); }));
        for (Link* link : links) link->close(Error::make(Code::kCancelled, "done"));
        CACHALOT_MUST(peer.run_until([&] { return peer.closed.size() == kLinks; }));
      });
  pair.expect_both_succeed();
}

os::FileDescriptor raw_connect(const std::string& address) {
  const SocketAddress to = *SocketAddress::parse("tcp:" + address.substr(4));
  os::FileDescriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  CACHALOT_MUST(::connect(fd.get(), to.get(), to.bytes) == 0);
  return fd;
}

TEST(UcxLinks, ForeignBytesAtThePortDoNotDisturbTheListener) {
  UcxPair pair(
      [&](UcxPair& to) {
        UcxPeer peer;
        to.from_first.say(peer.listen());
        peer.when_frame = [&](Link& link, const Frame& frame) { link.send(frame); };
        CACHALOT_MUST(peer.run_until([&] { return to.to_first.has_word(); }));
      },
      [&](UcxPair& to, const std::string& address) {
        base::Rng rng(5);
        std::vector<os::FileDescriptor> open;
        for (int i = 0; i < 200; ++i) {
          open.push_back(raw_connect(address));
          std::vector<std::uint8_t> bytes(rng.below(3000));
          for (auto& byte : bytes) byte = static_cast<std::uint8_t>(rng.next());
          // Some begin as UCX does: a length, and 0.
          if (i % 3 == 0 && bytes.size() >= 16) {
            std::fill(bytes.begin(), bytes.begin() + 16, std::uint8_t{0});
            bytes[0] = static_cast<std::uint8_t>(rng.below(256));
            bytes[1] = static_cast<std::uint8_t>(rng.below(4));
          }
          send(open.back().get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
          if (i % 2 == 0) open.pop_back();
        }
        UcxPeer peer;
        bool is_answered = false;
        peer.when_frame = [&](Link&, const Frame&) { is_answered = true; };
        peer.connect(address).send(word_frame(FrameType::kHello, 1));
        CACHALOT_MUST(peer.run_until([&] { return is_answered; }));
        to.to_first.say("end");
      });
  pair.expect_both_succeed();
}

// In a child, because it loads UCX.
void run_alone(const std::function<void()>& body) {
  os::Child child = *os::Child::start([&] {
    body();
    return 0;
  });
  UcxPair::expect_success(child, "child");
}

TEST(UcxLinks, AConnectionToNothingClosesWithAnError) {
  run_alone([] {
    UcxPeer peer;
    const std::string address = peer.listen();
    peer.transport.reset();  // the port is free again
    UcxPeer other;
    Link& link = other.connect(address);
    CACHALOT_MUST(other.run_until([&] { return !other.closed.empty(); }));
    CACHALOT_MUST(other.closed[0].first == &link);
    CACHALOT_MUST(std::string(other.closed[0].second.message).find(address) == 0);
  });
}

TEST(UcxLinks, APeerThatNeverAnswersCanBeClosed) {
  run_alone([] {
    const ListeningSocket listening = *listen_at(*SocketAddress::parse("tcp:127.0.0.1:0"));
    const os::FileDescriptor& silent = listening.fd;
    UcxPeer peer;
    Link& link = peer.connect("ucx:" + local_address(silent.get())->text().substr(4));
    peer.run_until([] { return false; }, 0.3);
    link.close(Error::make(Code::kTimeout, "no answer"));
    CACHALOT_MUST(peer.run_until([&] { return !peer.closed.empty(); }, 10));
  });
}

TEST(UcxLinks, ATransportCanEndInTheMiddleOfTransfers) {
  UcxPair pair(
      [&](UcxPair& to) {
        UcxPeer peer;
        to.from_first.say(peer.listen());
        EndlessSource target(kWhole);
        target.receive(peer);
        CACHALOT_MUST(peer.run_until([&] { return peer.ends.size() >= 1; }));
        peer.transport.reset();
        target.memory->close();
      },
      [&](UcxPair&, const std::string& address) {
        UcxPeer peer;
        EndlessSource source(kWhole);
        source.offer(peer);
        peer.connect(address);
        CACHALOT_MUST(peer.run_until([&] { return !peer.closed.empty(); }));
      });
  pair.expect_both_succeed();
}

TEST(UcxLinks, ALibraryThatIsMissingOrAnotherOneIsOneClearError) {
  run_alone([] {
    UcxOptions options;
    options.library = "/nowhere/libucp.so.0";
    const auto missing = open_ucx(options);
    CACHALOT_MUST(!missing.ok() && missing.error().code == Code::kNotFound);
    CACHALOT_MUST(std::string(missing.error().message).find("/nowhere/libucp.so.0") !=
                  std::string::npos);
    options.library = "libm.so.6";
    const auto other = open_ucx(options);
    CACHALOT_MUST(!other.ok() && other.error().code == Code::kNotFound);
    CACHALOT_MUST(std::string(other.error().message).find("1.13") != std::string::npos);
  });
}

TEST(UcxLinks, ADeviceThatDoesNotExistIsOneClearError) {
  run_alone([] {
    UcxOptions options = UcxPeer::default_options();
    options.devices = "nosuchdevice0";
    const auto opened = open_ucx(options);
    CACHALOT_MUST(!opened.ok() && opened.error().code == Code::kIo);
    CACHALOT_MUST(std::string(opened.error().message).find("nosuchdevice0") != std::string::npos);
  });
}

TEST(UcxLinks, AddressesOfOtherKindsAreRejected) {
  run_alone([] {
    UcxPeer peer;
    for (const char* address : {"tcp:127.0.0.1:1", "ucx:", "ucx:host:1", "ucx:1.2.3.4",
                                "ucx:1.2.3.4:70000", "unix:@name"}) {
      CACHALOT_MUST(!peer.transport->connect(address).ok());
      CACHALOT_MUST(!peer.transport->listen(address).ok());
    }
    CACHALOT_MUST(!peer.transport->understands("tcp:127.0.0.1:1"));
    const auto busy = peer.transport->listen(peer.listen());
    CACHALOT_MUST(!busy.ok() && busy.error().code == Code::kBusy);
  });
}

TEST(UcxLinks, SignalHandlersStayAsTheyWere) {
  run_alone([] {
    const auto handlers = [] {
      std::vector<void (*)(int)> all;
      for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGHUP, SIGABRT, SIGTERM}) {
        struct sigaction now {};
        sigaction(signal, nullptr, &now);
        all.push_back(now.sa_handler);
      }
      return all;
    };
    std::signal(SIGBUS, SIG_IGN);
    const auto before = handlers();
    UcxPeer peer;
    CACHALOT_MUST(handlers() == before);
  });
}

}  // namespace
}  // namespace cachalot::transfer
