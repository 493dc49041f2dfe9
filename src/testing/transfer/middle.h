// A machine between two peers: passes on what they send over TCP, record by record of TLS (or as it comes, if it is not
// TLS), keeps it, and does what a test says to it.
#pragma once

#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "testing/transfer/raw_peer.h"

namespace cachalot::transfer {

class Middle {
 public:
  // What is passed on instead of a piece; nothing at all: the connections end.
  using Pieces = std::vector<Bytes>;
  // @param number  of the piece on its way, from 0 on
  using Change =
      std::function<std::optional<Pieces>(bool to_target, std::size_t number, Bytes piece)>;

  Middle(std::string target, bool is_tls, Change change = {})
      : target_(std::move(target)), is_tls_(is_tls), change_(std::move(change)) {
    thread_ = std::thread([this] { run(); });
  }
  ~Middle() {
    ends_ = true;
    thread_.join();
  }
  const std::string& address() const { return listener_.address(); }
  // What came from the peer that has called, the first 16 MiB.
  Bytes recorded() const {
    const std::lock_guard lock(mutex_);
    return recorded_;
  }
  bool has_seen(std::span<const std::byte> bytes) const {
    const Bytes all = recorded();
    return std::search(all.begin(), all.end(), bytes.begin(), bytes.end()) != all.end();
  }

 private:
  static constexpr std::size_t kRecordedBytes = 16 << 20;
  struct Way {
    int from = -1, to = -1;
    Bytes waiting;
    std::size_t number = 0;
  };
  void run() {
    std::vector<RawPeer> ends;
    std::array<Way, 2> ways;
    while (!ends_) {
      if (ends.empty()) {
        std::optional<RawPeer> caller = listener_.accept(10);
        if (!caller) continue;
        RawPeer target = RawPeer::connect(target_);
        ways = {Way{caller->fd(), target.fd(), {}, 0}, Way{target.fd(), caller->fd(), {}, 0}};
        ends.push_back(*std::move(caller));
        ends.push_back(std::move(target));
      }
      std::array<pollfd, 2> fds{pollfd{ways[0].from, POLLIN, 0}, pollfd{ways[1].from, POLLIN, 0}};
      if (poll(fds.data(), 2, 10) <= 0) continue;
      for (std::size_t i = 0; i < 2; ++i) {
        if (fds[i].revents == 0 || pass(ways[i], ends[1 - i], i == 0)) continue;
        ends.clear();
        break;
      }
    }
  }
  bool pass(Way& way, RawPeer& to, bool to_target) {
    Bytes bytes(1 << 16);
    const ssize_t count = recv(way.from, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count <= 0) return false;
    bytes.resize(static_cast<std::size_t>(count));
    if (to_target) record(bytes);
    way.waiting.insert(way.waiting.end(), bytes.begin(), bytes.end());
    while (const std::size_t next = piece_bytes(way.waiting)) {
      const auto end = way.waiting.begin() + static_cast<std::ptrdiff_t>(next);
      Bytes piece(way.waiting.begin(), end);
      way.waiting.erase(way.waiting.begin(), end);
      Pieces pieces{piece};
      if (change_) {
        std::optional<Pieces> changed = change_(to_target, way.number, std::move(piece));
        if (!changed) return false;
        pieces = *std::move(changed);
      }
      ++way.number;
      for (const Bytes& one : pieces) {
        // What was one piece does not arrive together.
        if (&one != &pieces.front()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        if (!to.send(one)) return false;
      }
    }
    return true;
  }
  void record(const Bytes& bytes) {
    const std::lock_guard lock(mutex_);
    if (recorded_.size() < kRecordedBytes)
      recorded_.insert(recorded_.end(), bytes.begin(), bytes.end());
  }
  // 0: it has not come whole.
  std::size_t piece_bytes(const Bytes& bytes) const {
    constexpr std::size_t kHeader = 5;
    if (!is_tls_) return bytes.size();
    if (bytes.size() < kHeader) return 0;
    const std::size_t all = kHeader + std::to_integer<std::size_t>(bytes[3]) * 256 +
                            std::to_integer<std::size_t>(bytes[4]);
    return bytes.size() < all ? 0 : all;
  }

  const std::string target_;
  const bool is_tls_;
  const Change change_;
  RawListener listener_;
  std::atomic<bool> ends_{false};
  mutable std::mutex mutex_;
  Bytes recorded_;
  std::thread thread_;
};

}  // namespace cachalot::transfer
