// `cachalot serve`: a keeper in the foreground.

#include <signal.h>
#include <stdio_ext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "base/log.h"
#include "client_flags.h"
#include "command.h"
#include "creation.h"
#include "event_flags.h"
#include "eviction/policy_kind.h"
#include "os/limits.h"
#include "os/process.h"
#include "output.h"
#include "pool/making.h"
#include "pool/sizing.h"
#include "pool_flags.h"
#include "ready_notice.h"
#include "serve_metrics.h"
#include "serve_storage.h"
#include "values.h"

namespace cachalot::apps {
namespace {

struct Options {
  Paths paths;
  bool create = false;
  bool allow_foreign_pool = false;
  GeometryFlags geometry;
  std::string policy = "lru";
  std::uint64_t ttl_s = 0;
  std::vector<std::string> pins, priorities;
  std::uint32_t max_grants = 256;
  std::uint64_t suspect_after_ms = pool::KeeperOptions{}.suspect_after_ns / 1'000'000;
  EventFlags events;
  bool standby = false;
  bool take_over = false;
  std::string log_level = "warn";
  std::string metrics;
  std::string json;
  StorageFlags storage;
  PeerFlags peers;
};

constexpr std::array kLogLevels = {"debug", "info", "warn", "error", "off"};

// Set by signals; a handler can reach nothing but a variable of the program.
std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);

// A stop takes at most so long, whatever a thread does: storage that hangs is waited for two seconds.
constexpr unsigned kLongestEndS = 5;

// Only async-signal-safe calls.
void request_stop() {
  if (!stop_requested.exchange(true, std::memory_order_relaxed)) ::alarm(kLongestEndS);
}

void on_signal(int) {
  request_stop();
}

// What the pool and storage hold survives it, as it survives a kill.
void on_late_end(int) {
  constexpr char kLine[] = "cachalot: serve: a thread has not ended 5 s after the stop: exits\n";
  (void)!::write(STDERR_FILENO, kLine, sizeof kLine - 1);
  ::_exit(kExitFault);
}

void end_on_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;  // without SA_RESTART: the keeper's nap ends at once
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  for (const int signal : {SIGHUP, SIGQUIT}) {
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);  // nohup
  }
  action.sa_handler = on_late_end;
  sigaction(SIGALRM, &action, nullptr);
  // The reader of the ready line may have exited before the next line.
  ::signal(SIGPIPE, SIG_IGN);
}

void print_now(std::FILE* out, const std::string& line) {
  std::fputs(line.c_str(), out);
  const Status written = flush(out);
  if (written || written.error().os_error != EPIPE) return;
  __fpurge(out);
  std::clearerr(out);
}

base::LogLevel log_level_of(const std::string& name) {
  std::size_t level = 0;
  while (level + 1 < kLogLevels.size() && name != kLogLevels[level]) ++level;
  return static_cast<base::LogLevel>(level);
}

// A keeper that is started again finds the pool it made the first time; it must be the one that
// the flags describe.
Status check_same(const pool::Geometry& wanted, const pool::Geometry& found, const char* name) {
  struct Field {
    const char* what;
    std::uint64_t wanted, found;
  };
  if (wanted.domain != found.domain) {
    return Error::make(Code::kInvalidArgument,
                       "%.120s: exists with another domain: %s, the flags say %s", name,
                       memory::domain_name(found.domain), memory::domain_name(wanted.domain));
  }
  const Field fields[] = {
      // What flags say comes before what follows from them.
      {"block bytes", wanted.block_bytes, found.block_bytes},
      {"capacity in blocks", wanted.capacity_blocks, found.capacity_blocks},
      {"spare blocks", wanted.blocks - wanted.capacity_blocks,
       found.blocks - found.capacity_blocks},
      {"devices", wanted.devices, found.devices},
      {"client slots", wanted.engine_clients(), found.engine_clients()},
      {"hosts", wanted.hosts, found.hosts},
      {"note bytes", wanted.note_bytes, found.note_bytes},
      {"device bytes", wanted.device_bytes, found.device_bytes},
  };
  for (const Field& field : fields) {
    if (field.wanted == field.found) continue;
    return Error::make(Code::kInvalidArgument,
                       "%.120s: exists with other %s: %" PRIu64 ", the flags say %" PRIu64, name,
                       field.what, field.found, field.wanted);
  }
  return {};
}

