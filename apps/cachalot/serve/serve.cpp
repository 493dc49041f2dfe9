// `cachalot serve`: a keeper in the foreground.

#include <signal.h>
#include <stdio_ext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/log_format.h"
#include "command.h"
#include "creation.h"
#include "flag_file.h"
#include "hangup.h"
#include "missing_devices.h"
#include "os/limits.h"
#include "os/process.h"
#include "output.h"
#include "pool/expansion/expansion_device.h"
#include "pool/hosts/host_agent_thread.h"
#include "pool/making.h"
#include "pool/open_when_made.h"
#include "pool/sizing.h"
#include "ready_notice.h"
#include "serve_flags.h"
#include "serve_metrics.h"
#include "serve_reread.h"
#include "serve_storage.h"

namespace cachalot::apps {
namespace {

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
  constexpr char kJsonLine[] =
      "{\"level\":\"error\",\"origin\":\"serve\",\"message\":\"a thread has not ended 5 s after "
      "the stop: exits\"}\n";
  const bool is_json = base::log_format() == base::LogFormat::kJson;
  (void)!::write(STDERR_FILENO, is_json ? kJsonLine : kLine,
                 (is_json ? sizeof kJsonLine : sizeof kLine) - 1);
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

// Opens a pool that another process may be making just now.
Result<pool::Pool> open_when_made(const ServeFlags& options) {
  constexpr std::uint32_t kPatienceMs = 2000;
  return pool::open_when_made(options.paths, {.allow_foreign = options.allow_foreign_pool},
                              kPatienceMs);
}

// Whether a device, which is there before its pool, may be written over: a damaged pool, or one of another version, may not.
bool holds_no_pool(const ServeFlags& options) {
  const Result<pool::Pool> there = pool::Pool::open(
      options.paths, {.huge_pages = false, .allow_foreign = true, .read_only = true});
  return !there && there.error().code == Code::kNotAPool;
}

Result<pool::Pool> create_or_open(const ServeFlags& options) {
  if (!options.create && options.standby) return open_when_made(options);
  if (!options.create) {
    Result<pool::Pool> opened =
        pool::Pool::open(options.paths, {.allow_foreign = options.allow_foreign_pool});
    if (opened || opened.error().code != Code::kNotFound) return opened;
    Error absent =
        Error::make(Code::kNotFound, "%.400s; --create makes a pool", opened.error().message);
    absent.os_error = opened.error().os_error;
    return absent;
  }
  CACHALOT_TRY_ASSIGN(const pool::Geometry geometry,
                      make_geometry(options.geometry, options.paths));
  pool::CreateOptions create;
  create.paths = options.paths;
  create.geometry = geometry;
  if (!pool::is_taken_as_it_is(options.paths[0]) || holds_no_pool(options)) {
    Result<pool::Pool> created = create_pool(create);
    if (created || created.error().code != Code::kBusy) return created;
    // Only another device's file is there: that is no pool.
    if (pool::look_for_maker(options.paths[0]) == pool::Making::kAbsent) return created;
  }
  Result<pool::Pool> there = open_when_made(options);
  if (!there && pool::look_for_maker(options.paths[0]) == pool::Making::kAbandoned &&
      pool::remove_abandoned(create.paths, geometry)) {
    base::log(base::LogLevel::kWarn, "serve", "%s: was half-made, its maker has died: is made anew",
              options.paths[0].c_str());
    return create_pool(create);
  }
  CACHALOT_TRY_ASSIGN(pool::Pool existing, std::move(there));
  const pool::Geometry& found = existing.access().geometry;
  CACHALOT_TRY_ASSIGN(const pool::Geometry wanted,
                      make_geometry(with_defaults_of(options.geometry, found), options.paths));
  CACHALOT_TRY(check_same_geometry(wanted, found, options.paths[0].c_str()));
  return existing;
}

// Whether a standby goes on waiting after this error of create_or_open(). A file may come, and be finished,
// between that and a look at it: a missing one is an error where the first device's was there before.
bool may_come(const ServeFlags& options, Code code, pool::Making making, bool was_there) {
  const bool is_absent = making == pool::Making::kAbsent;
  if (code == Code::kBusy) return !(options.create && is_absent);
  return code == Code::kNotFound && !options.create && (is_absent || !was_there);
}

// The pool of a standby, which may begin before the keeper that makes it: waited for without an end, and
// said so. Nothing where a signal came first.
Result<std::optional<pool::Pool>> wait_for_pool(const ServeFlags& options) {
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

// Of all devices, also those that were added.
std::uint64_t bytes_in_all(const pool::Pool& pool) {
  std::uint64_t bytes = pool::total_bytes(pool.access().geometry);
  const auto added = pool.state().read_expansions();
  for (std::size_t i = 0; added && i < added->expansions.size(); ++i)
    bytes += pool::expansion_file_bytes(added->expansions[i].bytes);
  return bytes;
}

Status announce(const ServeFlags& options, const pool::Pool& pool, pool::PoolKeeper& keeper,
                Output& json) {
  const pool::Geometry& geometry = pool.access().geometry;
  const std::uint32_t epoch = keeper.keeper().epoch();
  const std::uint32_t capacity = pool.state().capacity_blocks();
  const std::uint64_t bytes = bytes_in_all(pool);
  print_now(human_output(options.json),
            "ready pid=" + std::to_string(os::own_pid()) + " pool=" + pool.paths()[0] +
                " epoch=" + std::to_string(epoch) + " blocks=" + std::to_string(capacity) +
                " bytes=" + std::to_string(bytes) + options.events.describe() +
                metrics_field(options.metrics) + "\n");
  nlohmann::json ready = {{"pid", os::own_pid()},
                          {"pool", pool.paths()},
                          {"epoch", epoch},
                          {"capacity_blocks", capacity},
                          {"block_bytes", geometry.block_bytes},
                          {"bytes", bytes},
                          {"policy", options.policy},
                          {"ttl_s", options.ttl_s},
                          {"kv_events", options.events.describe_json()}};
  if (!options.metrics.empty()) ready["metrics"] = options.metrics;
  return json.write_json(ready);
}

// A keeper on another machine, from which a standby takes over when it is silent: an old keeper that wakes up does no harm
// (docs/design/recovery.md).
class RemoteKeeper {
 public:
  explicit RemoteKeeper(std::uint32_t take_over_after_s)
      : patience_ns_(std::uint64_t{take_over_after_s} * 1'000'000'000) {}

  bool is_silent(const pool::Pool& pool) {
    const std::uint64_t now_ns = base::SteadyClock::read();
    const std::uint32_t epoch = pool.state().read_keepers().epoch;
    std::uint32_t publications = publications_;
    (void)pool.state().read_publications(publications);
    if (epoch != epoch_ || publications != publications_) {
      epoch_ = epoch;
      publications_ = publications;
      since_ns_ = now_ns;
    }
    return patience_ns_ != 0 && now_ns - since_ns_ >= patience_ns_;
  }

 private:
  const std::uint64_t patience_ns_;
  std::uint32_t epoch_ = 0, publications_ = 0;
  std::uint64_t since_ns_ = 0;
};

// Waits until the pool has no keeper, and becomes it. Nothing where a signal came first.
Result<std::optional<pool::PoolKeeper>> stand_by(const ServeFlags& flags, pool::Pool& pool,
                                                 const pool::KeeperOptions& options) {
  RemoteKeeper remote(flags.take_over_after_s);
  MissingDevices missing(flags.wait_for_devices_s, flags.without_lost_devices);
  constexpr auto kPause = std::chrono::milliseconds(10);
  // Its memory now: to get it is the longest part of a takeover.
  CACHALOT_TRY_ASSIGN(pool::PoolKeeper keeper, pool.stand_by(options));
  while (!stop_requested.load(std::memory_order_relaxed)) {
    CACHALOT_TRY(pool.check_still_there());
    const pool::KeeperLife life = pool.state().find_keeper();
    const bool is_over_the_silent = life == pool::KeeperLife::kElsewhere && remote.is_silent(pool);
    const bool is_its_turn =
        (!pool.state().may_have_keeper() && !pool.is_kept_by_maker()) || is_over_the_silent;
    if (!is_its_turn) missing.look(pool);
    if (is_its_turn && !missing.must_wait(pool)) {
      keeper.keeper().set_without_lost_devices(missing.goes_without());
      const Status served = pool.serve(keeper, is_over_the_silent ? pool::Succession::kOverTheLiving
                                                                  : pool::Succession::kOfTheDead);
      if (served) return std::optional(std::move(keeper));
      // A device may have gone just now: that is for the next look.
      const bool is_missing = served.error().code == Code::kIo && !pool.check_added_devices();
      if (served.error().code != Code::kBusy && !is_missing) return served.error();
    }
    std::this_thread::sleep_for(kPause);
  }
  return std::optional<pool::PoolKeeper>();
}

Result<std::optional<pool::PoolKeeper>> become_keeper(const ServeFlags& options, pool::Pool& pool,
                                                      const pool::KeeperOptions& keeper_options) {
  if (options.standby) {
    print_now(human_output(options.json), "standby pid=" + std::to_string(os::own_pid()) +
                                              " pool=" + pool.paths()[0] +
                                              metrics_field(options.metrics) + "\n");
    return stand_by(options, pool, keeper_options);
  }
  CACHALOT_TRY_ASSIGN(
      pool::PoolKeeper keeper,
      pool.serve(keeper_options, options.take_over ? pool::Succession::kOverTheLiving
                                                   : pool::Succession::kOfTheDead));
  return std::optional(std::move(keeper));
}

// Before a port or a storage directory, which that keeper has too, is found in use.
Status check_has_no_keeper(const ServeFlags& options) {
  if (options.standby || options.take_over || options.agent) return {};
  const Result<pool::Pool> there = pool::Pool::open(
      options.paths, {.huge_pages = false, .allow_foreign = true, .read_only = true});
  pool::KeeperLine line{};
  if (!there || there->state().find_keeper() != pool::KeeperLife::kHere ||
      !there->state().read_keeper_line(line) || !os::process_alive(line.pid, line.start_time))
    return {};  // of one that is not seen here, serve() says more
  return Error::make(Code::kBusy, "%.150s: has a keeper already: pid %u", options.paths[0].c_str(),
                     line.pid);
}

const char* flag_of_hosts(const ServeFlags& options) {
  return options.agent          ? "--agent"
         : options.host != 0    ? "--host"
         : options.replace_host ? "--replace-host"
                                : nullptr;
}

// The agent of this machine's host; none in a pool of one host.
Result<std::unique_ptr<pool::HostAgentThread>> start_agent(const ServeFlags& options,
                                                           const pool::Pool& pool) {
  if (pool.access().geometry.hosts > 1) {
    return pool::HostAgentThread::start(pool.access(), pool.devices().file(0),
                                        {options.host, options.replace_host});
  }
  const char* const flag = flag_of_hosts(options);
  if (flag == nullptr) return std::unique_ptr<pool::HostAgentThread>();
  return Error::make(Code::kInvalidArgument,
                     "%s: is for pools of several machines; %.120s is of one", flag,
                     options.paths[0].c_str());
}

// What --agent does: no keeper, until a signal or the end of the pool.
Status watch_engines(const ServeFlags& options, const pool::Pool& pool, Output& json) {
  print_now(human_output(options.json), "agent pid=" + std::to_string(os::own_pid()) +
                                            " pool=" + pool.paths()[0] +
                                            " host=" + std::to_string(options.host) + "\n");
  CACHALOT_TRY(json.write_json(
      {{"pid", os::own_pid()}, {"pool", pool.paths()}, {"host", options.host}, {"agent", true}}));
  (void)tell_ready();
  while (!stop_requested.load(std::memory_order_relaxed)) {
    CACHALOT_TRY(pool.check_still_there());
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return {};
}

// What reads the pool ends before the keeper and the pool, on every way out.
struct StorageEnds {
  ServedStorage& storage;
  ~StorageEnds() { storage.end(); }
};

Status serve(ServeFlags& options, pool::Pool& pool, const pool::KeeperOptions& keeper_options,
             node::MetricsServer* metrics, ServedStorage& storage, NewLimits& limits,
             Output& json) {
  CACHALOT_TRY_ASSIGN(const std::unique_ptr<pool::HostAgentThread> agent,
                      start_agent(options, pool));
  if (options.agent) return watch_engines(options, pool, json);
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
    limits.take(keeper->keeper());
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

// Of a pool that --create would make; one that is there may be of several hosts.
Status check_new_pool(const ServeFlags& options) {
  if (!options.create) return {};
  CACHALOT_TRY_ASSIGN(const pool::Geometry geometry,
                      make_geometry(options.geometry, options.paths));
  CACHALOT_TRY(options.storage.check_holds_a_block(geometry.block_bytes));
  const char* const flag = flag_of_hosts(options);
  if (flag == nullptr || geometry.hosts > 1) return {};
  const pool::Making making = pool::look_for_maker(options.paths[0]);
  if (making != pool::Making::kAbsent && !holds_no_pool(options)) return {};
  return Error::make(Code::kInvalidArgument,
                     "%s: is for pools of several machines, expected --hosts N with --create",
                     flag);
}

// What --check-config does: reads all flags, and opens and makes nothing.
Status check(ServeFlags& options) {
  CACHALOT_TRY(options.keeper_options());
  CACHALOT_TRY(options.events.open(true));
  if (!options.metrics.empty())
    CACHALOT_TRY(node::parse_listen_address("--metrics", options.metrics));
  CACHALOT_TRY(check_new_pool(options));
  CACHALOT_TRY(
      ServedStorage(options.storage, options.peers).prepare(ServedStorage::Keeper::kStandsBy));
  std::fprintf(human_output(options.json), "ok\n");
  return {};
}

Status serve(ServeFlags& options) {
  options.set_log();
  if (options.check_config) return check(options);
  CACHALOT_TRY_ASSIGN(const pool::KeeperOptions keeper_options, options.keeper_options());
  (void)os::raise_descriptor_limit();  // segments of storage, subscribers, scrapes
  CACHALOT_TRY_ASSIGN(Output json, open_output("--json", options.json, options.paths));
  CACHALOT_TRY(check_new_pool(options));
  CACHALOT_TRY(check_has_no_keeper(options));
  CACHALOT_TRY(options.events.open(options.standby || options.take_over));
  CACHALOT_TRY_ASSIGN(const Metrics metrics, listen_for_metrics(options.metrics, options.paths));
  ServedStorage storage(options.storage, options.peers);
  CACHALOT_TRY(storage.prepare(options.standby     ? ServedStorage::Keeper::kStandsBy
                               : options.take_over ? ServedStorage::Keeper::kTakesOver
                                                   : ServedStorage::Keeper::kFirst));
  NewLimits limits;
  std::optional<OnHangup> on_hangup;
  const auto begin_signals = [&] {
    end_on_signals();
    if (!flag_file_of(*options.command).empty())
      on_hangup.emplace([reread = std::make_shared<ServeReread>(options, limits)] { (*reread)(); });
  };
  if (options.standby) {
    begin_signals();
    CACHALOT_TRY_ASSIGN(std::optional<pool::Pool> pool, wait_for_pool(options));
    return pool ? serve(options, *pool, keeper_options, metrics.get(), storage, limits, json)
                : Status();
  }
  CACHALOT_TRY_ASSIGN(pool::Pool pool, create_or_open(options));
  CACHALOT_TRY(options.storage.check_holds_a_block(pool.access().geometry.block_bytes));
  begin_signals();
  return serve(options, pool, keeper_options, metrics.get(), storage, limits, json);
}

int run(ServeFlags& options) {
  const Status status = serve(options);
  return status ? kExitDone : fail(with_flag_file(*options.command, status.error()));
}

}  // namespace

void add_serve(Command& app, Chosen& chosen) {
  auto options = std::make_shared<ServeFlags>();
  Command* const command = app.add_subcommand(
      "serve",
      "runs the keeper of a pool in the foreground, until SIGINT, SIGTERM or `cachalot stop`");
  add_serve_flags(*command, *options);
  command->footer(
      "Example: cachalot serve --pool /dev/shm/kv --create --block-bytes 64KiB --capacity 1GiB\n"
      "         cachalot serve --pool /dev/shm/kv --metrics 127.0.0.1:9464\n"
      "         cachalot serve --pool /dev/shm/kv --kv-events tcp://*:5557 --kv-events-replay "
      "tcp://*:5558\n"
      "         cachalot serve --pool /dev/shm/kv --storage file:/ssd/kv --storage-capacity 1TiB");
  command->callback([options, &chosen] {
    options->arguments = chosen.arguments;
    chosen.run = [options] { return run(*options); };
  });
}

}  // namespace cachalot::apps
