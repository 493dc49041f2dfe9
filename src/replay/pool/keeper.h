// The keeper's process of one host of a replay: the keeper, and what lies behind the pool.
#pragma once

#include <cachalot/result.h>

#include <string>
#include <vector>

#include "replay/pool/harness.h"
#include "replay/pool/source_marks.h"

namespace cachalot::replay {

// What a host has. All that it refers to outlives the processes.
struct HostPlace {
  std::vector<std::string> pool_paths;
  std::string peer_registry;     // empty: no peers
  SourceMarks* marks = nullptr;  // null: all that is fetched has one source
};

// Serves the pool until harness.keepers_must_end. The keeper is ready when its storage answers and all its peers are there.
// @errors those of the pool, the storage and the peers; kTimeout: peers that do not come
Status keep(const ReplayOptions& options, std::uint32_t host, const HostPlace& place,
            HarnessState& harness);

}  // namespace cachalot::replay
