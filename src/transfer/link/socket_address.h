// Addresses of sockets: "tcp:10.0.0.1:7001", "tcp:[::1]:7001", "unix:@name" (abstract), "unix:/path".
#pragma once

#include <cachalot/result.h>
#include <sys/socket.h>

#include <string>
#include <string_view>

#include "os/file_descriptor.h"
#include "os/socket_file.h"

namespace cachalot::transfer {

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t bytes = 0;

  bool is_unix() const { return storage.ss_family == AF_UNIX; }
  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  // As parse() reads it.
  std::string text() const;

  // Numeric addresses only: a name would have to be resolved, which blocks.
  // @errors kInvalidArgument
  static Result<SocketAddress> parse(std::string_view text);
};

struct ListeningSocket {
  os::FileDescriptor fd;
  os::SocketFile file;  // of unix:/PATH
};
// @return a socket that listens, without blocking. Port 0: the system chooses.
// @errors kBusy, kPermission, kIo; kInvalidArgument, kNotFound: as os::SocketFile
Result<ListeningSocket> listen_at(const SocketAddress& address);
// Begins to connect. @param from  the local address, for machines with several adapters; null: any. @errors kIo
Result<os::FileDescriptor> begin_connect(const SocketAddress& address,
                                         const SocketAddress* from = nullptr);
Result<SocketAddress> local_address(int fd);
Result<SocketAddress> remote_address(int fd);
// Lets a TCP connection within this machine send without BBR's timers, if BBR is the system's default. There is no
// network to spare, and the timers cost: on a virtual machine 7.6 GB/s became 9.3 without them.
void stop_pacing_within_machine(int fd);

}  // namespace cachalot::transfer
