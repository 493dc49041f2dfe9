#include "storage/redis/client.h"

#include <hiredis/hiredis.h>
#include <poll.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <string_view>
#include <utility>

#include "base/clock.h"

namespace cachalot::storage {
namespace {

constexpr int kMostRounds = 8 + Backoff::kMostTries;  // of redirections and repetitions

// CRC-16/XMODEM
std::uint16_t crc16(std::string_view bytes) {
  std::uint32_t crc = 0;
  for (const char byte : bytes) {
    crc ^= static_cast<std::uint32_t>(static_cast<unsigned char>(byte)) << 8;
    for (int bit = 0; bit < 8; ++bit) crc = (crc << 1) ^ ((crc & 0x8000) != 0 ? 0x1021 : 0);
    crc &= 0xffff;
  }
  return static_cast<std::uint16_t>(crc);
}

std::string_view text_of(const redisReply& reply) {
  return reply.str == nullptr ? std::string_view() : std::string_view(reply.str, reply.len);
}

}  // namespace

std::uint16_t redis_slot(std::string_view key) {
  const std::size_t open = key.find('{');
  const std::size_t close = open == std::string_view::npos ? open : key.find('}', open + 1);
  if (close != std::string_view::npos && close > open + 1)
    key = key.substr(open + 1, close - open - 1);
  return static_cast<std::uint16_t>(crc16(key) % kRedisSlots);
}

// A command on its way to a node, perhaps for the second time.
struct RedisClient::Attempt {
  RedisCommand* command;
  RedisNode* node = nullptr;  // null: the owner of its slot
  bool is_fixed = false;      // stays at its node
  bool is_repeated = false;   // an idle connection has lost it once
  bool needs_another = true;  // has to be sent (again)
  bool needs_pause = false;   // before that
  unsigned tries = 0;         // that failed in passing
  Status last = {};           // why the last of them did

  // Its slot may have another owner by then.
  void forget_node() {
    if (is_fixed) return;
    node = nullptr;
    command->is_asking = false;
  }
};

RedisClient::RedisClient(const RedisOptions& options) : options_(options) {
  map_source_ = &node_at(options.address);
}

RedisNode& RedisClient::node_at(const RedisAddress& address) {
  std::unique_ptr<RedisNode>& node = nodes_[address.text()];
  if (!node) node = std::make_unique<RedisNode>(address, options_.login, options_.most_connections);
  return *node;
}

// --- The map of slots ------------------------------------------------------------------------------

RedisNode* RedisClient::owner_of(std::uint16_t slot) {
  const std::lock_guard lock(mutex_);
  if (!options_.is_cluster) return map_source_;
  return owners_ ? (*owners_)[slot] : nullptr;
}

void RedisClient::mark_stale() {
  const std::lock_guard lock(mutex_);
  is_map_stale_ = true;
}

// CLUSTER SLOTS: [first slot, last slot, [host, port, …] of the master, replicas …] each.
bool RedisClient::take_map(const redisReply& reply, const RedisNode& from) {
  if (reply.type != REDIS_REPLY_ARRAY) return false;
  auto owners = std::make_unique<SlotMap>();
  owners->fill(nullptr);
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < reply.elements; ++i) {
    const redisReply& range = *reply.element[i];
    if (range.type != REDIS_REPLY_ARRAY || range.elements < 3) return false;
    const redisReply& first = *range.element[0];
    const redisReply& last = *range.element[1];
    const redisReply& master = *range.element[2];
    if (first.type != REDIS_REPLY_INTEGER || last.type != REDIS_REPLY_INTEGER ||
        first.integer < 0 || last.integer >= kRedisSlots || master.type != REDIS_REPLY_ARRAY ||
        master.elements < 2 || master.element[1]->type != REDIS_REPLY_INTEGER) {
      return false;
    }
    RedisAddress address{{},
                         std::string(text_of(*master.element[0])),
                         static_cast<std::uint16_t>(master.element[1]->integer)};
    // A node that does not know its own address leaves it out.
    if (address.host.empty() || address.host == "?") address.host = from.address().host;
    RedisNode& node = node_at(address);
    for (long long slot = first.integer; slot <= last.integer; ++slot)
      (*owners)[static_cast<std::size_t>(slot)] = &node;
  }
  owners_ = std::move(owners);
  is_map_stale_ = false;
  return true;
}

