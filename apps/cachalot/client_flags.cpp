#include "client_flags.h"

#include <vector>

#include "index/block_hasher.h"

namespace cachalot::apps {

const char* const kKeyHelp =
    "32 hexadecimal digits are a block hash; any other text is hashed with the namespace";

void add_client_flags(CLI::App& app, ClientFlags& flags) {
  app.add_option("--pool", flags.paths,
                 "the pool; repeated for each device in order, unless the others are PATH.1, …")
      ->required()
      ->allow_extra_args(false)
      ->type_name("PATH");
  app.add_option("--namespace", flags.fingerprint,
                 "fingerprint of the namespace: blocks of different ones never meet")
      ->type_name("NAME")
      ->capture_default_str();
  app.add_option("--host", flags.host, "this machine's number, where several share the pool")
      ->type_name("N")
      ->check(CLI::Range(0u, pool::kMaxClients - 1))
      ->capture_default_str();
  app.add_option("--client-slot", flags.slot, "the client slot to take (any free one)")
      ->type_name("N");
}

Result<Attached> attach(const ClientFlags& flags) {
  CACHALOT_TRY_ASSIGN(pool::Pool pool, open_pool(flags.paths));
  pool::ClientOptions options;
  options.fingerprint = flags.fingerprint;
  options.host = flags.host;
  options.grant_target = 1;
  // The keeper of a pool of several machines may run on another one, where no doorbell rings.
  options.use_doorbells = pool.access().geometry.hosts == 1 || pool.keeper_is_locked();
  CACHALOT_TRY_ASSIGN(pool::PoolClient client, pool.attach(options, flags.slot));
  return Attached{std::move(pool), std::move(client)};
}

Result<Attached> attach(const Paths& paths) {
  ClientFlags flags;
  flags.paths = paths;
  return attach(flags);
}

Result<index::BlockHash> parse_key(const std::string& key, const std::string& fingerprint) {
  if (key.empty()) {
    return Error::make(Code::kInvalidArgument, "a key is empty, expected a block hash or a text");
  }
  Result<index::BlockHash> hash = index::parse_block_hash(key);
  if (hash) return hash;
  index::BlockHasher hasher = index::BlockHasher::xxh3(index::make_namespace(fingerprint));
  std::vector<std::uint32_t> ids;
  for (const char c : key) ids.push_back(static_cast<unsigned char>(c));
  return hasher.next(hasher.root(), ids).block_hash();
}

}  // namespace cachalot::apps