// Opens a pool that another process may be making just now.
Result<pool::Pool> open_when_made(const Options& options) {
  constexpr std::uint32_t kPatienceMs = 2000;
  return pool::open_when_made(options.paths, {.allow_foreign = options.allow_foreign_pool},
                              kPatienceMs);
}

Result<pool::Pool> create_or_open(const Options& options) {
  if (!options.create && options.standby) return open_when_made(options);
  if (!options.create)
    return pool::Pool::open(options.paths, {.allow_foreign = options.allow_foreign_pool});
  CACHALOT_TRY_ASSIGN(const pool::Geometry geometry,
                      make_geometry(options.geometry, options.paths));
  pool::CreateOptions create;
  create.paths = options.paths;
  create.geometry = geometry;
  Result<pool::Pool> created = create_pool(create);
  if (created || created.error().code != Code::kBusy) return created;
  // Only another device's file is there: that is no pool.
  if (pool::look_for_maker(options.paths[0]) == pool::Making::kAbsent) return created;
  CACHALOT_TRY_ASSIGN(pool::Pool existing, open_when_made(options));
  const pool::Geometry& found = existing.access().geometry;
  CACHALOT_TRY_ASSIGN(const pool::Geometry wanted,
                      make_geometry(with_defaults_of(options.geometry, found), options.paths));
  CACHALOT_TRY(check_same(wanted, found, options.paths[0].c_str()));
  return existing;
}

// Whether a standby goes on waiting after this error of create_or_open(). A file may come, and be finished,
// between that and a look at it: a missing one is an error where the first device's was there before.
bool may_come(const Options& options, Code code, pool::Making making, bool was_there) {
  const bool is_absent = making == pool::Making::kAbsent;
  if (code == Code::kBusy) return !(options.create && is_absent);
  return code == Code::kNotFound && !options.create && (is_absent || !was_there);
}

// The pool of a standby, which may begin before the keeper that makes it: waited for without an end, and
// said so. Nothing where a signal came first.
Result<std::optional<pool::Pool>> wait_for_pool(const Options& options) {
  constexpr auto kPause = std::chrono::milliseconds(10);
  bool is_told = false, was_there = false;
  while (!stop_requested.load(std::memory_order_relaxed)) {
    Result<pool::Pool> pool = create_or_open(options);
    if (pool) return std::optional(*std::move(pool));
    const pool::Making making = pool::look_for_maker(options.paths[0]);
    if (!may_come(options, pool.error().code, making, was_there)) return pool.error();
    was_there = making != pool::Making::kAbsent;
    if (!std::exchange(is_told, true)) {
      print_now(human_output(options.json), "waiting pid=" + std::to_string(os::own_pid()) +
                                                " pool=" + options.paths[0] +
                                                metrics_field(options.metrics) + "\n");
    }
    std::this_thread::sleep_for(kPause);
  }
  return std::optional<pool::Pool>();
}

Status announce(const Options& options, const pool::Pool& pool, pool::PoolKeeper& keeper,
                Output& json) {
  const pool::Geometry& geometry = pool.access().geometry;
  const std::uint32_t epoch = keeper.keeper().epoch();
  print_now(human_output(options.json),
            "ready pid=" + std::to_string(os::own_pid()) + " pool=" + pool.paths()[0] + " epoch=" +
                std::to_string(epoch) + " blocks=" + std::to_string(geometry.capacity_blocks) +
                " bytes=" + std::to_string(pool::total_bytes(geometry)) +
                options.events.describe() + metrics_field(options.metrics) + "\n");
  nlohmann::json ready = {{"pid", os::own_pid()},
                          {"pool", pool.paths()},
                          {"epoch", epoch},
                          {"capacity_blocks", geometry.capacity_blocks},
                          {"block_bytes", geometry.block_bytes},
                          {"bytes", pool::total_bytes(geometry)},
                          {"policy", options.policy},
                          {"ttl_s", options.ttl_s},
                          {"kv_events", options.events.describe_json()}};
  if (!options.metrics.empty()) ready["metrics"] = options.metrics;
  return json.write_json(ready);
}

