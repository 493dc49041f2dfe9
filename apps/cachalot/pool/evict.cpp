// `cachalot evict KEY|--all`: drops blocks.

#include <memory>
#include <nlohmann/json.hpp>

#include "client_flags.h"
#include "command.h"
#include "output.h"

namespace cachalot::apps {
namespace {

struct EvictOptions {
  ClientFlags client;
  std::string key;
  bool all = false;
  bool whole_namespace = false;
  std::string json;
};

Result<std::uint32_t> evict(const EvictOptions& options) {
  if (!options.key.empty() + options.all + options.whole_namespace != 1) {
    return Error::make(Code::kInvalidArgument,
                       "evict: give one of KEY, --all and --whole-namespace");
  }
  BlockHash hash;
  if (!options.key.empty()) {
    CACHALOT_TRY_ASSIGN(hash, parse_key(options.key, options.client.fingerprint));
  }
  CACHALOT_TRY_ASSIGN(Attached attached, attach(options.client));
  if (options.all) return of_keeper(attached, attached.client->requests().evict_everything());
  if (options.whole_namespace)
    return of_keeper(attached, attached.client->requests().evict_namespace());
  return of_key(options.key, of_keeper(attached, attached.client->requests().evict(hash)));
}

int run_evict(const EvictOptions& options) {
  Result<Output> json = open_output("--json", options.json, options.client.paths);
  if (!json) return fail(json.error());
  const Result<std::uint32_t> evicted = evict(options);
  if (!evicted) return fail(evicted.error());
  std::fprintf(human_output(options.json), "evicted %u block%s%s\n", *evicted,
               *evicted == 1 ? "" : "s",
               options.whole_namespace && *evicted == 0
                   ? ": none of this namespace; `cachalot pool info` shows those of the pool"
                   : "");
  const Status written = json->write_json({{"evicted_blocks", *evicted}});
  return written ? kExitDone : fail(written.error());
}

}  // namespace

void add_evict(Command& app, Chosen& chosen) {
  auto options = std::make_shared<EvictOptions>();
  options->client.is_operator = true;
  Command* const command =
      app.add_subcommand("evict", "evicts a block and all its descendants from a served pool");
  command->add_option("key", options->key, kKeyHelp)->type_name("KEY");
  command->add_flag("--all", options->all,
                    "evict all blocks of all namespaces, except pinned ones");
  command->add_flag("--whole-namespace", options->whole_namespace,
                    "evict all blocks of --namespace, pinned ones, too");
  add_client_flags(*command, options->client);
  command->add_option("--json", options->json, "write the result to FILE, or to stdout for -")
      ->type_name("FILE");
  command->footer("Example: cachalot evict greeting --pool /dev/shm/kv");
  command->callback([options, &chosen] { chosen.run = [options] { return run_evict(*options); }; });
}

}  // namespace cachalot::apps
