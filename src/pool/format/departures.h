// What hosts' agents have written of processes that ended (pool/hosts/host_agent.h). A process that ended stays so:
// these lines count whenever they were written.
#pragma once

#include <cstdint>

#include "pool/format/access.h"
#include "pool/format/evidence.h"

namespace cachalot::pool {

// Whether the agent of the slot's host has seen this process end.
bool is_departed(const Access& access, std::uint32_t client, const ProcessIdentity& process);

// Whether the agent of the keeper's host has seen this keeper's process end.
bool is_departed(const Access& access, const KeeperLine& keeper);

}  // namespace cachalot::pool