// Waits until the pool has no keeper, and becomes it. Nothing where a signal came first.
Result<std::optional<pool::PoolKeeper>> stand_by(pool::Pool& pool,
                                                 const pool::KeeperOptions& options) {
  constexpr auto kPause = std::chrono::milliseconds(10);
  // Its memory now: to get it is the longest part of a takeover.
  CACHALOT_TRY_ASSIGN(pool::PoolKeeper keeper, pool.stand_by(options));
  while (!stop_requested.load(std::memory_order_relaxed)) {
    CACHALOT_TRY(pool.check_still_there());
    if (!pool.state().keeper_is_locked() && !pool.is_kept_by_maker()) {
      const Status served = pool.serve(keeper);
      if (served) return std::optional(std::move(keeper));
      if (served.error().code != Code::kBusy) return served.error();
    }
    std::this_thread::sleep_for(kPause);
  }
  return std::optional<pool::PoolKeeper>();
}

// "NAMESPACE:KEY", or a key of the namespace that other commands use unless told otherwise.
Result<pool::PinnedBlock> parse_pin(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  const std::string fingerprint =
      colon == std::string::npos ? ClientFlags{}.fingerprint : text.substr(0, colon);
  const std::string key = colon == std::string::npos ? text : text.substr(colon + 1);
  if (fingerprint.empty() || key.empty()) {
    return Error::make(Code::kInvalidArgument, "--pin: \"%.120s\", expected NAMESPACE:KEY or KEY",
                       text.c_str());
  }
  CACHALOT_TRY_ASSIGN(const BlockHash hash, parse_key(key, fingerprint));
  return pool::PinnedBlock{block_hash::make_namespace(fingerprint).digest, hash};
}

// "NAMESPACE=N".
Result<pool::NamespacePriority> parse_priority(const std::string& text) {
  const std::size_t equals = text.rfind('=');
  const std::string number = equals == std::string::npos ? "" : text.substr(equals + 1);
  if (equals == 0 || number.size() != 1 || number[0] < '0' || number[0] > '7') {
    return Error::make(
        Code::kInvalidArgument,
        "--priority: \"%.120s\", expected NAMESPACE=N with N from 0 (evicted first) to 7",
        text.c_str());
  }
  return pool::NamespacePriority{block_hash::make_namespace(text.substr(0, equals)).digest,
                                 static_cast<std::uint32_t>(number[0] - '0')};
}

Result<pool::KeeperOptions> keeper_options_of(const Options& options) {
  pool::KeeperOptions keeper_options;
  keeper_options.policy = options.policy;
  keeper_options.copies_first = options.peers.is_given() && !options.peers.keeps_copies;
  keeper_options.ttl_ns = options.ttl_s * 1'000'000'000;
  keeper_options.max_grants = options.max_grants;
  keeper_options.suspect_after_ns = options.suspect_after_ms * 1'000'000;
  for (const std::string& text : options.pins) {
    CACHALOT_TRY_ASSIGN(const pool::PinnedBlock pin, parse_pin(text));
    keeper_options.pins.push_back(pin);
  }
  for (const std::string& text : options.priorities) {
    CACHALOT_TRY_ASSIGN(const pool::NamespacePriority priority, parse_priority(text));
    for (const pool::NamespacePriority& other : keeper_options.priorities) {
      if (!(other.namespace_digest == priority.namespace_digest)) continue;
      return Error::make(Code::kInvalidArgument,
                         "--priority: \"%.120s\": the namespace is named twice", text.c_str());
    }
    keeper_options.priorities.push_back(priority);
  }
  CACHALOT_TRY(keeper_options.check());
  return keeper_options;
}

