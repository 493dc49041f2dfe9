// Client::prefetch.
#pragma once

#include <cachalot/client.h>

#include "client/session.h"
#include "client/share_tp/head_groups.h"

namespace cachalot::client {

Result<Prefetched> prefetch(Session& session, std::span<const BlockHash> hashes,
                            std::uint64_t wait_ns, std::size_t least_blocks = 0);

// Of a rank's blocks. All groups are asked for before one is waited for.
Result<Prefetched> prefetch_groups(Session& session, const HeadGroups& groups,
                                   std::span<const BlockHash> hashes, std::uint64_t wait_ns);

// @param stored  the blocks that a prefetch() found in storage
Result<bool> is_fetching(Session& session, std::span<const BlockHash> stored);

// The same of a rank's blocks: of any group.
Result<bool> is_fetching_groups(Session& session, const HeadGroups& groups,
                                std::span<const BlockHash> stored);

}  // namespace cachalot::client
