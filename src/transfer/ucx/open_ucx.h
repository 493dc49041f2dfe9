// Links over UCX: "ucx:IP:PORT". UCX is loaded when open_ucx() is called; nothing links against it.
//
// UCX trusts its peers: a process that can connect to UCX's ports can write into this process's memory, whatever
// Cachalot checks. Use it on networks where only trusted hosts are. `tcp:` has no such weakness.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <memory>
#include <string>

#include "transfer/link/link.h"

namespace cachalot::transfer {

struct UcxOptions {
  std::string library = "libucp.so.0";  // a name that the loader finds, or a path
  // "tcp", "rc,tcp": as UCX_TLS. Empty: what the environment says, or UCX's choice.
  std::string transports = {};
  // "lo", "eth0", "mlx5_0:1": as UCX_NET_DEVICES. Empty: as above, of the adapter that has the address.
  std::string devices = {};
  // Pieces of at least so many bytes are sent from where they lie, and received where they belong, by rendezvous. For
  // adapters that move bytes themselves (RDMA). Not over TCP: there UCX (1.13 to 1.22, seen) ends the process if a
  // connection breaks at a bad moment; and payload memory is held for up to 100 ms after its owner has closed it
  // (PayloadMemory::close_later), at worst until the link has closed. Without it all pieces are packed.
  std::uint64_t direct_bytes = ~std::uint64_t{0};
  // Empty: as UCX_LOG_LEVEL. For all of this process that uses the same library.
  std::string log_level = "fatal";
};

// @errors kUnsupported: this build has no UCX; kNotFound: the library cannot be loaded; kVersionMismatch;
//         kInvalidArgument: an option that UCX rejects; kIo: no such transport or device
Result<std::unique_ptr<Transport>> open_ucx(const UcxOptions& options);

}  // namespace cachalot::transfer
