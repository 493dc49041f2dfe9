// Contexts: blocks that clients asked to keep, with their prefixes, until a time. What is called context caching or a prompt
// cache elsewhere: a handle, a time to live, renewed and dropped by the handle.
//
// A kept block is no victim of eviction or of a full bucket, and does not expire by --ttl. An operator evicts it all
// the same, and the context with it. Contexts may keep half of the capacity; those of a namespace with a quota no more
// than that.
//
// The lines of a keeper's contexts are in the pool: a successor has them, by the clock of the day.
//
// Invariants
//   1. tails_ has the block of each context; kept_ counts, for each block, the contexts whose prefix it is in.
//
// @threads  one
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "pool/format/context_lines.h"
#include "pool/format/requests.h"
#include "pool/keeper/block_observer.h"
#include "pool/keeper/directory_writer.h"
#include "pool/keeper/evictor.h"
#include "pool/keeper/keeper_options.h"
#include "pool/keeper/namespaces.h"
#include "pool/keeper/reign.h"
#include "rpc/server.h"

namespace cachalot::pool {

class Contexts final : public BlockObserver {
 public:
  Contexts(const Access& access, const KeeperOptions& options, const Reign& reign,
           const Namespaces& namespaces, const BlockTable& table, DirectoryWriter& directory,
           Evictor& evictor, rpc::Server& server);
  ~Contexts() override { directory_.observers().remove(*this); }
  Contexts(const Contexts&) = delete;
  Contexts& operator=(const Contexts&) = delete;

  void serve(std::uint32_t client, const ContextPayload& wanted);
  // Takes over those of the predecessor whose blocks are there and whose time has not passed.
  void adopt();
  // Drops those whose time has passed; looks about once a second.
  void expire(std::uint64_t now_ns);

  void on_published(const PublishedBlock&) override {}
  void on_removed(std::uint32_t block, const BlockHash& hash) override;
  void on_repaired() override {}

 private:
  struct Context {
    ContextLine line{};  // handle 0: this place is free
    std::uint32_t block = kNoBlock;
  };

  std::uint64_t now_unix_s() const { return options_.unix_s ? options_.unix_s() : 0; }
  Result<ContextAnswer> create(const ContextPayload& wanted);
  Result<ContextAnswer> renew(const ContextPayload& wanted);
  Result<ContextAnswer> drop(const ContextPayload& wanted);
  // Null: none of this namespace has the handle.
  Context* find(const ContextPayload& wanted);
  bool has_room_for(std::uint32_t block) const;
  // Fills a free place, and keeps the prefix of its block.
  void begin(Context& context, const ContextLine& line, std::uint32_t block);
  void end(Context& context);
  void publish(const Context& context) const;

  const Access& access_;
  const KeeperOptions& options_;
  const Reign& reign_;
  const Namespaces& namespaces_;
  const BlockTable& table_;
  DirectoryWriter& directory_;
  Evictor& evictor_;
  rpc::Server& server_;
  std::vector<Context> contexts_;  // a place for each that there is room for
  std::unordered_map<std::uint32_t, std::uint32_t> tails_;  // contexts of each block
  std::unordered_map<std::uint32_t, std::uint32_t> kept_;
  std::vector<std::uint64_t> kept_of_namespace_;  // blocks of kept_, by id
  std::uint32_t created_ = 0;
  std::uint64_t next_look_ns_ = 0;
};

}  // namespace cachalot::pool
