// What the tests of whole replays share.
#pragma once

#include <string>

#include "replay/pool/replay.h"

namespace cachalot::replay {

inline constexpr const char* kConversation =
    CACHALOT_TEST_ASSETS "/traces/conversation_trace.jsonl.gz";

inline ReplayOptions conversation(memory::DomainKind domain, std::uint32_t engines,
                                  std::uint64_t capacity_blocks, std::uint64_t block_bytes) {
  ReplayOptions options;
  options.trace = kConversation;
  options.domain = memory::domain_name(domain);
  options.engines = engines;
  options.capacity_blocks = capacity_blocks;
  options.block_bytes = block_bytes;
  return options;
}

}  // namespace cachalot::replay