Status RedisClient::ask_for_map(RedisNode& node, std::uint64_t deadline_ns) {
  // A range of slots has some words for each replica.
  constexpr ReplyBounds kMapBounds{.elements = kRedisSlots * 32, .bytes = 16 << 20};
  RedisCommand command = RedisCommand::make({"CLUSTER", "SLOTS"});
  command.most = kMapBounds;
  Status taken;
  command.take = [&](const redisReply& reply) {
    if (reply.type == REDIS_REPLY_ERROR) {
      taken = error_of_reply(node.text(), reply);
    } else if (!take_map(reply, node)) {
      taken = Error::make(Code::kIo, "redis %.80s: its map of slots is none", node.text().c_str());
    }
  };
  CACHALOT_TRY(run_on(node, command, deadline_ns));
  return taken;
}

Status RedisClient::ensure_map(std::uint64_t deadline_ns) {
  std::vector<RedisNode*> nodes;
  {
    const std::lock_guard lock(mutex_);
    if (!options_.is_cluster || !is_map_stale_) return {};
    nodes.push_back(map_source_);
    for (const auto& [text, node] : nodes_) {
      if (node.get() != map_source_) nodes.push_back(node.get());
    }
  }
  Status answer;
  for (RedisNode* const node : nodes) {
    // Half of what is left each, so that a node that does not answer leaves time for the others.
    const std::uint64_t now_ns = base::SteadyClock::read();
    const std::uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
    answer = ask_for_map(*node, now_ns + left_ns / 2);
    if (!answer) continue;
    const std::lock_guard lock(mutex_);
    map_source_ = node;
    return {};
  }
  const std::lock_guard lock(mutex_);
  return owners_ ? Status() : answer;  // an old map is better than none
}

Result<std::vector<RedisNode*>> RedisClient::masters(std::uint64_t deadline_ns) {
  CACHALOT_TRY(ensure_map(deadline_ns));
  const std::lock_guard lock(mutex_);
  if (!options_.is_cluster) return std::vector<RedisNode*>{map_source_};
  std::set<RedisNode*> found(owners_->begin(), owners_->end());
  found.erase(nullptr);
  return std::vector<RedisNode*>(found.begin(), found.end());
}

// --- Commands --------------------------------------------------------------------------------------

// "MOVED 3999 127.0.0.1:6381" and "ASK 3999 127.0.0.1:6381". @return false: the reply is another one
bool RedisClient::redirect(Attempt& attempt, const redisReply& reply) {
  if (reply.type != REDIS_REPLY_ERROR || !options_.is_cluster || attempt.is_fixed) return false;
  const std::string_view text = text_of(reply);
  const bool is_moved = text.starts_with("MOVED ");
  if (!is_moved && !text.starts_with("ASK ")) return false;
  Result<RedisAddress> address = RedisAddress::parse(text.substr(text.rfind(' ') + 1));
  if (!address) return false;
  const std::lock_guard lock(mutex_);
  RedisNode& target = node_at(*address);
  attempt.node = &target;
  attempt.needs_another = true;
  attempt.command->is_asking = !is_moved;
  if (is_moved) {
    if (owners_) (*owners_)[attempt.command->slot] = &target;
    is_map_stale_ = true;
  }
  return true;
}

void RedisClient::run_once(std::vector<Attempt>& attempts, std::uint64_t deadline_ns) {
  // In the order of their addresses, so that no two calls wait for each other's connections.
  std::map<RedisNode*, std::vector<Attempt*>> by_node;
  for (Attempt& attempt : attempts) {
    if (!attempt.needs_another) continue;
    attempt.needs_another = false;
    if (attempt.node == nullptr) attempt.node = owner_of(attempt.command->slot);
    if (attempt.node != nullptr) {
      by_node[attempt.node].push_back(&attempt);
    } else {
      attempt.command->status = Error::make(Code::kIo, "redis: no server has slot %u",
                                            static_cast<unsigned>(attempt.command->slot));
    }
  }
  std::vector<RedisPipeline> pipelines;
  std::vector<std::unique_ptr<RedisConnection>> connections;
  std::vector<std::pair<RedisNode*, std::vector<Attempt*>*>> used;
  for (auto& [node, those] : by_node) {
    Result<std::unique_ptr<RedisConnection>> connection = node->take(deadline_ns);
    if (!connection) {
      for (Attempt* const attempt : those) attempt->command->status = connection.error();
      mark_stale();
      continue;
    }
    std::vector<RedisCommand*> commands;
    for (Attempt* const attempt : those) commands.push_back(attempt->command);
    pipelines.emplace_back(**connection, std::move(commands), node->text());
    connections.push_back(*std::move(connection));
    used.emplace_back(node, &those);
  }
  RedisPipeline::run(pipelines, deadline_ns, *cancel_);
  for (std::size_t i = 0; i < pipelines.size(); ++i) {
    const Status& status = pipelines[i].status();
    // Perhaps the server has only closed what was idle, for example when it was restarted.
    const bool is_idle_lost =
        !status && status.error().code == Code::kIo && connections[i]->is_reused();
    const std::size_t answered = pipelines[i].commands().size() - pipelines[i].unanswered().size();
    for (std::size_t k = answered; !status && k < used[i].second->size(); ++k) {
      Attempt& attempt = *(*used[i].second)[k];
      const bool is_first = is_idle_lost && !std::exchange(attempt.is_repeated, true);
      attempt.needs_pause = !is_first && is_lost(status) && ++attempt.tries < Backoff::kMostTries;
      attempt.needs_another = is_first || attempt.needs_pause;
      attempt.last = status;
      if (attempt.needs_pause) attempt.forget_node();
    }
    if (!status) mark_stale();
    used[i].first->give_back(std::move(connections[i]), status.ok());
  }
}

