// Network namespaces for the keepers of a replay, so that peers speak over links of their own instead of the loopback device.
//
//   host 0   a bridge, 10.77.0.1, with a port for each other host
//   host i   eth0, 10.77.0.(i+1): the other end of its port
//
// Namespaces belong to the keepers' processes, and end with them. The machine's own network is not touched.
#pragma once

#include <cachalot/result.h>

#include <string>

#include "replay/pool/harness.h"

namespace cachalot::replay {

// Moves the calling thread of the keeper's process, and those that it starts later, to the host's namespace. All keepers
// call it at about the same time; host 0 lays the links.
// @errors kPermission: no namespace can be made; kIo: `ip` or `tc` failed; kTimeout: another host did not come
Status enter_network(const ReplayOptions& options, std::uint32_t host, HarnessState& harness);

// "10.77.0.1"
std::string network_address(std::uint32_t host);

}  // namespace cachalot::replay
