// The two ZeroMQ sockets of a publisher: PUB for the live stream, ROUTER for replays (vLLM's protocol,
// docs/formats/kv-events.md).
//
// @threads one at a time
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "node/events/feed.h"
#include "node/events/peers.h"

namespace cachalot::events {

struct Endpoints {
  std::string live;    // tcp://ADDRESS:PORT or ipc://PATH, bound; connect:ENDPOINT: connected to
  std::string replay;  // likewise, always bound; empty: no replays
  // Their form, and that an ipc PATH leads to no file that is no socket. @errors kInvalidArgument
  Status check() const;
};

class Sockets {
 public:
  // The socket file of a process that has ended is replaced, nothing else (os::SocketFile).
  // @errors kInvalidArgument: not of the form, no such address here, the path leads to a file; kBusy: the address is
  //         in use; kPermission
  // @param limits  of each of the two
  static Result<Sockets> open(const Endpoints& endpoints, PeerLimits limits = {});
  Sockets(Sockets&&) noexcept;
  Sockets& operator=(Sockets&&) noexcept;
  // Sends what is queued for at most half a second.
  ~Sockets();

  // As bound: with the port that the system chose for port 0 or *.
  const Endpoints& endpoints() const { return endpoints_; }

  // Never waits: subscribers that are too slow miss batches, which they see by the numbers.
  void publish(const SharedMessage& message);

  struct Request {
    std::string identity;
    std::uint64_t first = 0;
  };
  // Waits for a replay request. @return whether there is one
  bool wait(std::uint32_t timeout_ms);
  // None: what came is no request.
  std::optional<Request> take_request();

  enum class Sent { kYes, kFull, kGone };  // kFull: not sent, the subscriber has to read first
  // Never waits.
  Sent answer(const std::string& identity, const SharedMessage& message);
  // The end mark, which is sent as a batch is.
  static SharedMessage end_of_answer();

  // To be called every few milliseconds: keeps the limits.
  void tend();

 private:
  struct Zmq;
  explicit Sockets(std::unique_ptr<Zmq> zmq);

  std::unique_ptr<Zmq> zmq_;
  Endpoints endpoints_;
};

}  // namespace cachalot::events
