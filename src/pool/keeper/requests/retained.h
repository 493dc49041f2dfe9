// Soft retention: prefixes that sessions, as those of agents, will use again soon. A bias, never a lock: they go last.
//
// A session retains one prefix, until a time; its next one takes the place of the one before. While there is any other
// leaf, a retained block is no victim. Then, and if sessions retain more than half of the capacity, the one that spoke
// longest ago gives way. A full bucket, an operator and --ttl spare none.
//
// A successor does not have them: engines say it again with the session's next request.
//
// Invariants
//   1. sessions_ is in the order in which they spoke; by_name_ and tails_ name its members.
//   2. held_ counts, for each block, the sessions whose prefix it is in.
//
// @threads  one
#pragma once

#include <cstdint>
#include <list>
#include <unordered_map>

#include "pool/format/requests.h"
#include "pool/keeper/block_observer.h"
#include "pool/keeper/directory_writer.h"
#include "pool/keeper/evictor.h"
#include "pool/keeper/keeper_options.h"
#include "pool/keeper/namespaces.h"
#include "rpc/server.h"

namespace cachalot::pool {

class Retained final : public BlockObserver {
 public:
  static constexpr std::uint32_t kMostSessions = 65'536;

  Retained(const KeeperOptions& options, const Namespaces& namespaces, Blocks& blocks,
           DirectoryWriter& directory, Evictor& evictor, rpc::Server& server);
  ~Retained() override { directory_.observers().remove(*this); }
  Retained(const Retained&) = delete;
  Retained& operator=(const Retained&) = delete;

  void serve(std::uint32_t client, const ContextPayload& wanted);
  // Ends those whose time has passed; looks about once a second.
  void expire(std::uint64_t now_ns);

  void on_published(const PublishedBlock&) override {}
  void on_removed(std::uint32_t block, const BlockHash& hash) override;
  void on_repaired() override {}

 private:
  struct Session {
    std::uint64_t name;  // mixed with its namespace
    std::uint32_t block;
    std::uint32_t blocks;  // of the prefix
    std::uint64_t ends_unix_s;
  };
  using Sessions = std::list<Session>;

  Result<ContextAnswer> retain(const ContextPayload& wanted);
  void begin(std::uint64_t name, std::uint32_t block, std::uint64_t ends_unix_s);
  // @param is_removed  its last block is not in the tree any more
  Sessions::iterator end(Sessions::iterator session, bool is_removed);
  bool give_way();

  const KeeperOptions& options_;
  const Namespaces& namespaces_;
  Blocks& blocks_;
  DirectoryWriter& directory_;
  Evictor& evictor_;
  rpc::Server& server_;
  Sessions sessions_;
  std::unordered_map<std::uint64_t, Sessions::iterator> by_name_;
  std::unordered_multimap<std::uint32_t, Sessions::iterator> tails_;
  std::unordered_map<std::uint32_t, std::uint32_t> held_;
  std::uint64_t next_look_ns_ = 0;
};

}  // namespace cachalot::pool