Result<std::optional<pool::PoolKeeper>> become_keeper(const Options& options, pool::Pool& pool,
                                                      const pool::KeeperOptions& keeper_options) {
  if (options.standby) {
    print_now(human_output(options.json), "standby pid=" + std::to_string(os::own_pid()) +
                                              " pool=" + pool.paths()[0] +
                                              metrics_field(options.metrics) + "\n");
    return stand_by(pool, keeper_options);
  }
  CACHALOT_TRY_ASSIGN(
      pool::PoolKeeper keeper,
      pool.serve(keeper_options, options.take_over ? pool::Succession::kOverTheLiving
                                                   : pool::Succession::kOfTheDead));
  return std::optional(std::move(keeper));
}

// What reads the pool ends before the keeper and the pool, on every way out.
struct StorageEnds {
  ServedStorage& storage;
  ~StorageEnds() { storage.end(); }
};

Status serve(Options& options, pool::Pool& pool, const pool::KeeperOptions& keeper_options,
             node::MetricsServer* metrics, ServedStorage& storage, Output& json) {
  CACHALOT_TRY_ASSIGN(std::optional<pool::PoolKeeper> keeper,
                      of_pool(options.paths, become_keeper(options, pool, keeper_options)));
  if (!keeper) return {};
  const node::MetricsServer::Shown shown(metrics, pool, keeper->keeper().epoch());
  const StorageEnds storage_ends{storage};
  CACHALOT_TRY(storage.start(pool, keeper->keeper(), metrics));
  CACHALOT_TRY(announce(options, pool, *keeper, json));
  // Engines are served all the same.
  if (const Status told = tell_ready(); !told) {
    base::log(base::LogLevel::kWarn, "serve", "the service manager was not told: %s",
              told.error().message);
  }
  const std::unique_ptr<events::Publisher> publisher = options.events.start(pool, keeper->keeper());
  const auto now_and_then = [&] {
    storage.join_when_ready();
    return pool.check_still_there();
  };
  const Status ended = keeper->run(stop_requested, now_and_then);
  request_stop();
  storage.end();
  CACHALOT_TRY(of_pool(options.paths, ended));
  print_now(human_output(options.json),
            "ended epoch=" + std::to_string(keeper->keeper().epoch()) + "\n");
  return {};
}

Status serve(Options& options) {
  CACHALOT_TRY_ASSIGN(const pool::KeeperOptions keeper_options, keeper_options_of(options));
  base::set_log_level(log_level_of(options.log_level));
  (void)os::raise_descriptor_limit();  // segments of storage, subscribers, scrapes
  CACHALOT_TRY_ASSIGN(Output json, open_output("--json", options.json, options.paths));
  CACHALOT_TRY(options.events.open(options.standby || options.take_over));
  CACHALOT_TRY_ASSIGN(const Metrics metrics, listen_for_metrics(options.metrics, options.paths));
  if (options.create) {
    CACHALOT_TRY_ASSIGN(const pool::Geometry geometry,
                        make_geometry(options.geometry, options.paths));
    CACHALOT_TRY(options.storage.check_holds_a_block(geometry.block_bytes));
  }
  ServedStorage storage(options.storage, options.peers);
  CACHALOT_TRY(storage.prepare(options.standby     ? ServedStorage::Keeper::kStandsBy
                               : options.take_over ? ServedStorage::Keeper::kTakesOver
                                                   : ServedStorage::Keeper::kFirst));
  if (options.standby) {
    end_on_signals();
    CACHALOT_TRY_ASSIGN(std::optional<pool::Pool> pool, wait_for_pool(options));
    return pool ? serve(options, *pool, keeper_options, metrics.get(), storage, json) : Status();
  }
  CACHALOT_TRY_ASSIGN(pool::Pool pool, create_or_open(options));
  CACHALOT_TRY(options.storage.check_holds_a_block(pool.access().geometry.block_bytes));
  end_on_signals();
  return serve(options, pool, keeper_options, metrics.get(), storage, json);
}

