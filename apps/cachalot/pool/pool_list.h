// The pools of a machine, found by their first bytes.
#pragma once

#include <string>
#include <vector>
#include "flags.h"

#include "command.h"

namespace cachalot::apps {

// First devices of pools among the regular files of a folder, in the order of their names. What cannot be read is left out.
std::vector<std::string> find_pools(const std::string& folder);

// Says how many files this user may not read: pools of other users may be among them. "" if there is none.
std::string unreadable_note(const std::string& folder);

inline constexpr const char* kPoolFolder = "/dev/shm";

void add_pool_list(Command& pool, Chosen& chosen);  // `pool` is the command above

}  // namespace cachalot::apps
