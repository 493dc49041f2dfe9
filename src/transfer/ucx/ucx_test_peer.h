// For tests: one end of links over UCX, in a process of its own. The process that runs the tests never loads UCX.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "os/child.h"
#include "transfer/ucx/open_ucx.h"

namespace cachalot::transfer {

// In a child: says what failed, and ends it.
#define CACHALOT_MUST(condition)                                                   \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
      std::fflush(stderr);                                                         \
      _exit(1);                                                                    \
    }                                                                              \
  } while (false)

// Words between processes. A read ends the process if the other end is gone.
class Channel {
 public:
  Channel() { EXPECT_EQ(pipe(ends_.data()), 0); }
  void say(const std::string& word) const {
    std::array<char, 128> line{};
    std::strncpy(line.data(), word.c_str(), line.size() - 1);
    CACHALOT_MUST(write(ends_[1], line.data(), line.size()) == ssize_t(line.size()));
  }
  // @return empty: nothing came for so long
  std::string hear(int timeout_ms = 30'000) const {
    pollfd ready{ends_[0], POLLIN, 0};
    std::array<char, 128> line{};
    if (poll(&ready, 1, timeout_ms) != 1 ||
        read(ends_[0], line.data(), line.size()) != ssize_t(line.size()))
      return "";
    return line.data();
  }
  bool has_word() const {
    pollfd ready{ends_[0], POLLIN, 0};
    return poll(&ready, 1, 0) == 1;
  }

 private:
  std::array<int, 2> ends_ = {};
};

// One end. What it does with events is set by the test.
class UcxPeer : public LinkEvents {
 public:
  explicit UcxPeer(UcxOptions options = default_options()) {
    auto opened = open_ucx(options);
    if (!opened) std::fprintf(stderr, "%s\n", opened.error().message);
    CACHALOT_MUST(opened.ok());
    transport = *std::move(opened);
    transport->start(*this, [this](Link& link) {
      link.trust();
      accepted.push_back(&link);
      if (when_accepted) when_accepted(link);
    });
  }

  static UcxOptions default_options() {
    UcxOptions options;
    if (const char* library = std::getenv("CACHALOT_UCX_LIBRARY")) options.library = library;
    options.transports = "tcp";
    return options;
  }

  std::string listen() {
    const Result<std::string> address = transport->listen("ucx:127.0.0.1:0");
    if (!address) std::fprintf(stderr, "%s\n", address.error().message);
    CACHALOT_MUST(address.ok());
    return *address;
  }
  Link& connect(const std::string& address) {
    const Result<Link*> link = transport->connect(address);
    CACHALOT_MUST(link.ok());
    (*link)->trust();
    return **link;
  }

  // Progress by wake-up, until it is true. @return false: after `seconds` it was not
  bool run_until(const std::function<bool()>& is_done, double seconds = 60) {
    const std::uint64_t end_ns =
        base::SteadyClock::read() + static_cast<std::uint64_t>(seconds * 1e9);
    for (;;) {
      const bool is_more = transport->progress();
      if (is_done()) return true;
      if (base::SteadyClock::read() > end_ns) return false;
      if (is_more || !transport->arm()) continue;
      // Conditions that no event announces are looked at every 20 ms.
      pollfd ready{transport->fd(), POLLIN, 0};
      poll(&ready, 1, 20);
    }
  }

  void on_frame(Link& link, Frame frame) override {
    if (when_frame) when_frame(link, frame);
  }
  IncomingPayload on_payload(Link& link, const Frame& frame, std::uint64_t bytes) override {
    return when_payload ? when_payload(link, frame, bytes) : IncomingPayload{};
  }
  void on_payload_end(Link&, const Frame& frame, std::uint64_t, PayloadEnd end) override {
    CACHALOT_MUST(closed.empty());
    ends.emplace_back(BodyReader(frame.body).word(), end);
  }
  bool next_payload(Link& link, OutgoingPayload& payload) override {
    if (!when_next || !when_next(link, payload)) return false;
    ++begun;
    return true;
  }
  void on_payload_sent(Link&, const OutgoingPayload&) override { ++sent; }
  void on_closed(Link& link, const Error& error) override { closed.emplace_back(&link, error); }

  std::unique_ptr<Transport> transport;
  std::vector<Link*> accepted;
  std::function<void(Link&)> when_accepted;
  std::function<void(Link&, const Frame&)> when_frame;
  std::function<IncomingPayload(Link&, const Frame&, std::uint64_t)> when_payload;
  std::function<bool(Link&, OutgoingPayload&)> when_next;
  std::vector<std::pair<std::uint64_t, PayloadEnd>> ends;  // the first word of the frame
  std::vector<std::pair<Link*, Error>> closed;
  int begun = 0, sent = 0;
};

inline Frame word_frame(FrameType type, std::uint64_t word) {
  return {type, BodyWriter().word(word).take()};
}

// In pieces of how many bytes a test's payloads lie.
inline constexpr std::uint64_t kWhole = 4 << 20;
inline constexpr std::uint64_t kPieces = 16 << 10;

inline std::string name_of(const ::testing::TestParamInfo<std::uint64_t>& piece_bytes) {
  return piece_bytes.param == kWhole ? "Whole" : "Pieces";
}

// Two processes. @param listener  hears the others; says its address first
struct UcxPair {
  UcxPair(const std::function<void(UcxPair&)>& listener,
          const std::function<void(UcxPair&, const std::string&)>& connector)
      : first(*os::Child::start([&] {
          listener(*this);
          return 0;
        })),
        address(from_first.hear()),
        second(*os::Child::start([&] {
          connector(*this, address);
          return 0;
        })) {}
  void expect_both_succeed() {
    expect_success(second, "connector");
    expect_success(first, "listener");
  }
  static void expect_success(os::Child& child, const char* which) {
    const auto status = child.wait_for(100'000);
    ASSERT_TRUE(status.ok() && status->has_value()) << which << " does not end";
    EXPECT_TRUE((*status)->ok()) << which << ": " << (*status)->text();
  }

  Channel to_first, from_first, to_second, from_second;
  os::Child first;
  std::string address;
  os::Child second;
};

}  // namespace cachalot::transfer