int run(Options& options) {
  const Status status = serve(options);
  return status ? kExitDone : fail(status.error());
}

}  // namespace

void add_serve(CLI::App& app, Chosen& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* const command = app.add_subcommand(
      "serve",
      "runs the keeper of a pool in the foreground, until SIGINT, SIGTERM or `cachalot stop`");
  add_pool_flag(*command, options->paths);
  CLI::Option* const create = command->add_flag(
      "--create", options->create,
      "create the pool if it does not exist; an existing pool must have this geometry");
  add_foreign_flag(*command, options->allow_foreign_pool);
  command
      ->add_option(
          "--policy", options->policy,
          "which blocks are evicted when the pool is full: " + eviction::pool_policy_names())
      ->type_name(eviction::pool_policy_names("|"))
      ->capture_default_str();
  command
      ->add_option(
          "--ttl", options->ttl_s,
          "evict blocks that were not used for this time, even if the pool is not full; 0: never")
      ->type_name("SECONDS")
      ->transform(number(0, 1'000'000'000))
      ->capture_default_str();
  command
      ->add_option(
          "--pin", options->pins,
          "a block that is never evicted once it is stored, nor its prefix; repeatable. KEY: as "
          "for `cachalot lookup`, without a colon; without NAMESPACE: of `default`")
      ->type_name("NAMESPACE:KEY");
  command
      ->add_option("--priority", options->priorities,
                   "0 to 7: blocks of namespaces of lower priority are evicted first; default of "
                   "all others: " +
                       std::to_string(pool::KeeperOptions::kDefaultPriority) + "; repeatable")
      ->type_name("NAMESPACE=N");
  command
      ->add_option("--max-grants", options->max_grants,
                   "limit of blocks that one client holds in advance")
      ->type_name("N")
      ->transform(number(1, 1u << 20))
      ->capture_default_str();
  command
      ->add_option("--suspect-after", options->suspect_after_ms,
                   "after this time without heartbeats a client is suspected, and its blocks are "
                   "quarantined; 0: never")
      ->type_name("MS")
      ->transform(number(0, 86'400'000))
      ->capture_default_str();
  options->events.add(*command);
  CLI::Option* const standby = command->add_flag(
      "--standby", options->standby, "wait until the pool has no live keeper, then take over");
  command
      ->add_flag("--take-over", options->take_over,
                 "take over even from a live keeper, if it hangs")
      ->excludes(standby);
  add_metrics_flag(*command, options->metrics);
  add_storage_flags(*command, options->storage);
  add_peer_flags(*command, options->peers);
  command->add_option("--log-level", options->log_level, "log on stderr")
      ->type_name("NAME")
      ->check(CLI::IsMember(std::vector<std::string>(kLogLevels.begin(), kLogLevels.end())))
      ->capture_default_str();
  command
      ->add_option("--json", options->json,
                   "write the ready line as JSON to FILE, or to stdout for -")
      ->type_name("FILE");
  add_geometry_flags(*command, options->geometry);
  for (CLI::Option* option : command->get_options()) {
    if (option->get_group() == "Geometry") option->needs(create);
  }
  command->footer(
      "Example: cachalot serve --pool /dev/shm/kv --create --block-bytes 64KiB --capacity 1GiB\n"
      "         cachalot serve --pool /dev/shm/kv --metrics 127.0.0.1:9464\n"
      "         cachalot serve --pool /dev/shm/kv --kv-events tcp://*:5557 --kv-events-replay "
      "tcp://*:5558\n"
      "         cachalot serve --pool /dev/shm/kv --storage file:/ssd/kv --storage-capacity 1TiB");
  command->callback([options, &chosen] { chosen.run = [options] { return run(*options); }; });
}

}  // namespace cachalot::apps
