// Serves kGrant and kGiveBack: free blocks that clients get in advance, and return unused.
//
// A grant is in the ledger, and the tombstones of its blocks are complete (W4), before it is answered.
//
// @threads  one
#pragma once

#include <cstdint>

#include "pool/format/statistics.h"
#include "pool/keeper/blocks.h"
#include "pool/keeper/evictor.h"
#include "pool/keeper/sessions.h"
#include "rpc/server.h"

namespace cachalot::pool {

class Grants {
 public:
  // @param max_grants  blocks one client may hold at a time
  Grants(const Access& access, std::uint32_t max_grants, Blocks& blocks, Evictor& evictor,
         Sessions& sessions, rpc::Server& server, KeeperCounters& counters)
      : access_(access),
        max_grants_(max_grants),
        blocks_(blocks),
        evictor_(evictor),
        sessions_(sessions),
        server_(server),
        counters_(counters) {}

  void set_max_grants(std::uint32_t max_grants) { max_grants_ = max_grants; }

  void serve_grant(std::uint32_t client, const rpc::RequestHead& head);
  void serve_give_back(std::uint32_t client, const rpc::Message& message);

 private:
  std::uint32_t take_free_block();

  const Access& access_;
  std::uint32_t max_grants_;
  Blocks& blocks_;
  Evictor& evictor_;
  Sessions& sessions_;
  rpc::Server& server_;
  KeeperCounters& counters_;
};

}  // namespace cachalot::pool
