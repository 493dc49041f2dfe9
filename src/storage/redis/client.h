// Runs commands on a Redis server, or on the servers of a cluster: each command where its key's slot is.
//
// A cluster's map of slots is asked for when it is needed first, and again after a command was moved or a node
// failed. MOVED and ASK are followed. A command that an idle connection lost is sent again over a new one: all
// commands here can be repeated. One that a new connection lost, or that the server refuses in passing (LOADING, BUSY,
// TRYAGAIN, CLUSTERDOWN), is sent again after a pause (backoff.h).
//
// @threads any
#pragma once

#include <cachalot/result.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "storage/backoff.h"
#include "storage/cancel_signal.h"
#include "storage/redis/node.h"

namespace cachalot::storage {

inline constexpr std::uint32_t kRedisSlots = 16384;

// CRC-16 of the key, or of what its first braces enclose. (Redis cluster specification, "Key distribution model")
std::uint16_t redis_slot(std::string_view key);

struct RedisOptions {
  RedisAddress address;
  RedisLogin login;
  bool is_cluster = false;
  std::uint32_t most_connections = 16;  // to each server
};

class RedisClient {
 public:
  explicit RedisClient(const RedisOptions& options);

  // Runs all commands, and calls take() of each that has a reply which is no redirection.
  // @return the first failure of a command; each has its own status
  Status run(std::span<RedisCommand> commands, std::uint64_t deadline_ns);
  // Runs one command on one server, whatever its slot.
  Status run_on(RedisNode& node, RedisCommand& command, std::uint64_t deadline_ns);
  // Raised, all calls end at once.
  const std::shared_ptr<CancelSignal>& cancel_signal() const { return cancel_; }
  // All servers that own slots. @errors kIo, kTimeout
  Result<std::vector<RedisNode*>> masters(std::uint64_t deadline_ns);

 private:
  using SlotMap = std::array<RedisNode*, kRedisSlots>;
  struct Attempt;

  RedisNode& node_at(const RedisAddress& address);  // under mutex_
  Status ensure_map(std::uint64_t deadline_ns);
  Status ask_for_map(RedisNode& node, std::uint64_t deadline_ns);
  bool take_map(const redisReply& reply, const RedisNode& from);
  RedisNode* owner_of(std::uint16_t slot);
  void mark_stale();
  void run_all(std::vector<Attempt>& attempts, std::uint64_t deadline_ns);
  void run_once(std::vector<Attempt>& attempts, std::uint64_t deadline_ns);
  bool pause(unsigned tries, std::uint64_t deadline_ns);
  void intercept(Attempt& attempt);
  bool postpone(Attempt& attempt, const redisReply& reply);
  bool redirect(Attempt& attempt, const redisReply& reply);

  const RedisOptions options_;
  const std::shared_ptr<CancelSignal> cancel_ = std::make_shared<CancelSignal>();
  std::mutex mutex_;  // all below; nodes are never removed
  std::map<std::string, std::unique_ptr<RedisNode>> nodes_;
  std::unique_ptr<SlotMap> owners_;
  RedisNode* map_source_ = nullptr;  // the node that gave the map; at first the one that was given
  bool is_map_stale_ = true;
  Backoff backoff_;
};

}  // namespace cachalot::storage
