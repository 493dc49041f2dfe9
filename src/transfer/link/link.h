// One connection to a peer, and what makes connections. Everything here runs in the engine's progress thread.
//
// 1. Frames arrive in the order in which they were sent. Payloads are written into the memory that the receiver has
//    named, never into an address of the sender's choice.
// 2. Nothing blocks, and nothing spins: progress() does what can be done now, and fd() says when there is more.
// 3. on_closed() is the last event of a link. No memory of a payload is touched after it.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "transfer/link/frame.h"
#include "transfer/link/payload_memory.h"

namespace cachalot::transfer {

class Link;

// Bytes [offset, offset + bytes) of a stream, which follow a frame.
struct OutgoingPayload {
  Frame frame;  // kChunk
  std::shared_ptr<PayloadMemory> memory;
  std::uint64_t offset = 0, bytes = 0;
  bool has_checksum = false;
};

// Where the bytes after a frame go.
struct IncomingPayload {
  std::shared_ptr<PayloadMemory> memory;  // null: they are read and dropped
  std::uint64_t offset = 0;
  bool has_checksum = false;
  bool is_damaged = false;  // tests: one byte is changed on its way
};

// Of frames that wait to be sent on a link. A peer that asks and does not read its answers would fill the memory: the
// link closes.
inline constexpr std::uint64_t kMostWaitingBytes = 32u << 20;
inline constexpr std::uint64_t kMostStrangerWaitingBytes = 256u << 10;
inline Error unread(const std::string& peer_address, std::uint64_t bytes) {
  return Error::make(Code::kBadInput, "%s: the peer does not read: %llu bytes wait for it",
                     peer_address.c_str(), static_cast<unsigned long long>(bytes));
}

enum class PayloadEnd {
  kWritten,  // all bytes are in the memory, and the checksum matches
  kVoid,     // the sender withdrew it, or the receiver closed the memory: the bytes mean nothing
  kCorrupt,  // the checksum does not match
};

class LinkEvents {
 public:
  virtual ~LinkEvents() = default;

  virtual void on_frame(Link& link, Frame frame) = 0;
  virtual IncomingPayload on_payload(Link& link, const Frame& frame, std::uint64_t bytes) = 0;
  virtual void on_payload_end(Link& link, const Frame& frame, std::uint64_t bytes,
                              PayloadEnd end) = 0;
  // The link can take a payload now. @return false: there is none; call wants_payload() when there is
  virtual bool next_payload(Link& link, OutgoingPayload& payload) = 0;
  // The memory of the payload is not read any more.
  virtual void on_payload_sent(Link& link, const OutgoingPayload& payload) = 0;
  virtual void on_closed(Link& link, const Error& error) = 0;
};

class Link {
 public:
  virtual ~Link() = default;

  virtual void send(const Frame& frame) = 0;
  // next_payload() has something again.
  virtual void wants_payload() = 0;
  // Ends the connection. on_closed() comes from a later progress().
  virtual void close(const Error& error) = 0;
  // The peer's process, if it is on this machine and in this pid namespace; 0 otherwise. The kernel says it, not the
  // peer.
  virtual std::uint32_t peer_process() const = 0;
  // All that came, read or not, for seeing that the peer lives.
  virtual std::uint64_t received_bytes() const = 0;
  // For messages: "tcp:10.0.0.2:7001".
  virtual const std::string& peer_address() const = 0;
  // Of frames that were not sent yet.
  virtual std::uint64_t waiting_bytes() const { return 0; }

  // The peer is one that this engine has called, or that has shown that it belongs here. Others have little memory, for
  // any process may connect.
  void trust() { is_trusted_ = true; }
  std::uint32_t most_body_bytes() const {
    return is_trusted_ ? kMostBodyBytes : kMostStrangerBodyBytes;
  }
  std::uint64_t most_waiting_bytes() const {
    return is_trusted_ ? kMostWaitingBytes : kMostStrangerWaitingBytes;
  }

 private:
  bool is_trusted_ = false;
};

class Transport {
 public:
  virtual ~Transport() = default;

  // "tcp", "unix", "ucx": the part of an address before the first colon that this transport understands.
  virtual bool understands(std::string_view address) const = 0;
  // @return the address that peers connect to. @errors kInvalidArgument, kBusy, kPermission, kIo
  virtual Result<std::string> listen(std::string_view address) = 0;
  // Begins to connect. The link exists at once; it closes with an error if the peer cannot be reached.
  // @errors kInvalidArgument: not an address
  virtual Result<Link*> connect(std::string_view address) = 0;
  // Called once, before anything else. @param accepted  for connections of peers
  virtual void start(LinkEvents& events, std::function<void(Link&)> accepted) = 0;

  // Does what can be done without waiting. @return whether there may be more
  virtual bool progress() = 0;
  // Readable when progress() has something to do, after arm() has returned true.
  virtual int fd() const = 0;
  // @return false: something has come meanwhile, call progress() instead of waiting
  virtual bool arm() = 0;
  // Connections wait that cannot be accepted now: progress() is to be called again within 100 ms.
  virtual bool is_paused() const { return false; }
  // Memory in which payloads are packed, of all links.
  virtual std::uint64_t staging_bytes() const { return 0; }
};

}  // namespace cachalot::transfer
