// Serves kCommit: a granted block becomes an entry that every client sees.
//
// @threads  one
#pragma once

#include <cstdint>

#include "pool/format/statistics.h"
#include "pool/keeper/blocks.h"
#include "pool/keeper/directory_writer.h"
#include "pool/keeper/evictor.h"
#include "pool/keeper/namespaces.h"
#include "pool/keeper/sessions.h"
#include "rpc/server.h"

namespace cachalot::pool {

class Commits {
 public:
  Commits(const Access& access, Namespaces& namespaces, Blocks& blocks, DirectoryWriter& directory,
          Evictor& evictor, Sessions& sessions, rpc::Server& server, KeeperCounters& counters)
      : access_(access),
        namespaces_(namespaces),
        blocks_(blocks),
        directory_(directory),
        evictor_(evictor),
        sessions_(sessions),
        server_(server),
        counters_(counters) {}

  void serve(std::uint32_t client, const rpc::Message& message);

 private:
  // Where a chain stands: what the next item is published below.
  struct Chain {
    std::uint32_t namespace_id;
    bool has_parent;
    std::uint32_t parent;  // kNoBlock, though it has one: the parent is not published
  };

  Verdict commit(std::uint32_t client, const CommitItem& item, Chain& chain);
  Verdict reject(std::uint32_t client, std::uint32_t block, Verdict verdict);
  void publish(std::uint32_t client, const CommitItem& item, const Chain& chain,
               std::uint32_t slot);
  std::uint32_t make_room(const BlockHash& hash, std::uint32_t namespace_id, std::uint32_t parent);
  void return_to_grant(std::uint32_t client, std::uint32_t block);

  const Access& access_;
  Namespaces& namespaces_;
  Blocks& blocks_;
  DirectoryWriter& directory_;
  Evictor& evictor_;
  Sessions& sessions_;
  rpc::Server& server_;
  KeeperCounters& counters_;
};

}  // namespace cachalot::pool
