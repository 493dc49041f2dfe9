// The flags that let a pool read those of other hosts: of `cachalot serve`.
#pragma once

#include <cachalot/result.h>

#include <string>
#include <vector>

#include "flags.h"
#include "node/peers/peers.h"

namespace cachalot::apps {

struct PeerFlags {
  std::string registry;  // empty: no peers
  std::vector<std::string> listen;
  std::string bandwidth;
  std::string key_file;
  bool allows_strangers = false, is_plain = false, keeps_copies = false;

  bool is_given() const { return !registry.empty(); }
  // @errors kInvalidArgument
  Result<node::PeersOptions> options() const;
};

void add_peer_flags(Command& command, PeerFlags& flags);

}  // namespace cachalot::apps
