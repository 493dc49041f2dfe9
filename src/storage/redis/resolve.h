// Addresses of host names, within a deadline.
//
// @threads any
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string>

namespace cachalot::storage {

// A numeric address. Names are asked for in a thread of their own, because the resolver knows no deadline.
// @errors kTimeout, kIo
Result<std::string> resolve_host(const std::string& host, std::uint64_t deadline_ns);

}  // namespace cachalot::storage
