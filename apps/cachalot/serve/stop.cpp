// `cachalot stop`: asks a pool's keeper to end, and waits until it has.

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "client_flags.h"
#include "command.h"
#include "output.h"
#include "values.h"

namespace cachalot::apps {
namespace {

struct StopOptions {
  ClientFlags client;
  std::uint32_t timeout_s = 10;
  std::string json;
};

Status wait_for_end(const pool::Pool& pool, const pool::KeeperLine& keeper, std::uint32_t timeout_s,
                    std::uint64_t deadline_ns) {
  // A standby may rule by then.
  while (pool.state().read_keepers().epoch == keeper.epoch && pool.state().may_have_keeper()) {
    if (base::SteadyClock::read() > deadline_ns) {
      return Error::make(Code::kTimeout, "%.120s: the keeper, pid %u, has not ended after %u s",
                         pool.paths()[0].c_str(), keeper.pid, timeout_s);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return {};
}

Status stop(const StopOptions& options) {
  CACHALOT_TRY_ASSIGN(Output json, open_output("--json", options.json, options.client.paths));
  ClientFlags flags = options.client;
  const std::uint64_t timeout_ns = std::uint64_t{options.timeout_s} * 1'000'000'000;
  flags.timeout_ns = timeout_ns;
  CACHALOT_TRY_ASSIGN(Attached attached, attach(flags));
  const std::uint64_t deadline_ns = base::SteadyClock::read() + timeout_ns;
  pool::KeeperLine keeper{};
  (void)attached.pool.state().read_keeper_line(keeper);
  const Status asked = attached.client->requests().stop_keeper();
  // Its end may be seen before its answer.
  const pool::KeeperView now = attached.pool.state().read_keepers();
  const bool is_ending = now.epoch == keeper.epoch && (now.flags & pool::kKeeperServing) == 0;
  if (!asked && !(asked.error().code == Code::kNoKeeper && is_ending))
    return of_keeper(attached, asked);
  CACHALOT_TRY(wait_for_end(attached.pool, keeper, options.timeout_s, deadline_ns));
  std::fprintf(human_output(options.json), "stopped pid=%u epoch=%u\n", keeper.pid, keeper.epoch);
  return json.write_json({{"pid", keeper.pid}, {"epoch", keeper.epoch}});
}

int run_stop(const StopOptions& options) {
  const Status status = stop(options);
  return status ? kExitDone : fail(status.error());
}

}  // namespace

void add_stop(Command& app, Chosen& chosen) {
  auto options = std::make_shared<StopOptions>();
  options->client.is_operator = true;
  Command* const command =
      app.add_subcommand("stop", "stops the keeper of a pool, and waits until it has ended");
  add_pool_flag(*command, options->client.paths);
  command->add_option("--timeout", options->timeout_s, "how long to wait, in seconds")
      ->type_name("SECONDS")
      ->transform(number(1, 3600))
      ->capture_default_str();
  add_host_flag(*command, options->client);
  add_wait_flag(*command, options->client);
  command
      ->add_option("--json", options->json,
                   "write the keeper's pid and epoch to FILE, or to stdout for -")
      ->type_name("FILE");
  command->footer("Example: cachalot stop --pool /dev/shm/kv");
  command->callback([options, &chosen] { chosen.run = [options] { return run_stop(*options); }; });
}

}  // namespace cachalot::apps
