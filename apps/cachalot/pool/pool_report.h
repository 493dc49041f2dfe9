// What a pool says of itself, as JSON and as a table: the body of `cachalot pool info`.
#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>

#include "pool/pool.h"

namespace cachalot::apps {

// Geometry, keeper, accounting, counters and attached clients (docs/guide/cli.md lists the keys).
// Reads only; works with and without a keeper.
// @param keeper_hangs  as of keeper_hangs()
nlohmann::json describe_pool(const pool::Pool& pool, bool keeper_hangs);

// A keeper says that it serves, here or elsewhere; one that hangs does, too.
bool keeper_serves(const pool::Pool& pool);

// All of it; print_summary() has the most important.
void print_pool(std::FILE* out, const nlohmann::json& description);

}  // namespace cachalot::apps
