// `cachalot serve`: a keeper in the foreground.

#include <signal.h>

#include <array>
#include <atomic>
#include <cinttypes>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "command.h"
#include "index/eviction_policy.h"
#include "pool_flags.h"

namespace cachalot::apps {
namespace {

struct Options {
  Paths paths;
  bool create = false;
  GeometryFlags geometry;
  std::string policy = "lru";
  std::uint32_t max_grants = 256;
  std::string log_level = "warn";
  std::string json;
};

constexpr std::array kLogLevels = {"debug", "info", "warn", "error", "off"};

// Set by signals; a handler can reach nothing but a variable of the program.
std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void on_signal(int) {
  stop_requested.store(true, std::memory_order_relaxed);
}

void end_on_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;  // without SA_RESTART: the keeper's nap ends at once
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
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
  const Field fields[] = {
      {"domain", static_cast<std::uint64_t>(wanted.domain),
       static_cast<std::uint64_t>(found.domain)},
      {"devices", wanted.devices, found.devices},
      {"device bytes", wanted.device_bytes, found.device_bytes},
      {"block bytes", wanted.block_bytes, found.block_bytes},
      {"capacity in blocks", wanted.capacity_blocks, found.capacity_blocks},
      {"blocks", wanted.blocks, found.blocks},
      {"client slots", wanted.clients, found.clients},
      {"hosts", wanted.hosts, found.hosts},
  };
  for (const Field& field : fields) {
    if (field.wanted == field.found) continue;
    return Error::make(Code::kInvalidArgument,
                       "%.120s: exists with other %s: %" PRIu64 ", the flags say %" PRIu64, name,
                       field.what, field.found, field.wanted);
  }
  return {};
}

Result<pool::Pool> create_or_open(const Options& options) {
  if (!options.create) return pool::Pool::open(options.paths);
  CACHALOT_TRY_ASSIGN(const pool::Geometry geometry,
                      make_geometry(options.geometry, options.paths));
  pool::Pool::CreateOptions create;
  create.paths = options.paths;
  create.geometry = geometry;
  Result<pool::Pool> created = pool::Pool::create(create);
  if (created || created.error().code != Code::kBusy) return created;
  CACHALOT_TRY_ASSIGN(pool::Pool existing, pool::Pool::open(options.paths));
  CACHALOT_TRY(check_same(geometry, existing.access().geometry, options.paths[0].c_str()));
  return existing;
}

Status announce(const Options& options, const pool::Pool& pool, pool::PoolKeeper& keeper) {
  const pool::Geometry& geometry = pool.access().geometry;
  const std::uint32_t epoch = keeper.keeper().epoch();
  pool::KeeperLine line{};
  (void)pool.read_keeper_line(line);
  std::FILE* const out = human_output(options.json);
  std::fprintf(out, "ready pid=%u pool=%s epoch=%u blocks=%u\n", line.pid, pool.paths()[0].c_str(),
               epoch, geometry.capacity_blocks);
  std::fflush(out);
  return write_json(options.json, {{"pid", line.pid},
                                   {"pool", pool.paths()},
                                   {"epoch", epoch},
                                   {"capacity_blocks", geometry.capacity_blocks},
                                   {"block_bytes", geometry.block_bytes},
                                   {"policy", options.policy}});
}

Status serve(const Options& options) {
  CACHALOT_TRY(index::parse_policy(options.policy));
  base::set_log_level(log_level_of(options.log_level));
  Result<pool::Pool> pool = create_or_open(options);
  if (!pool) {
    Error error = pool.error();
    if (error.code == Code::kNotFound) error.code = Code::kInvalidArgument;
    return error;
  }
  end_on_signals();
  pool::KeeperOptions keeper_options;
  keeper_options.policy = options.policy;
  keeper_options.max_grants = options.max_grants;
  CACHALOT_TRY_ASSIGN(pool::PoolKeeper keeper, pool->serve(keeper_options));
  CACHALOT_TRY(announce(options, *pool, keeper));
  keeper.run(stop_requested);
  std::fprintf(human_output(options.json), "ended epoch=%u\n", keeper.keeper().epoch());
  return {};
}

int run(const Options& options) {
  const Status status = serve(options);
  return status ? kExitDone : fail(status.error());
}

}  // namespace

void add_serve(CLI::App& app, Chosen& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* const command = app.add_subcommand(
      "serve", "the keeper of a pool, in the foreground until SIGINT, SIGTERM or `cachalot stop`");
  add_pool_flag(*command, options->paths);
  CLI::Option* const create = command->add_flag(
      "--create", options->create,
      "make the pool if there is none; one that is there must have this geometry");
  command->add_option("--policy", options->policy, "which blocks go when the pool is full")
      ->type_name("NAME")
      ->capture_default_str();
  command->add_option("--max-grants", options->max_grants, "blocks one client may hold in advance")
      ->type_name("N")
      ->check(CLI::Range(1u, 1u << 20))
      ->capture_default_str();
  command->add_option("--log-level", options->log_level, "what is said on stderr")
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
      "Example: cachalot serve --pool /dev/shm/kv --create --block-bytes 64KiB --capacity 1GiB");
  command->callback([options, &chosen] { chosen.run = [options] { return run(*options); }; });
}

}  // namespace cachalot::apps
