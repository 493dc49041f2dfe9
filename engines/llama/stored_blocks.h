// What storage has of a prompt, as the keeper said when the prompt arrived. Needs no llama.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cachalot::llama {

struct StoredBlocks {
  std::uint64_t asked_ns = 0;         // SteadyClock; 0: storage was not asked
  std::size_t in_pool_blocks = 0;     // leading blocks of the prompt that were in the pool then
  std::size_t in_storage_blocks = 0;  // after them: on their way into the pool since
};

}  // namespace cachalot::llama
