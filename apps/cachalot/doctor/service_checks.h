// What a keeper would be started with: pools that are there, storage, the registry of other hosts.
#pragma once

#include <optional>
#include <string>

#include "findings.h"
#include "os/secret_key.h"
#include "storage/backends.h"

namespace cachalot::apps {

// What the pool's state is and, where it is a pool, whether `serve` and clients of this user take its files.
Findings check_pool(const std::string& path);
// Servers are asked, for 5 s at most; of folders only the words are checked, for a keeper would make them.
Finding check_storage(const std::string& uri, const storage::BackendSecrets& secrets);
Finding check_registry(const std::string& uri, const std::optional<os::SecretKey>& key);

}  // namespace cachalot::apps
