// The contexts of a pool, as its keeper has written them: blocks that stay, with their prefixes, until a time.
#pragma once

#include <vector>

#include "pool/format/access.h"

namespace cachalot::pool {

// How many a pool has room for: kMaxContexts, fewer where it has few clients, none below five.
std::uint32_t context_room(const Access& access);

// Those that the keeper of this area and epoch has. @cost a line read for each that there is room for
std::vector<ContextLine> read_contexts(const Access& access, std::uint32_t area,
                                       std::uint32_t epoch);

}  // namespace cachalot::pool
