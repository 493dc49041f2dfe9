// What an engine listens on, from what its user has written: "auto" is a unix socket of this machine, and "ucx:" loads
// UCX; all others stay as they are.
#pragma once

#include <cachalot/result.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transfer/link/link.h"

namespace cachalot::transfer {

struct Listening {
  std::vector<std::string> addresses;
  std::vector<std::unique_ptr<Transport>> transports;  // those that the engine does not have anyway
};

// @param   name  of the engine, for the name of the socket
// @errors  as open_ucx()
Result<Listening> make_listening(const std::string& name, std::span<const std::string> given);

}  // namespace cachalot::transfer
