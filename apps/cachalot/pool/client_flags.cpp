#include "client_flags.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "block_hash/block_hasher.h"
#include "pool/making.h"
#include "values.h"

namespace cachalot::apps {
namespace {

constexpr std::uint64_t kNsPerSecond = 1'000'000'000;
// Of put, get, lookup and evict, for a keeper that is just being replaced.
constexpr std::uint32_t kPatienceS = 1;

std::uint64_t patience_ns(const ClientFlags& flags) {
  return flags.wait_s.value_or(flags.patience_s) * kNsPerSecond;
}

// How long the keeper may take for an answer. It gets a second at least: a busy one is none that hangs.
std::uint64_t answer_ns(const ClientFlags& flags, std::uint64_t deadline_ns) {
  if (flags.timeout_ns) return *flags.timeout_ns;
  if (!flags.wait_s) return pool::ClientOptions{}.timeout_ns;
  const std::uint64_t now_ns = base::SteadyClock::read();
  return std::max(deadline_ns > now_ns ? deadline_ns - now_ns : 0, kNsPerSecond);
}

Result<Attached> attach_to(const ClientFlags& flags, pool::Pool pool, std::uint64_t deadline_ns) {
  pool::ClientOptions options;
  options.fingerprint = flags.fingerprint;
  options.name = flags.fingerprint;
  options.namespace_digest = flags.namespace_digest;
  options.host = flags.host;
  options.grant_target = 1;
  options.timeout_ns = answer_ns(flags, deadline_ns);
  options.recovery_ns = patience_ns(flags);
  options.reads_only = flags.reads_only;
  options.is_operator = flags.is_operator;
  CACHALOT_TRY_ASSIGN(pool::PoolClient client, pool.attach(options, flags.slot));
  return Attached{std::move(pool), std::move(client), flags.paths};
}

// Whether to try again to open a pool. One that its maker left half-made may be made anew. Another file that is no pool stays
// none: it is looked at for two seconds.
class Patience {
 public:
  explicit Patience(const ClientFlags& flags)
      : first_device_(flags.paths[0]), waits_for_file_(flags.wait_s.has_value()) {}

  bool allows(Code not_opened, std::uint64_t now_ns) {
    constexpr std::uint64_t kForMakerNs = 2 * kNsPerSecond;
    const bool is_no_pool = not_opened == Code::kNotAPool || not_opened == Code::kBadInput;
    if (!is_no_pool) no_pool_since_ns_ = 0;
    if (not_opened == Code::kBusy) return true;  // it is being made
    if (!waits_for_file_) return false;
    if (not_opened == Code::kNotFound) return true;
    if (!is_no_pool) return false;
    if (pool::look_for_maker(first_device_) == pool::Making::kAbandoned) return true;
    if (no_pool_since_ns_ == 0) no_pool_since_ns_ = now_ns;
    return now_ns - no_pool_since_ns_ < kForMakerNs;
  }

