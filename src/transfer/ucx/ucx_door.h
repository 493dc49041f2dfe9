// How a peer finds UCX's port: it asks at the address that the engine has published.
//
//   caller -> listener   DoorCall     16 bytes
//   listener -> caller   DoorAnswer   16 bytes: the port at which UCX expects the caller now
//
// UCX's own listener ends the process when bytes come that are not of UCX (a health check is enough). So it only
// listens while a caller is expected, at a port that the system chooses; the published port checks what it reads.
//
// @threads  the progress thread
#pragma once

#include <cachalot/result.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <optional>

#include "os/file_descriptor.h"
#include "transfer/link/acceptor.h"
#include "transfer/link/socket_address.h"

namespace cachalot::transfer {

struct DoorCall {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t reserved[5];
};
struct DoorAnswer {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t port;
  std::uint64_t reserved;
};
static_assert(sizeof(DoorCall) == 16 && sizeof(DoorAnswer) == 16);

class UcxDoor {
 public:
  // @param epoll  is told about its sockets. @errors as listen_at()
  static Result<UcxDoor> open(const SocketAddress& address, int epoll);

  // With the port that the system chose.
  const SocketAddress& address() const { return acceptor_.address(); }
  // Answers callers. @param expect  makes UCX listen. @return its port
  void progress(std::uint64_t now_ns, const std::function<Result<std::uint16_t>()>& expect);
  // Callers that have not said all yet: they are dropped after some seconds.
  bool has_callers() const { return !callers_.empty(); }
  // Callers wait that cannot be accepted now.
  bool is_paused() const { return acceptor_.is_paused(); }

 private:
  struct Caller {
    os::FileDescriptor fd;
    std::uint64_t until_ns = 0;
    std::array<std::byte, sizeof(DoorCall)> bytes = {};
    std::size_t count = 0;
  };
  UcxDoor(Acceptor acceptor, int epoll) : acceptor_(std::move(acceptor)), epoll_(epoll) {}
  void accept_all(std::uint64_t now_ns);
  // @return whether it is done with
  bool serve(Caller& caller, const std::function<Result<std::uint16_t>()>& expect);

  Acceptor acceptor_;
  int epoll_;
  std::list<Caller> callers_;
};

class UcxDoorCall {
 public:
  // Begins to connect. @errors as begin_connect()
  static Result<UcxDoorCall> begin(const SocketAddress& address, int epoll);
  // @return nothing yet; where UCX listens; or kIo, kVersionMismatch, kBadInput
  std::optional<Result<SocketAddress>> progress();

 private:
  UcxDoorCall(os::FileDescriptor fd, const SocketAddress& address)
      : fd_(std::move(fd)), address_(address) {}

  os::FileDescriptor fd_;
  SocketAddress address_;
  bool is_sent_ = false;
  std::array<std::byte, sizeof(DoorAnswer)> bytes_ = {};
  std::size_t count_ = 0;
};

}  // namespace cachalot::transfer
