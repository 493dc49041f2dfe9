// The flags of `cachalot serve`, from its command line and its flag file.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>
#include "flags.h"

#include "event_flags.h"
#include "peer_flags.h"
#include "pool/keeper/keeper_options.h"
#include "pool_flags.h"
#include "storage_flags.h"

namespace cachalot::apps {

struct ServeFlags {
  Paths paths;
  bool create = false;
  bool allow_foreign_pool = false;
  GeometryFlags geometry;
  std::string policy = "lru";
  std::uint64_t ttl_s = 0;
  std::vector<std::string> pins, priorities, quotas;
  std::uint32_t max_grants = 256;
  std::uint64_t suspect_after_ms = pool::KeeperOptions{}.suspect_after_ns / 1'000'000;
  EventFlags events;
  bool standby = false;
  bool take_over = false;
  bool without_lost_devices = false;
  std::uint32_t wait_for_devices_s = 60;
  // of pools of several hosts
  std::uint32_t host = 0;
  bool agent = false;
  bool replace_host = false;
  std::uint32_t take_over_after_s = 10;
  std::string log_level = "warn", log_format = "text";
  bool check_config = false;
  std::string metrics;
  std::string json;
  StorageFlags storage;
  PeerFlags peers;

  const Command* command = nullptr;         // that read them
  std::vector<std::string> arguments = {};  // of the command line

  // @errors kInvalidArgument: names the flag
  Result<pool::KeeperOptions> keeper_options() const;
  // Sets the program's log.
  void set_log() const;
};

// @param flags  outlive the command
void add_serve_flags(Command& command, ServeFlags& flags);

// The same command line, with the flag file as it is now.
// @param  command  an empty one, which outlives the result
// @errors kInvalidArgument
Result<std::unique_ptr<ServeFlags>> read_again(const ServeFlags& flags, LooseCommand& command);

}  // namespace cachalot::apps
