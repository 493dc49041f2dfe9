// What an operator watches of a pool and its keeper, read from what they publish in the pool.
#pragma once

#include "node/metrics/exposition.h"
#include "pool/pool.h"

namespace cachalot::node {

// Of this process, whether its keeper rules or not: build and role.
void write_process_metrics(Exposition& exposition, bool is_ruling);

// Of the pool, its ruling keeper and all its clients.
// @threads any; asks no process anything and delays none
// @cost    reads some 20 lines of the pool for each client slot
void write_pool_metrics(Exposition& exposition, const pool::Pool& pool);

}  // namespace cachalot::node
