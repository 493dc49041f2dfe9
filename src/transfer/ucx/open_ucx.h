// Links over UCX: "ucx:IP:PORT". UCX is loaded when open_ucx() is called; nothing links against it.
//
// UCX trusts its peers: a process that can connect to UCX's ports can write into this process's memory, whatever
// Cachalot checks. Use it on networks where only trusted hosts are. `tcp:` has no such weakness.
#pragma once

#include <cachalot/result.h>

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
  // Empty: as UCX_LOG_LEVEL. For all of this process that uses the same library.
  std::string log_level = "fatal";
};

// @errors kUnsupported: this build has no UCX; kNotFound: the library cannot be loaded; kVersionMismatch;
//         kInvalidArgument: an option that UCX rejects; kIo: no such transport or device
Result<std::unique_ptr<Transport>> open_ucx(const UcxOptions& options);

}  // namespace cachalot::transfer
