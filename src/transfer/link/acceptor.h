// Takes the connections that wait at a listening socket. If this process has no descriptor for one, it waits in the
// kernel: the socket is not watched for a while, so that nothing spins.
//
// @threads  the progress thread
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <optional>

#include "os/file_descriptor.h"
#include "transfer/link/socket_address.h"

namespace cachalot::transfer {

// Of one progress(): what the connections say is read in between.
inline constexpr int kMostAccepted = 16;

class Acceptor {
 public:
  // @param epoll  is told of connections that wait, with `key`. @errors as listen_at()
  static Result<Acceptor> open(const SocketAddress& address, int epoll, std::uint64_t key);

  // With the port that the system chose.
  const SocketAddress& address() const { return address_; }
  // @return none: none waits, or it cannot be taken now
  std::optional<os::FileDescriptor> accept(std::uint64_t now_ns);
  // Connections may wait of which epoll does not tell: call accept() again within 100 ms.
  bool is_paused() const { return paused_until_ns_ != 0; }

 private:
  Acceptor(ListeningSocket listening, const SocketAddress& address, int epoll, std::uint64_t key)
      : listening_(std::move(listening)), address_(address), epoll_(epoll), key_(key) {}
  void watch(bool is_watched);
  void pause(std::uint64_t now_ns, int error);

  ListeningSocket listening_;
  SocketAddress address_;
  int epoll_;
  std::uint64_t key_;
  std::uint64_t paused_until_ns_ = 0, logged_ns_ = 0;
};

}  // namespace cachalot::transfer
