// Serves kTouch: clients report which blocks they used.
//
// Touches are most of all requests and come in long runs, so their cache misses are overlapped.
//
// @threads  one
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "pool/format/statistics.h"
#include "pool/keeper/evictor.h"
#include "pool/keeper/reign.h"
#include "rpc/server.h"

namespace cachalot::pool {

class Touches {
 public:
  Touches(const Reign& reign, const BlockTable& blocks, Evictor& evictor,
          const BlockObservers& observers, rpc::Server& server, KeeperCounters& counters)
      : reign_(reign),
        blocks_(blocks),
        evictor_(evictor),
        observers_(observers),
        server_(server),
        counters_(counters) {}

  // Serves the touches that `messages` begins with. @return how many
  std::size_t serve(std::uint32_t client, std::span<const rpc::Message> messages);

 private:
  void prefetch(std::span<const rpc::Message> messages);
  std::uint16_t serve_one(const rpc::Message& message);
  std::uint32_t apply(std::uint32_t namespace_id, const BlockUse& use);

  const Reign& reign_;
  const BlockTable& blocks_;
  Evictor& evictor_;
  const BlockObservers& observers_;
  rpc::Server& server_;
  KeeperCounters& counters_;
};

}  // namespace cachalot::pool
