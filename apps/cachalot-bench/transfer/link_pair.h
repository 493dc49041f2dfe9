// Payloads from one process to another over one link, without an engine: what a transport can carry.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "transfer/link/link.h"

namespace cachalot::apps::bench {

using OpenTransport = std::function<Result<std::unique_ptr<transfer::Transport>>()>;

struct LinkLoad {
  std::uint64_t payload_bytes = 1 << 20;
  // 0: a payload is one piece on both sides. Otherwise its pieces lie twice as far apart.
  std::uint64_t piece_bytes = 0;
  std::uint64_t payloads = 1000;
  // Payloads that are sent and not acknowledged yet.
  std::uint64_t outstanding = 32;
  bool has_checksum = false;
};

// Every payload is read from the same memory and written into the same memory, as ucx_perftest does.
// @param  listen  "tcp:127.0.0.1:0"
// @return bytes per second, from the first payload until the sender knows that the last one has arrived
// @errors kTimeout; those of the transport
Result<double> run_link_pair(const OpenTransport& open, const std::string& listen,
                             const LinkLoad& load);

}  // namespace cachalot::apps::bench
