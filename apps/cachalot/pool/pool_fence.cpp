// `cachalot pool fence`: states that a client which cannot be watched stores no more.

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "client_flags.h"
#include "command.h"
#include "output.h"
#include "values.h"

namespace cachalot::apps {
namespace {

struct FenceOptions {
  ClientFlags client;
  std::optional<std::uint32_t> fenced;
  bool unknown = false;
  std::string json;
};

Status fence(const FenceOptions& options) {
  if (options.fenced.has_value() == options.unknown) {
    return Error::make(Code::kInvalidArgument, "pool fence: give either --client or --unknown");
  }
  CACHALOT_TRY_ASSIGN(Output json, open_output("--json", options.json, options.client.paths));
  CACHALOT_TRY_ASSIGN(Attached attached, attach(options.client));
  CACHALOT_TRY_ASSIGN(
      const std::uint32_t released,
      of_keeper(attached, options.unknown ? attached.client->requests().fence_unknown()
                                          : attached.client->requests().fence(*options.fenced)));
  std::fprintf(human_output(options.json), "released %u blocks\n", released);
  nlohmann::json client;
  if (options.fenced) client = *options.fenced;
  return json.write_json({{"client", client}, {"released", released}});
}

int run_fence(const FenceOptions& options) {
  const Status status = fence(options);
  return status ? kExitDone : fail(status.error());
}

}  // namespace

void add_pool_fence(Command& pool, Chosen& chosen) {
  auto options = std::make_shared<FenceOptions>();
  options->client.is_operator = true;
  Command* const command = pool.add_subcommand(
      "fence",
      "states that a suspected client has stopped storing, and frees its quarantined blocks");
  add_pool_flag(*command, options->client.paths);
  command
      ->add_option("--client", options->fenced, "the held client slot, from `cachalot pool info`")
      ->type_name("N")
      ->transform(number(0, pool::kMaxClients - 1));
  command->add_flag("--unknown", options->unknown,
                    "instead: free the quarantined blocks whose holder is unknown");
  add_host_flag(*command, options->client);
  add_wait_flag(*command, options->client);
  command->add_option("--json", options->json, "write the result to FILE, or to stdout for -")
      ->type_name("FILE");
  command->footer("Example: cachalot pool fence /dev/shm/kv --client 3");
  command->callback([options, &chosen] { chosen.run = [options] { return run_fence(*options); }; });
}

}  // namespace cachalot::apps
