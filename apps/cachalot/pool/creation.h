// Making a pool takes seconds, and may be interrupted: what there is of it goes first.
#pragma once

#include <cachalot/result.h>

#include <string>

#include "pool/pool.h"

namespace cachalot::apps {

// Pool::create(); a signal that ends the program meanwhile removes the files that it made. At most
// one at a time. @errors as Pool::create
Result<pool::Pool> create_pool(const pool::CreateOptions& options);

}  // namespace cachalot::apps
