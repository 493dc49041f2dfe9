// Takes each request of a client to the part of the keeper that serves it.
//
// Requests of another epoch are refused (W5).
//
// @threads  one
#pragma once

#include <cstdint>
#include <span>

#include "pool/format/statistics.h"
#include "pool/keeper/blocks.h"
#include "pool/keeper/directory_writer.h"
#include "pool/keeper/evictor.h"
#include "pool/keeper/keeper_options.h"
#include "pool/keeper/namespaces.h"
#include "pool/keeper/reign.h"
#include "pool/keeper/requests/commits.h"
#include "pool/keeper/requests/contexts.h"
#include "pool/keeper/requests/expansions.h"
#include "pool/keeper/requests/grants.h"
#include "pool/keeper/requests/retained.h"
#include "pool/keeper/requests/touches.h"
#include "pool/keeper/sessions.h"
#include "pool/keeper/storage_desk.h"
#include "rpc/server.h"

namespace cachalot::pool {

class Dispatcher final : public rpc::RequestHandler {
 public:
  Dispatcher(const Access& access, const KeeperOptions& options, const Reign& reign,
             Namespaces& namespaces, Blocks& blocks, DirectoryWriter& directory, Evictor& evictor,
             Sessions& sessions, rpc::Server& server, KeeperCounters& counters);

  void on_requests(std::uint32_t client, std::span<const rpc::Message> messages) override;

  void set_storage_desk(StorageDesk* desk) { storage_desk_ = desk; }
  void set_max_grants(std::uint32_t max_grants) { grants_.set_max_grants(max_grants); }

  Contexts& contexts() { return contexts_; }
  Retained& retained() { return retained_; }
  Expansions& expansions() { return expansions_; }
  // True once a client has asked the keeper to end.
  bool stop_requested() const { return stop_requested_; }

 private:
  void serve(std::uint32_t client, const rpc::Message& message);
  void serve_namespace(std::uint32_t client, const rpc::Message& message);
  void serve_evict(std::uint32_t client, const rpc::RequestHead& head);
  void serve_context(std::uint32_t client, const rpc::RequestHead& head);
  void serve_detach(std::uint32_t client);
  void serve_fence(std::uint32_t client, const rpc::RequestHead& head);
  void serve_storage(std::uint32_t client, const rpc::Message& message);

  const Access& access_;
  const Reign& reign_;
  Namespaces& namespaces_;
  const DirectoryWriter& directory_;
  Evictor& evictor_;
  Sessions& sessions_;
  rpc::Server& server_;
  KeeperCounters& counters_;
  Touches touches_;
  Grants grants_;
  Commits commits_;
  Contexts contexts_;
  Retained retained_;
  Expansions expansions_;
  StorageDesk* storage_desk_ = nullptr;
  bool stop_requested_ = false;
};

}  // namespace cachalot::pool
