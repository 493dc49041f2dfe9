// Client::prefetch.
#pragma once

#include <cachalot/client.h>

#include "client/session.h"

namespace cachalot::client {

Result<Prefetched> prefetch(Session& session, std::span<const BlockHash> hashes,
                            std::uint64_t wait_ns);

}  // namespace cachalot::client
