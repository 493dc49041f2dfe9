// The devices that a growable pool gets and gives up while it is served.
//
// A device is added in three steps: whatever adds it writes its header; the keeper maps it and publishes a table that names
// it, complete; only then it hands out blocks of it. So a client that gets such a block, or finds it in the directory,
// and reads the table after that, finds the device there.
//
// A device is given up the other way round: the table says so, and clients return what they hold of it in advance; the
// keeper hands out no block of it and evicts those that are published; once none is granted, quarantined or in limbo, the
// table does not name it any more. The last device goes first.
//
// @threads  one
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <functional>
#include <string>

#include "pool/expansion/expansion_memory.h"
#include "pool/format/requests.h"
#include "pool/keeper/blocks.h"
#include "pool/keeper/evictor.h"
#include "pool/keeper/reign.h"
#include "rpc/server.h"

namespace cachalot::pool {

class Expansions {
 public:
  Expansions(const Access& access, const Reign& reign, Blocks& blocks, Evictor& evictor,
             rpc::Server& server)
      : access_(access), reign_(reign), blocks_(blocks), evictor_(evictor), server_(server) {}

  // At the beginning of a takeover: the predecessor's table, as far as its devices can be mapped here. Blocks on others
  // are lost.
  void adopt();
  void serve(std::uint32_t client, const rpc::Message& message);
  // Writes the table anew where it was damaged. @return lines that were mended
  std::uint32_t mend() const;
  // Says in the log, once a minute, which device was removed. @cost looking each path up
  void look_after_names() const;

 private:
  Result<ExpansionAnswer> act(const ExpansionPayload& wanted, const rpc::Message& message);
  Status add(const std::string& path, const PoolId& serial);
  Status give_up(const PoolId& serial);
  Status keep();
  std::uint32_t first_of_last() const;
  void publish(std::size_t first_new);
  void forget_lost(const std::function<bool(const Expansion&)>& is_it);

  const Access& access_;
  const Reign& reign_;
  Blocks& blocks_;
  Evictor& evictor_;
  rpc::Server& server_;
  ExpansionTable table_;
  std::uint32_t changes_ = 0;
};

}  // namespace cachalot::pool
