// Where ClientOptions::copy_cpus lets the copies from and to each device of a pool run.
#pragma once

#include <cachalot/result.h>

#include <memory>
#include <string>
#include <vector>

#include "kv/cpu/copy_homes.h"
#include "os/shared_file.h"
#include "pool/pool.h"

namespace cachalot::client {

// @param root  where /sys is looked for; for tests
// @return null: anywhere
// @errors kInvalidArgument: not "", "auto", or a list of cores for each device
// @cost   "auto": some small files, and a touch of eight pages of each device that is no devdax device
Result<std::shared_ptr<const kv::CopyHomes>> find_copy_homes(const std::string& copy_cpus,
                                                             const pool::Pool& pool,
                                                             const std::string& root = "");

// The cores that are near to a device; none: not known, or different parts of it are near to different ones.
// @param data, bytes  what is mapped of its blocks
std::vector<int> cores_near(os::FileKind kind, const std::string& path, const std::byte* data,
                            std::uint64_t bytes, const std::string& root = "");

}  // namespace cachalot::client
