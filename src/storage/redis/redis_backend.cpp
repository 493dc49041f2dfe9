#include "storage/redis/redis_backend.h"

#include <hiredis/hiredis.h>

#include <algorithm>
#include <charconv>
#include <unordered_set>

#include "base/log.h"
#include "storage/open_kinds.h"
#include "storage/value.h"

namespace cachalot::storage {
namespace {

constexpr std::uint64_t kMostValueBytes = 512 << 20;  // Redis' proto-max-bulk-len
constexpr const char* kScanCount = "1000";
// Names of one SCAN: it gives a few more than were asked for.
constexpr ReplyBounds kScanBounds{.elements = 64'000, .bytes = 32 << 20};
constexpr const char* kDefaultPrefix = "cachalot";

Error refusal_of(const redisReply& reply) {
  if (reply.type == REDIS_REPLY_ERROR) {
    const std::string_view text(reply.str, reply.len);
    if (text.starts_with("MOVED ")) {
      return Error::make(Code::kUnsupported,
                         "redis: the server belongs to a cluster, expected ?cluster=1");
    }
    return error_of_reply("server", reply);
  }
  return Error::make(Code::kIo, "redis: a reply of another type (%d)", reply.type);
}

// Under the key lies a value of another program, which is no string.
bool is_other_type(const redisReply& reply) {
  return reply.type == REDIS_REPLY_ERROR &&
         std::string_view(reply.str, reply.len).starts_with("WRONGTYPE");
}

Bytes bytes_of_reply(const redisReply& reply) {
  return std::as_bytes(std::span(reply.str, reply.len));
}

// A call as a whole fails if none of its commands had a reply; else each item has its own status.
template <class Item>
Status finish(std::span<Item> items, std::span<const RedisCommand> commands,
              std::span<const std::size_t> of, const Status& ran) {
  if (ran) return {};
  bool has_worked = false;
  for (std::size_t i = 0; i < commands.size(); ++i) {
    has_worked = has_worked || commands[i].status.ok();
    if (!commands[i].status) items[of[i]].status = commands[i].status;
  }
  return has_worked ? Status() : ran;
}

// The text with a backslash before each character that means something in a glob.
std::string escape_glob(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (std::string_view("*?[]^-\\").find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

// The number of a line "NAME:123" of INFO; 0: none.
std::uint64_t info_number(std::string_view info, const std::string& name) {
  const std::size_t at = info.find("\n" + name + ":");
  std::uint64_t number = 0;
  if (at == std::string_view::npos) return number;
  const std::string_view text = info.substr(at + name.size() + 2);
  (void)std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// What the server's objects have, without what it has when it is empty.
Space space_of(std::string_view info) {
  if (info.find("\nmaxmemory_policy:allkeys-") == std::string_view::npos) return {};
  const std::uint64_t empty =
      info_number(info, "used_memory_startup") + info_number(info, "mem_not_counted_for_evict");
  const auto without_empty = [&](std::uint64_t bytes) { return bytes - std::min(bytes, empty); };
  return {without_empty(info_number(info, "maxmemory")),
          without_empty(info_number(info, "used_memory"))};
}

}  // namespace

RedisBackend::RedisBackend(const RedisOptions& options, const std::string& prefix)
    : traits_{.name = "redis", .align_bytes = 1, .is_shared = true, .evicts = true},
      prefix_((prefix.empty() ? kDefaultPrefix : prefix) + ":"),
      client_(options) {}

RedisCommand RedisBackend::command(std::string_view verb, const ObjectKey& key) const {
  const std::string name = name_of(key);
  RedisCommand made = RedisCommand::make({verb, name});
  made.slot = redis_slot(name);
  return made;
}

// The first bytes of an object.
RedisCommand RedisBackend::range_command(const ObjectKey& key, std::uint64_t bytes) const {
  const std::string name = name_of(key);
  RedisCommand made = RedisCommand::make({"GETRANGE", name, "0", std::to_string(bytes - 1)});
  made.slot = redis_slot(name);
  made.most.bytes += bytes;
  return made;
}

Status RedisBackend::exists(std::span<const ObjectKey> keys, std::span<bool> is_there,
                            std::uint64_t deadline_ns) {
  std::vector<RedisCommand> commands;
  Status answer;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    commands.push_back(command("EXISTS", keys[i]));
    commands.back().take = [&, i](const redisReply& reply) {
      if (reply.type != REDIS_REPLY_INTEGER) answer = refusal_of(reply);
      is_there[i] = reply.integer == 1;
    };
  }
  CACHALOT_TRY(client_.run(commands, deadline_ns));
  return answer;
}

Status RedisBackend::remove(std::span<const ObjectKey> keys, std::uint64_t deadline_ns) {
  std::vector<RedisCommand> commands;
  Status answer;
  for (const ObjectKey& key : keys) {
    commands.push_back(command("UNLINK", key));
    commands.back().take = [&](const redisReply& reply) {
      if (reply.type != REDIS_REPLY_INTEGER) answer = refusal_of(reply);
    };
  }
  CACHALOT_TRY(client_.run(commands, deadline_ns));
  return answer;
}

Status RedisBackend::put(std::span<Put> puts, std::uint64_t deadline_ns) {
  std::vector<RedisCommand> commands;
  std::vector<std::size_t> of;
  for (std::size_t i = 0; i < puts.size(); ++i) {
    Put& put = puts[i];
    put.status = {};
    if (value_bytes(put.head) > kMostValueBytes) {
      put.status = Error::make(Code::kInvalidArgument,
                               "redis: an object of %llu bytes, expected at most 512 MiB",
                               static_cast<unsigned long long>(value_bytes(put.head)));
      continue;
    }
    commands.push_back(command("SET", put.head.key));
    const auto* const head = reinterpret_cast<const char*>(&put.head);
    commands.back().add_value({head, kHeadBytes}, put.body);
    commands.back().take = [&put](const redisReply& reply) {
      if (reply.type != REDIS_REPLY_STATUS) put.status = refusal_of(reply);
    };
    of.push_back(i);
  }
  return finish(puts, commands, of, client_.run(commands, deadline_ns));
}

// The first 112 bytes of each. A key that is gone has none.
Status RedisBackend::heads(std::span<const ObjectKey> keys,
                           std::span<std::optional<ObjectHead>> heads, std::uint64_t deadline_ns) {
  std::vector<RedisCommand> commands;
  Status answer;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    heads[i].reset();
    commands.push_back(range_command(keys[i], kHeadBytes));
    commands.back().reply_bytes = kHeadBytes;
    commands.back().take = [&, i](const redisReply& reply) {
      if (reply.type == REDIS_REPLY_STRING) {
        const Result<ObjectHead> head = head_of_value(bytes_of_reply(reply));
        if (head && check_head(*head, keys[i])) heads[i] = *head;
      } else if (!is_other_type(reply)) {
        answer = refusal_of(reply);
      }
    };
  }
  CACHALOT_TRY(client_.run(commands, deadline_ns));
  return answer;
}

Status RedisBackend::get(std::span<Get> gets, std::uint64_t deadline_ns) {
  std::vector<RedisCommand> commands;
  std::vector<std::size_t> of;
  for (std::size_t i = 0; i < gets.size(); ++i) {
    Get& get = gets[i];
    get.status = {};
    // No more than an object that fits can have, whatever is stored there.
    const std::uint64_t bytes = kHeadBytes + bytes_of(get.room);
    commands.push_back(range_command(get.key, bytes + kMostTokenBytes));
    commands.back().reply_bytes = bytes;
    commands.back().take = [&get](const redisReply& reply) {
      if (reply.type != REDIS_REPLY_STRING) {
        get.status = refusal_of(reply);
      } else if (reply.len == 0) {
        get.status = Error::make(Code::kNotFound, "storage: has no such object");
      } else {
        take_value(bytes_of_reply(reply), get);
      }
    };
    of.push_back(i);
  }
  return finish(gets, commands, of, client_.run(commands, deadline_ns));
}

// --- Access ----------------------------------------------------------------------------------------

RedisCommand RedisBackend::scan_command(std::string_view cursor, std::string_view count) const {
  RedisCommand scan =
      RedisCommand::make({"SCAN", cursor, "MATCH", escape_glob(prefix_) + "*", "COUNT", count});
  scan.most = kScanBounds;
  return scan;
}

Status RedisBackend::check_access(std::uint64_t deadline_ns) {
  // Several keys: a server of a cluster refuses only those of other servers.
  std::vector<RedisCommand> commands;
  Status answer;
  const auto take = [&](const redisReply& reply) {
    if (reply.type == REDIS_REPLY_ERROR) answer = refusal_of(reply);
  };
  for (std::uint64_t i = 0; i < 32; ++i) {
    const ObjectKey key{{}, {i, 0}};
    commands.push_back(i % 2 == 0 ? command("EXISTS", key) : range_command(key, 1));
    commands.back().take = take;
  }
  CACHALOT_TRY(client_.run(commands, deadline_ns));
  CACHALOT_TRY(answer);
  CACHALOT_TRY_ASSIGN(const std::vector<RedisNode*> nodes, client_.masters(deadline_ns));
  for (RedisNode* const node : nodes) {
    // After a restart only a scan finds what is stored.
    RedisCommand scan = scan_command("0", "1");
    scan.take = take;
    CACHALOT_TRY(client_.run_on(*node, scan, deadline_ns));
    CACHALOT_TRY(answer);
    CACHALOT_TRY(ask_role(*node, deadline_ns));
  }
  return {};
}

// ["slave", …]: its user need not be allowed to ask.
Status RedisBackend::ask_role(RedisNode& node, std::uint64_t deadline_ns) {
  constexpr std::uint64_t kMostReplicas = 10'000;
  RedisCommand role = RedisCommand::make({"ROLE"});
  role.most.elements = kMostReplicas;
  role.take = [&](const redisReply& reply) {
    const bool is_named = reply.type == REDIS_REPLY_ARRAY && reply.elements != 0 &&
                          reply.element[0]->type == REDIS_REPLY_STRING;
    if (!is_named || std::string_view(reply.element[0]->str) != "slave") return;
    base::log(base::LogLevel::kWarn, "storage",
              "redis %.80s: is a replica: what it has is read, and new objects are stored only if "
              "it is writable",
              node.text().c_str());
  };
  return client_.run_on(node, role, deadline_ns);
}

// --- Space -----------------------------------------------------------------------------------------

Result<Space> RedisBackend::space(std::uint64_t deadline_ns) {
  CACHALOT_TRY_ASSIGN(const std::vector<RedisNode*> nodes, client_.masters(deadline_ns));
  Space all;
  double fullest = 0;
  for (RedisNode* const node : nodes) {
    RedisCommand info = RedisCommand::make({"INFO", "memory"});
    Status answer;
    Space one;
    info.take = [&](const redisReply& reply) {
      if (reply.type == REDIS_REPLY_STRING) {
        one = space_of({reply.str, reply.len});
      } else {
        answer = refusal_of(reply);
      }
    };
    CACHALOT_TRY(client_.run_on(*node, info, deadline_ns));
    CACHALOT_TRY(answer);
    if (one.limit == 0) return Space{};
    all.limit += one.limit;
    fullest = std::max(fullest, static_cast<double>(one.used) / static_cast<double>(one.limit));
  }
  all.used = static_cast<std::uint64_t>(fullest * static_cast<double>(all.limit));
  return all;
}

// --- List ------------------------------------------------------------------------------------------

Status RedisBackend::list(const Lister& each, std::uint64_t deadline_ns) {
  CACHALOT_TRY_ASSIGN(const std::vector<RedisNode*> nodes, client_.masters(deadline_ns));
  std::unordered_set<ObjectKey> seen;  // SCAN may name a key twice
  for (RedisNode* const node : nodes) {
    std::string cursor = "0";
    do {
      RedisCommand scan = scan_command(cursor, kScanCount);
      std::vector<ObjectKey> keys;
      Status answer;
      scan.take = [&](const redisReply& reply) {
        if (reply.type != REDIS_REPLY_ARRAY || reply.elements != 2 ||
            reply.element[0]->type != REDIS_REPLY_STRING ||
            reply.element[1]->type != REDIS_REPLY_ARRAY) {
          answer = refusal_of(reply);
          return;
        }
        cursor.assign(reply.element[0]->str, reply.element[0]->len);
        const redisReply& names = *reply.element[1];
        for (std::size_t i = 0; i < names.elements; ++i) {
          const redisReply& name = *names.element[i];
          if (name.type != REDIS_REPLY_STRING || name.len < prefix_.size()) continue;
          const Result<ObjectKey> key =
              parse_object_key(std::string_view(name.str, name.len).substr(prefix_.size()));
          if (key && seen.insert(*key).second) keys.push_back(*key);
        }
      };
      CACHALOT_TRY(client_.run_on(*node, scan, deadline_ns));
      CACHALOT_TRY(answer);
      std::vector<std::optional<ObjectHead>> found(keys.size());
      CACHALOT_TRY(heads(keys, found, deadline_ns));
      for (const std::optional<ObjectHead>& head : found) {
        if (head && !each(*head)) return {};
      }
    } while (cursor != "0");
  }
  return {};
}

}  // namespace cachalot::storage