 private:
  const std::string first_device_;
  bool waits_for_file_;
  std::uint64_t no_pool_since_ns_ = 0;  // 0: it was none of these
};

}  // namespace

const char* const kKeyHelp =
    "32 hexadecimal digits are a block hash; any other text is hashed with the namespace";

void add_client_flags(Command& app, ClientFlags& flags) {
  app.add_option("--pool", flags.paths,
                 "the pool's path; for several devices, repeat the flag for each in order, or give "
                 "only the first if the others are PATH.1, PATH.2, …")
      ->required()
      ->allow_extra_args(false)
      ->type_name("PATH");
  app.add_option("--namespace", flags.fingerprint,
                 "fingerprint of the namespace; blocks of different namespaces are never mixed")
      ->type_name("NAME")
      ->capture_default_str();
  add_host_flag(app, flags);
  app.add_option("--client-slot", flags.slot, "client slot (default: a free one of this machine)")
      ->type_name("N")
      ->transform(number(0, pool::kMaxClients - 1));
  flags.patience_s = kPatienceS;
  add_wait_flag(app, flags);
}

void add_host_flag(Command& app, ClientFlags& flags) {
  app.add_option("--host", flags.host,
                 "this machine's number in the pool, if several machines share it")
      ->type_name("N")
      ->transform(number(0, pool::kMaxClients - 1))
      ->capture_default_str();
}

void add_wait_flag(Command& app, ClientFlags& flags) {
  app.add_option("--wait", flags.wait_s,
                 "how long to wait for the pool and its keeper (default: " +
                     (flags.patience_s == 0 ? "0)"
                                            : std::to_string(flags.patience_s) +
                                                  " s for the keeper of an existing pool)"))
      ->type_name("SECONDS")
      ->transform(number(0, 3600));
  add_foreign_flag(app, flags.allow_foreign_pool);
}

Result<std::size_t> ask_storage(pool::Client& client, std::span<const BlockHash> hashes,
                                std::uint64_t until_ns) {
  std::size_t stored = 0;
  while (stored < hashes.size()) {
    const std::span<const BlockHash> portion = hashes.subspan(
        stored, std::min<std::size_t>(pool::kMaxStorageHashes, hashes.size() - stored));
    const std::uint32_t flags = pool::kStorageAsk | (stored == 0 ? 0 : pool::kStorageIsSure);
    CACHALOT_TRY_ASSIGN(pool::StorageAnswer answer, client.requests().ask_storage(portion, flags));
    while (answer.is_asking != 0 && base::SteadyClock::read() < until_ns) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      CACHALOT_TRY_ASSIGN(answer, client.requests().ask_storage(portion, flags));
    }
    stored += answer.stored;
    if (answer.stored < portion.size()) break;
  }
  if (stored != 0 && client.namespace_id() == 0) {
    CACHALOT_TRY(client.open_namespace());
  }
  return stored;
}

Result<Attached> attach(const ClientFlags& flags) {
  constexpr auto kPause = std::chrono::milliseconds(10);
  const std::uint64_t deadline_ns = base::SteadyClock::read() + patience_ns(flags);
  Patience patience(flags);
  for (;;) {
    Result<pool::Pool> pool = open_pool(flags.paths, flags.allow_foreign_pool);
    const bool is_open = pool.ok();
    Result<Attached> attached =
        is_open ? attach_to(flags, *std::move(pool), deadline_ns) : Result<Attached>(pool.error());
    if (attached) return attached;
    const std::uint64_t now_ns = base::SteadyClock::read();
    const Code code = attached.error().code;
    const bool may_still_come = is_open ? code == Code::kNoKeeper : patience.allows(code, now_ns);
    if (!may_still_come || now_ns >= deadline_ns) return of_pool(flags.paths, attached.error());
    std::this_thread::sleep_for(kPause);
  }
}

Error of_keeper(const Attached& attached, const Error& error) {
  pool::KeeperLine keeper{};
  if (error.code != Code::kTimeout || !attached.pool.state().read_keeper_line(keeper)) {
    return of_pool(attached.paths, error);
  }
  return of_pool(attached.paths,
                 Error::make(error.code,
                             "%.80s: pid %u (`cachalot serve --take-over` replaces one that hangs)",
                             error.message, keeper.pid));
}

Error of_key(const std::string& key, const Error& error) {
  if (error.code != Code::kNotFound && error.code != Code::kCorrupt) return error;
  if (block_hash::parse_block_hash(key)) return error;  // the message has it
  return Error::make(error.code, "%.150s (key \"%.70s\")", error.message, key.c_str());
}

Result<BlockHash> parse_key(const std::string& key, const std::string& fingerprint) {
  if (key.empty()) {
    return Error::make(Code::kInvalidArgument, "a key is empty, expected a block hash or a text");
  }
  Result<BlockHash> hash = block_hash::parse_block_hash(key);
  if (hash) return hash;
  block_hash::BlockHasher hasher =
      block_hash::BlockHasher::xxh3(block_hash::make_namespace(fingerprint));
  std::vector<std::uint32_t> ids;
  for (const char c : key) ids.push_back(static_cast<unsigned char>(c));
  return hasher.next(hasher.root(), ids).block_hash();
}

}  // namespace cachalot::apps
