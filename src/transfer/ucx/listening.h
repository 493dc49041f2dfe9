// What an engine listens on, from what its user has written: "auto" is a unix socket of this machine, and "ucx:" loads
// UCX; all others stay as they are.
#pragma once

#include <cachalot/result.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "os/secret_key.h"
#include "transfer/link/link.h"

namespace cachalot::transfer {

struct Listening {
  std::vector<std::string> addresses;
  std::vector<std::unique_ptr<Transport>> transports;  // those that the engine does not have anyway
};

// @param   name  of the engine, for the name of the socket
// @errors  as open_ucx()
Result<Listening> make_listening(const std::string& name, std::span<const std::string> given);

// The key of a cluster; an empty path: none.
// @errors  those of os::SecretKey::read(); kInvalidArgument: an address whose links cannot be encrypted
Result<std::optional<os::SecretKey>> read_cluster_key(const std::string& path,
                                                      std::span<const std::string> listen);

}  // namespace cachalot::transfer
