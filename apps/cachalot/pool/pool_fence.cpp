// `cachalot pool fence`: states that a client which cannot be watched stores no more.

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "client_flags.h"
#include "command.h"
#include "output.h"
#include "pool/hosts/host_evidence.h"
#include "values.h"

namespace cachalot::apps {
namespace {

struct FenceOptions {
  ClientFlags client;
  std::optional<std::uint32_t> fenced;
  std::optional<std::uint32_t> fenced_host;
  bool unknown = false;
  std::string json;
};

// All held slots of a machine that is off. @return blocks released
Result<std::uint32_t> fence_host(Attached& attached, std::uint32_t host) {
  const pool::Geometry& geometry = attached.pool.access().geometry;
  if (host >= geometry.hosts) {
    return Error::make(Code::kInvalidArgument, "--all-of-host %u: the pool has %u hosts, from 0 on",
                       host, geometry.hosts);
  }
  const std::uint32_t first = geometry.first_client(host);
  std::uint32_t released = 0;
  for (std::uint32_t slot = first; slot < first + geometry.clients_per_host(); ++slot) {
    if ((attached.pool.state().read_view(slot).flags & pool::kViewHeld) == 0) continue;
    CACHALOT_TRY_ASSIGN(const std::uint32_t blocks, attached.client->requests().fence(slot));
    released += blocks;
  }
  return released;
}

// The first slot of those that are to be fenced whose process lives. Nothing is refused: the operator may be about to kill
// it, and may know more.
void warn_of_the_living(const FenceOptions& options, const Attached& attached) {
  const Result<pool::HostEvidence> evidence = pool::HostEvidence::make();
  if (!evidence || options.unknown) return;
  for (std::uint32_t slot = 0; slot < attached.pool.access().geometry.clients; ++slot) {
    const pool::ViewLine view = attached.pool.state().read_view(slot);
    const bool is_meant =
        options.fenced ? slot == *options.fenced : view.host == *options.fenced_host;
    if (!is_meant || (view.flags & pool::kViewHeld) == 0 ||
        !evidence->is_alive(pool::identity_of(view)))
      continue;
    std::fprintf(
        stderr,
        "cachalot: warning: client slot %u: its process %u lives: kill it before it runs on; "
        "it would write into blocks that others have by then\n",
        slot, view.pid);
    return;
  }
}

Result<std::uint32_t> release(const FenceOptions& options, Attached& attached) {
  if (options.unknown) return attached.client->requests().fence_unknown();
  if (options.fenced_host) return fence_host(attached, *options.fenced_host);
  return attached.client->requests().fence(*options.fenced);
}

Status fence(const FenceOptions& options) {
  if (options.fenced.has_value() + options.fenced_host.has_value() + options.unknown != 1) {
    return Error::make(Code::kInvalidArgument,
                       "pool fence: give one of --client, --all-of-host and --unknown");
  }
  CACHALOT_TRY_ASSIGN(Output json, open_output("--json", options.json, options.client.paths));
  CACHALOT_TRY_ASSIGN(Attached attached, attach(options.client));
  if (options.json.empty()) warn_of_the_living(options, attached);
  CACHALOT_TRY_ASSIGN(const std::uint32_t released,
                      of_keeper(attached, release(options, attached)));
  std::fprintf(human_output(options.json), "released %u block%s\n", released,
               released == 1 ? "" : "s");
  nlohmann::json client, host;
  if (options.fenced) client = *options.fenced;
  if (options.fenced_host) host = *options.fenced_host;
  return json.write_json({{"client", client}, {"host", host}, {"released", released}});
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
  command
      ->add_option("--all-of-host", options->fenced_host,
                   "instead: all held slots of a machine, which is off or has booted since")
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