// Whether the server has refused it in passing, and it is to be sent again.
bool RedisClient::postpone(Attempt& attempt, const redisReply& reply) {
  if (!is_passing(reply)) return false;
  if (++attempt.tries >= Backoff::kMostTries) return false;
  attempt.last = error_of_reply(attempt.node->text(), reply);
  attempt.needs_another = attempt.needs_pause = true;
  attempt.forget_node();
  mark_stale();
  return true;
}

void RedisClient::intercept(Attempt& attempt) {
  attempt.command->take = [this, &attempt,
                           take = std::move(attempt.command->take)](const redisReply& reply) {
    if (!redirect(attempt, reply) && !postpone(attempt, reply)) take(reply);
  };
}

// @return false: the deadline would be over, or the call was cancelled
bool RedisClient::pause(unsigned tries, std::uint64_t deadline_ns) {
  std::uint64_t pause_ns = 0;
  {
    const std::lock_guard lock(mutex_);
    pause_ns = backoff_.next_ns(tries);
  }
  const std::uint64_t now_ns = base::SteadyClock::read();
  if (now_ns + pause_ns >= deadline_ns) return false;
  pollfd cancelled{cancel_->fd(), POLLIN, 0};
  const timespec time{static_cast<time_t>(pause_ns / 1'000'000'000),
                      static_cast<long>(pause_ns % 1'000'000'000)};
  (void)::ppoll(&cancelled, 1, &time, nullptr);
  return !cancel_->is_raised();
}

void RedisClient::run_all(std::vector<Attempt>& attempts, std::uint64_t deadline_ns) {
  for (int round = 0; round < kMostRounds; ++round) {
    run_once(attempts, deadline_ns);
    unsigned tries = 0;
    bool is_over = true;
    for (Attempt& attempt : attempts) {
      is_over = is_over && !attempt.needs_another;
      if (attempt.needs_another && std::exchange(attempt.needs_pause, false))
        tries = std::max(tries, attempt.tries);
    }
    if (is_over || (tries != 0 && !pause(tries, deadline_ns))) break;
    if (tries != 0 && !attempts[0].is_fixed) (void)ensure_map(deadline_ns);
  }
  for (Attempt& attempt : attempts) {
    if (!attempt.needs_another || !attempt.command->status) continue;
    attempt.command->status = Error::make(Code::kIo, "redis: redirected too often");
    if (!attempt.last) attempt.command->status = attempt.last.error();
  }
}

Status RedisClient::run(std::span<RedisCommand> commands, std::uint64_t deadline_ns) {
  if (commands.empty()) return {};
  if (const Status mapped = ensure_map(deadline_ns); !mapped) {
    for (RedisCommand& command : commands) command.status = mapped;
    return mapped;
  }
  std::vector<Attempt> attempts(commands.size());
  for (std::size_t i = 0; i < commands.size(); ++i) {
    attempts[i].command = &commands[i];
    intercept(attempts[i]);
  }
  run_all(attempts, deadline_ns);
  for (const Attempt& attempt : attempts) CACHALOT_TRY(attempt.command->status);
  return {};
}

Status RedisClient::run_on(RedisNode& node, RedisCommand& command, std::uint64_t deadline_ns) {
  std::vector<Attempt> attempts(1);
  attempts[0].command = &command;
  attempts[0].node = &node;
  attempts[0].is_fixed = true;
  intercept(attempts[0]);
  run_all(attempts, deadline_ns);
  return command.status;
}

}  // namespace cachalot::storage
