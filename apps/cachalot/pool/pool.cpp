// `cachalot pool create|info|destroy`.

#include <sys/stat.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "base/words.h"
#include "command.h"
#include "creation.h"
#include "keeper_hangs.h"
#include "output.h"
#include "pool/making.h"
#include "pool/sizing.h"
#include "pool_flags.h"
#include "pool_list.h"
#include "pool_report.h"
#include "pool_summary.h"
#include "values.h"

namespace cachalot::apps {
namespace {

struct PoolOptions {
  Paths paths;
  GeometryFlags geometry;
  std::string json;
  bool shows_all = false;
};

Status tell_created(const PoolOptions& options, const pool::Pool& pool, Output& json) {
  const pool::Geometry& geometry = pool.access().geometry;
  std::FILE* const out = human_output(options.json);
  std::fprintf(out,
               "created %s: capacity %s, %s spare, %s bytes each; %u device%s of %s bytes: "
               "%s in all\n",
               base::printable(pool.paths()[0]).c_str(),
               base::counted(pool.state().capacity_blocks(), "block").c_str(),
               base::grouped(geometry.spare_blocks()).c_str(),
               base::grouped(geometry.block_bytes).c_str(), geometry.devices,
               geometry.devices == 1 ? "" : "s", base::grouped(geometry.device_bytes).c_str(),
               bytes_text(pool::total_bytes(geometry)).c_str());
  if (geometry.growable) {
    std::fprintf(out, "it may grow to a capacity of %s\n",
                 base::counted(geometry.capacity_blocks, "block").c_str());
  }
  CACHALOT_TRY(flush(out));
  return json.write_json(describe_pool(pool, false));
}

// Nothing names a memfd: it ends with the process that made it.
Status check_lasts(const Paths& paths) {
  for (const std::string& path : paths) {
    if (!path.starts_with("memfd:")) continue;
    return Error::make(Code::kInvalidArgument,
                       "%.120s: a memfd pool ends with this command, expected a path; `cachalot "
                       "serve --create` creates one that lives as long as its keeper",
                       path.c_str());
  }
  return {};
}

Status create(const PoolOptions& options) {
  CACHALOT_TRY(check_lasts(options.paths));
  pool::CreateOptions create_options;
  create_options.paths = options.paths;
  CACHALOT_TRY_ASSIGN(create_options.geometry, make_geometry(options.geometry, options.paths));
  CACHALOT_TRY_ASSIGN(Output json, open_output("--json", options.json, options.paths));
  CACHALOT_TRY_ASSIGN(pool::Pool pool, create_pool(create_options));
  const Status told = tell_created(options, pool, json);
  // A command that failed has made nothing. If a keeper serves it already, it stays.
  if (!told) static_cast<void>(pool.remove());
  return told;
}

Status info(const PoolOptions& options) {
  CACHALOT_TRY_ASSIGN(Output json, open_output("--json", options.json, options.paths));
  CACHALOT_TRY_ASSIGN(const pool::Pool pool, open_pool_to_read(options.paths));
  const nlohmann::json description = describe_pool(pool, keeper_hangs(pool));
  (options.shows_all ? print_pool : print_summary)(human_output(options.json), description);
  return json.write_json(description);
}

// Removing a link would leave the pool, and removing its target would leave the link; the owner of the link
// may want either.
Status check_no_link(const std::string& path) {
  struct stat named {
  }, target{};
  if (lstat(path.c_str(), &named) != 0 || !S_ISLNK(named.st_mode)) return {};
  // A link to a device node is as good as the node: neither is removed.
  if (stat(path.c_str(), &target) != 0 || !S_ISREG(target.st_mode)) return {};
  return Error::make(Code::kInvalidArgument,
                     "%.120s: is a symbolic link, expected the pool's own file", path.c_str());
}

// A file that cannot be opened is not removed: it may be another process's work. Where it looks like
// what is left of a pool, the message says how a person removes it.
Error with_way_out(const Paths& paths, const Error& error) {
  const pool::Making making = pool::look_for_maker(paths[0]);
  const bool is_there = making != pool::Making::kAbsent;
  const bool is_left = error.code == Code::kCorrupt ||
                       (error.code == Code::kNotFound && is_there) ||
                       making == pool::Making::kAbandoned;
  if (!is_left) return error;
  std::string files = file_name_of(paths[0]);
  for (std::size_t i = 1; i < paths.size(); ++i) files += " " + file_name_of(paths[i]);
  for (std::uint32_t i = 1; paths.size() == 1 && i < pool::kMaxDevices; ++i) {
    const std::string device = paths[0] + "." + std::to_string(i);
    if (os::SharedFile::open(device, os::Access::kReadOnly).ok())
      files += " " + file_name_of(device);
  }
  Error told =
      Error::make(error.code, "%.130s; if no process creates or serves this pool, remove it: rm %s",
                  error.message, files.c_str());
  told.os_error = error.os_error;
  return told;
}

Status destroy(const PoolOptions& options) {
  CACHALOT_TRY_ASSIGN(Output json, open_output("--json", options.json, options.paths));
  // Looked at first for its names, which are gone afterwards.
  Paths paths;
  {
    const Result<pool::Pool> pool = open_pool(options.paths, true);
    if (!pool) return with_way_out(options.paths, pool.error());
    paths = pool->paths();
  }
  for (const std::string& path : paths) CACHALOT_TRY(check_no_link(path));
  CACHALOT_TRY(pool::Pool::destroy(options.paths));
  std::fprintf(human_output(options.json), "destroyed %s\n", base::printable(paths[0]).c_str());
  return json.write_json({{"pool", paths}});
}

Command* add_action(Command& command, Chosen& chosen, const char* name, const char* text,
                    Status (*action)(const PoolOptions&),
                    const std::shared_ptr<PoolOptions>& options) {
  Command* const added = command.add_subcommand(name, text);
  add_pool_flag(*added, options->paths);
  added->add_option("--json", options->json, "write the result to FILE, or to stdout for -")
      ->type_name("FILE");
  added->footer(std::string("Example: cachalot pool ") + name + " /dev/shm/kv");
  added->callback([options, action, &chosen] {
    chosen.run = [options, action] {
      const Status status = action(*options);
      return status ? kExitDone : fail(status.error());
    };
  });
  return added;
}

}  // namespace

void add_pool(Command& app, Chosen& chosen) {
  Command* const command = app.add_subcommand("pool", "creates, shows and removes pools");
  const auto options = std::make_shared<PoolOptions>();
  Command* const creation = add_action(
      *command, chosen, "create", "creates a pool and reserves all its space", create, options);
  add_geometry_flags(*creation, options->geometry);
  creation->footer(
      "Example: cachalot pool create /dev/shm/kv --model Llama-3-8B --block-tokens 16 --capacity "
      "8GiB");
  Command* const shown = add_action(*command, chosen, "info",
                                    "shows keeper, blocks, clients and hit rate", info, options);
  shown->add_flag(
      "--all", options->shows_all,
      "show geometry, block accounting, all counters, and each client and namespace, too");
  add_action(*command, chosen, "destroy", "removes a pool; refuses one that a keeper serves",
             destroy, options);
  add_pool_list(*command, chosen);
  add_pool_grow(*command, chosen);
  add_pool_fence(*command, chosen);
  add_pool_blocks(*command, chosen);
  add_pool_fsck(*command, chosen);
  add_pool_export(*command, chosen);
  add_pool_import(*command, chosen);
  command->footer("Example: cachalot pool info /dev/shm/kv --json -");
}

}  // namespace cachalot::apps
