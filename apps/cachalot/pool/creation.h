// Making a pool takes seconds, and may be interrupted: what there is of it goes first.
#pragma once

#include <cachalot/result.h>

#include <string>

#include "pool/pool.h"

namespace cachalot::apps {

// Pool::create(); a signal that ends the program meanwhile removes the files that it made. At most
// one at a time. @errors as Pool::create
Result<pool::Pool> create_pool(const pool::CreateOptions& options);

// pool::make_expansion() with the same care.
Result<pool::Expansion> create_expansion(const pool::Access& access, const std::string& path,
                                         std::uint64_t bytes);

}  // namespace cachalot::apps
