// A peer that a test writes frame by frame, over TCP on this machine: it can lie.
#pragma once

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "os/file_descriptor.h"
#include "transfer/link/frame.h"

namespace cachalot::transfer {

using Bytes = std::vector<std::byte>;

// The first two frames of a peer.
inline Frame hello_of(const std::string& name, std::uint64_t incarnation,
                      const std::map<std::string, std::string>& facts,
                      const std::string& expected = {}) {
  static std::atomic<std::uint64_t> session = 0;  // each connection is one of its own
  BodyWriter body;
  body.text(name).word(incarnation).word(0x7e57).word(++session).text(expected).word(0);
  body.word(0);  // no memory of this machine
  body.word(facts.size());
  for (const auto& [key, value] : facts) body.text(key).text(value);
  return {FrameType::kHello, body.take()};
}
inline Frame reads_of(std::uint64_t reads = 0) {
  return {FrameType::kReads, BodyWriter().word(reads).take()};
}

struct ChunkFrame {
  std::uint64_t push = 1, window = 0, total = 0, offset = 0, flags = 0;
  Bytes payload = {};
  std::optional<FrameTrailer> trailer = {};  // none: a valid one

  Bytes encoded() const {
    Bytes bytes =
        encode({FrameType::kChunk,
                BodyWriter().word(push).word(window).word(total).word(offset).word(flags).take()},
               payload.size());
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    const FrameTrailer end = trailer ? *trailer : make_trailer(PayloadState::kValid, 0);
    const auto* raw = reinterpret_cast<const std::byte*>(&end);
    bytes.insert(bytes.end(), raw, raw + sizeof end);
    return bytes;
  }
};

class RawPeer {
 public:
  explicit RawPeer(os::FileDescriptor fd) : fd_(std::move(fd)) {
    const int on = 1;
    setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  // @param address  "tcp:127.0.0.1:7001"
  static RawPeer connect(const std::string& address) {
    return connect(address, os::FileDescriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)));
  }
  // From another address of this machine: 127.0.0.`host`.
  static RawPeer connect_from(int host, const std::string& address) {
    os::FileDescriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in from{};
    from.sin_family = AF_INET;
    from.sin_addr.s_addr = htonl(0x7f000000u | static_cast<std::uint32_t>(host));
    if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&from), sizeof from) != 0) fd.close();
    return connect(address, std::move(fd));
  }
  static RawPeer connect(const std::string& address, os::FileDescriptor fd) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port =
        htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) fd.close();
    return RawPeer(std::move(fd));
  }

  // @return false: the other side has ended the connection, or does not read
  bool send(const Bytes& bytes) {
    for (std::size_t sent = 0; sent < bytes.size();) {
      pollfd ready{fd_.get(), POLLOUT, 0};
      if (poll(&ready, 1, 5000) != 1) return false;
      const ssize_t count =
          ::send(fd_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count <= 0) return false;
      sent += static_cast<std::size_t>(count);
    }
    return true;
  }
  bool send(const Frame& frame) { return send(encode(frame, 0)); }

  // The next frame, without the payload. None: the connection has ended, or nothing came in time.
  std::optional<Frame> receive(int timeout_ms = 5000) {
    FrameHeader header{};
    if (!read(&header, sizeof header, timeout_ms)) return std::nullopt;
    Frame frame{static_cast<FrameType>(header.type), Bytes(header.body_bytes)};
    if (!read(frame.body.data(), frame.body.size(), timeout_ms)) return std::nullopt;
    if (frame.type == FrameType::kChunk) {
      Bytes payload(header.payload_bytes + sizeof(FrameTrailer));
      if (!read(payload.data(), payload.size(), timeout_ms)) return std::nullopt;
    }
    return frame;
  }
  // Skips what is of other types.
  std::optional<Frame> receive(FrameType type, int timeout_ms = 5000) {
    for (;;) {
      std::optional<Frame> frame = receive(timeout_ms);
      if (!frame || frame->type == type) return frame;
    }
  }
  // The beginning of the next chunk: its payload and trailer are left to read(). None: as receive().
  struct PayloadHead {
    Bytes body;
    std::uint64_t payload_bytes = 0;
  };
  std::optional<PayloadHead> begin_payload(int timeout_ms = 5000) {
    for (;;) {
      FrameHeader header{};
      if (!read(&header, sizeof header, timeout_ms)) return std::nullopt;
      PayloadHead head{Bytes(header.body_bytes), header.payload_bytes};
      if (!read(head.body.data(), head.body.size(), timeout_ms)) return std::nullopt;
      if (static_cast<FrameType>(header.type) == FrameType::kChunk) return head;
    }
  }
  bool read(void* to, std::size_t bytes, int timeout_ms = 5000) {
    for (std::size_t done = 0; done < bytes;) {
      pollfd ready{fd_.get(), POLLIN, 0};
      if (poll(&ready, 1, timeout_ms) != 1) return false;
      const ssize_t count = recv(fd_.get(), static_cast<char*>(to) + done, bytes - done, 0);
      if (count <= 0) {
        has_ended_ = true;
        return false;
      }
      done += static_cast<std::size_t>(count);
    }
    return true;
  }
  int fd() const { return fd_.get(); }
  // @return whether the other side ends the connection
  bool is_closed(int timeout_ms = 5000) {
    while (receive(timeout_ms)) {
    }
    return has_ended_;
  }

 private:
  os::FileDescriptor fd_;
  bool has_ended_ = false;
};

// Waits for the connections of an engine.
class RawListener {
 public:
  RawListener() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    if (bind(fd_.get(), reinterpret_cast<const sockaddr*>(&at), size) != 0 ||
        listen(fd_.get(), 16) != 0 ||
        getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&at), &size) != 0)
      fd_.close();
    address_ = "tcp:127.0.0.1:" + std::to_string(ntohs(at.sin_port));
  }
  const std::string& address() const { return address_; }
  std::optional<RawPeer> accept(int timeout_ms = 5000) {
    pollfd ready{fd_.get(), POLLIN, 0};
    if (poll(&ready, 1, timeout_ms) != 1) return std::nullopt;
    return RawPeer(os::FileDescriptor(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
  }

 private:
  os::FileDescriptor fd_;
  std::string address_;
};

}  // namespace cachalot::transfer
