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

namespace cachalot::events {

struct Endpoints {
  std::string live;    // tcp://ADDRESS:PORT or ipc://PATH, bound; connect:ENDPOINT: connected to
  std::string replay;  // likewise, always bound; empty: no replays
  // Their form, without a look at the machine. @errors kInvalidArgument
  Status check() const;
};

class Sockets {
 public:
  // @errors kInvalidArgument: not of the form, no such address here; kBusy: the address is in use; kPermission
  static Result<Sockets> open(const Endpoints& endpoints);
  Sockets(Sockets&&) noexcept;
  Sockets& operator=(Sockets&&) noexcept;
  // Sends what is queued for at most half a second.
  ~Sockets();

  // As bound: with the port that the system chose for port 0 or *.
  const Endpoints& endpoints() const { return endpoints_; }

  // Never waits: subscribers that are too slow miss batches, which they see by the numbers.
  void publish(const Message& message);

  struct Request {
    std::string identity;
    std::uint64_t first = 0;
  };
  // Waits for a replay request. @return whether there is one
  bool wait(std::uint32_t timeout_ms);
  // None: what came is no request.
  std::optional<Request> take_request();
  // Waits up to a second for a slow subscriber. @return false: it is gone or too slow
  bool answer(const Request& to, const Message& message);
  // Ends an answer.
  bool end_answer(const Request& to);

 private:
  struct Zmq;
  explicit Sockets(std::unique_ptr<Zmq> zmq);

  std::unique_ptr<Zmq> zmq_;
  Endpoints endpoints_;
};

}  // namespace cachalot::events
