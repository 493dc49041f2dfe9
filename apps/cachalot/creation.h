// Making a pool takes seconds, and may be interrupted: what there is of it goes first.
#pragma once

#include <cachalot/result.h>

#include <string>

#include "pool/pool.h"

namespace cachalot::apps {

// Pool::create(); a signal that ends the program meanwhile removes the files that it made. At most
// one at a time. @errors as Pool::create
Result<pool::Pool> create_pool(const pool::Pool::CreateOptions& options);

// True of a file that has no header yet: the maker of a pool writes it last.
bool is_unfinished(const std::string& path);

}  // namespace cachalot::apps
