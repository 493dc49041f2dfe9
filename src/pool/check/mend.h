// Mends what a takeover does not write again: keeper lines of other areas, reports, client pages, notes, and the directory of a
// pool that never had a keeper.
//
// The caller is the only keeper, has taken the pool over, and serves no client: then these lines have no other
// writer (R1).
//
// @threads one
#pragma once

#include <cstdint>
#include <functional>

#include "pool/format/access.h"

namespace cachalot::pool {

// @param is_idle  whether no process can write to this client slot's page; other pages stay as they are
// @return         lines and notes that were written; complete on return
std::uint32_t mend_lines(const Access& access,
                         const std::function<bool(std::uint32_t client)>& is_idle);

}  // namespace cachalot::pool
