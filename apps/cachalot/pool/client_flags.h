// How stop, put, get, lookup, evict and pool fence join a served pool, and what a KEY is.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <optional>
#include <string>

#include "block_hash/block_hash.h"
#include "flags.h"
#include "pool/pool.h"
#include "pool_flags.h"

namespace cachalot::apps {

struct ClientFlags {
  Paths paths;
  std::string fingerprint = "default";  // of the namespace
  // Of a namespace whose fingerprint is not known; `fingerprint` is its name then.
  std::optional<BlockHash> namespace_digest;
  std::uint32_t host = 0;
  std::optional<std::uint32_t> slot;
  std::optional<std::uint32_t> wait_s;  // for a pool, and a keeper of it
  std::uint32_t patience_s = 0;         // without that: for a keeper of a pool that is there
  // For each answer of the keeper. None: what is left of wait_s, and at least 1 s; without wait_s as in
  // pool::ClientOptions
  std::optional<std::uint64_t> timeout_ns;
  bool allow_foreign_pool = false;
  bool reads_only = false, is_operator = false;  // as in pool::ClientOptions
};
// --pool takes one path here, because keys may follow it; it may be repeated.
void add_client_flags(Command& app, ClientFlags& flags);
// Of these only --host, and --wait with --allow-foreign-pool.
void add_host_flag(Command& app, ClientFlags& flags);
void add_wait_flag(Command& app, ClientFlags& flags);

// What the help says of a KEY.
extern const char* const kKeyHelp;

// A pool and this process in it. The client leaves first.
struct Attached {
  pool::Pool pool;
  pool::PoolClient client;
  Paths paths;
};
// How many leading blocks of a chain the storage behind the pool has. Waits for storage that other hosts write, too, and
// opens the namespace if it has blocks of it.
Result<std::size_t> ask_storage(pool::Client& client, std::span<const BlockHash> hashes,
                                std::uint64_t until_ns);

// Waits for the pool and its keeper as long as the flags say.
// @errors as Pool::open and Pool::attach, with the pool's path in front
Result<Attached> attach(const ClientFlags& flags);

// of_pool() of what the keeper was asked: if it does not answer, also its process.
Error of_keeper(const Attached& attached, const Error& error);
template <class T>
Result<T> of_keeper(const Attached& attached, Result<T> result) {
  if (result) return result;
  return of_keeper(attached, result.error());
}

// The answer to a command that was given this key: where the block is not there or damaged, the message
// quotes the key, because it names the block by its hash only.
Error of_key(const std::string& key, const Error& error);
template <class T>
Result<T> of_key(const std::string& key, Result<T> result) {
  if (result) return result;
  return of_key(key, result.error());
}

// 32 hexadecimal digits are a block hash; any other text is hashed: as a root block of the
// namespace whose ids are the text's bytes (xxh3_128).
// @errors kInvalidArgument: the key is empty
Result<BlockHash> parse_key(const std::string& key, const std::string& fingerprint);

}  // namespace cachalot::apps
