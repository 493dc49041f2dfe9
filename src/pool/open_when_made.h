// A pool that another process may be making just now.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string>
#include <vector>

#include "pool/pool.h"

namespace cachalot::pool {

// Pool::open(), and again for up to `patience_ms` while another process makes the pool.
// @errors as Pool::open
Result<Pool> open_when_made(const std::vector<std::string>& paths, const OpenOptions& options,
                            std::uint32_t patience_ms);

}  // namespace cachalot::pool
