// `cachalot pool create|info|destroy`.

#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "pool_flags.h"
#include "pool_report.h"

namespace cachalot::apps {
namespace {

struct Options {
  Paths paths;
  GeometryFlags geometry;
  std::string json;
};

Status create(const Options& options) {
  pool::Pool::CreateOptions create_options;
  create_options.paths = options.paths;
  CACHALOT_TRY_ASSIGN(create_options.geometry, make_geometry(options.geometry, options.paths));
  CACHALOT_TRY_ASSIGN(const pool::Pool pool, pool::Pool::create(create_options));
  const pool::Geometry& geometry = pool.access().geometry;
  std::fprintf(human_output(options.json),
               "created %s: %s blocks of %s bytes, %u devices of %s bytes\n",
               pool.paths()[0].c_str(), grouped(geometry.capacity_blocks).c_str(),
               grouped(geometry.block_bytes).c_str(), geometry.devices,
               grouped(geometry.device_bytes).c_str());
  return write_json(options.json, describe_pool(pool));
}

Status info(const Options& options) {
  CACHALOT_TRY_ASSIGN(const pool::Pool pool, open_pool(options.paths));
  const nlohmann::json description = describe_pool(pool);
  print_pool(human_output(options.json), description);
  return write_json(options.json, description);
}

Status destroy(const Options& options) {
  // Looked at first for its names, which are gone afterwards.
  Paths paths;
  {
    CACHALOT_TRY_ASSIGN(const pool::Pool pool, open_pool(options.paths));
    paths = pool.paths();
  }
  CACHALOT_TRY(pool::Pool::destroy(options.paths));
  std::fprintf(human_output(options.json), "destroyed %s\n", paths[0].c_str());
  return write_json(options.json, {{"pool", paths}});
}

CLI::App* add_action(CLI::App& command, Chosen& chosen, const char* name, const char* text,
                     Status (*action)(const Options&), const std::shared_ptr<Options>& options) {
  CLI::App* const added = command.add_subcommand(name, text);
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

void add_pool(CLI::App& app, Chosen& chosen) {
  CLI::App* const command = app.add_subcommand("pool", "makes, shows and removes pools");
  const auto options = std::make_shared<Options>();
  CLI::App* const creation = add_action(
      *command, chosen, "create", "makes a pool, with all its space reserved", create, options);
  add_geometry_flags(*creation, options->geometry);
  creation->footer(
      "Example: cachalot pool create /dev/shm/kv --model Llama-3-8B --block-tokens 16 --capacity "
      "8GiB");
  add_action(*command, chosen, "info", "shows geometry, keeper, block accounting and counters",
             info, options);
  add_action(*command, chosen, "destroy", "removes a pool that no keeper serves", destroy, options);
  command->footer("Example: cachalot pool info /dev/shm/kv --json -");
}

}  // namespace cachalot::apps
