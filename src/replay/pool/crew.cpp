#include "replay/pool/crew.h"

#include <signal.h>

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "replay/pool/engine.h"
#include "replay/pool/keeper.h"
#include "replay/pool/spread.h"

namespace cachalot::replay {
namespace {

using base::SteadyClock;

constexpr std::uint64_t kReadyLookMs = 2;
constexpr std::uint64_t kKeeperBlameMs = 200;  // how long a keeper may take to be seen dead
constexpr auto kStartNap = std::chrono::microseconds(100);

// Runs in the child: an interrupt from the terminal goes to all processes, and the parent's answer
// to it is to end the others.
void leave_signals_to_the_parent() {
  signal(SIGINT, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  signal(SIGTERM, SIG_DFL);
}

int report_end(ProcessState& state, const Status& status) {
  if (status) return 0;
  state.error = status.error();
  state.has_failed = true;
  return 1;
}

Status replay_requests(const EngineTask& task, const HostPlace& place, HarnessState& harness) {
  const ReplayOptions& options = task.options;
  OpaqueOptions client_options;
  client_options.pool = place.pool_paths;
  client_options.fingerprint = fingerprint(options);
  client_options.block_bytes = options.block_bytes;
  client_options.grant_blocks = grant_target(options.block_bytes);
  client_options.counts_prompts = true;
  client_options.recovery_ns = 0;  // the replay ends with its keeper
  CACHALOT_TRY_ASSIGN(OpaqueClient client, OpaqueClient::attach(client_options));
  CACHALOT_TRY_ASSIGN(Engine engine, Engine::make(task, harness, client));
  EngineState& state = harness.engines[task.number];
  state.process.is_ready.store(true, std::memory_order_release);
  while (harness.start_ns.load(std::memory_order_acquire) == 0) {
    std::this_thread::sleep_for(kStartNap);
  }
  CACHALOT_TRY(engine.run());
  return client.detach();
}

bool is_about_the_keeper(const Error& error) {
  return error.code == Code::kNoKeeper || error.code == Code::kTimeout;
}

}  // namespace

Result<Crew> Crew::start(const ReplayOptions& options, const Workload& workload,
                         std::span<const HostPlace> places, HarnessState& harness) {
  const std::vector<std::vector<std::size_t>> requests = spread_requests(options, workload);
  Crew crew(harness);
  for (std::uint32_t host = 0; host < places.size(); ++host)
    CACHALOT_TRY(crew.start_keeper(options, host, places[host]));
  for (const Member& keeper : crew.keepers_) CACHALOT_TRY(crew.wait_until(keeper.state->is_ready));
  for (std::uint32_t i = 0; i < options.all_engines(); ++i) {
    const std::uint32_t host = i / options.engines;
    const EngineTask task{options, workload, i, requests[host], places[host].marks};
    ProcessState& state = harness.engines[i].process;
    CACHALOT_TRY_ASSIGN(os::Child engine, os::Child::start([&] {
                          leave_signals_to_the_parent();
                          return report_end(state, replay_requests(task, places[host], harness));
                        }));
    crew.engines_.push_back({"engine " + std::to_string(i), host, &state, std::move(engine)});
  }
  for (const Member& engine : crew.engines_) CACHALOT_TRY(crew.wait_until(engine.state->is_ready));
  return crew;
}

// One opens the storage after the other, so that an error is of the first one.
Status Crew::start_keeper(const ReplayOptions& options, std::uint32_t host,
                          const HostPlace& place) {
  HostState& state = harness_->hosts[host];
  CACHALOT_TRY_ASSIGN(os::Child keeper, os::Child::start([&] {
                        leave_signals_to_the_parent();
                        return report_end(state.keeper, keep(options, host, place, *harness_));
                      }));
  const std::string name =
      options.hosts.count == 0 ? "the keeper" : "the keeper of host " + std::to_string(host);
  keepers_.push_back({name, host, &state.keeper, std::move(keeper)});
  return wait_until(state.has_opened);
}

void Crew::go() {
  harness_->start_ns.store(SteadyClock::read(), std::memory_order_release);
}

Status Crew::wait_until(const std::atomic<bool>& is_true) {
  while (!is_true.load(std::memory_order_acquire)) {
    CACHALOT_TRY(wait_for(kReadyLookMs));
  }
  return {};
}

Result<bool> Crew::wait_for(std::uint64_t timeout_ms) {
  for (Member& keeper : keepers_) {
    CACHALOT_TRY_ASSIGN(const bool is_done, look_at(keeper, std::exchange(timeout_ms, 0)));
    if (is_done) {
      return Error::make(Code::kNoKeeper, "%s ended before the engines did", keeper.name.c_str());
    }
  }
  bool all_done = true;
  for (Member& engine : engines_) {
    if (engine.is_done) continue;
    CACHALOT_TRY_ASSIGN(engine.is_done, look_at(engine, 0));
    all_done = all_done && engine.is_done;
  }
  return all_done;
}

Status Crew::end_keepers() {
  harness_->keepers_must_end.store(true, std::memory_order_relaxed);
  for (Member& keeper : keepers_) {
    CACHALOT_TRY_ASSIGN(const os::ChildStatus status, keeper.child.wait());
    if (!status.ok()) return failure_of(keeper, status);
  }
  return {};
}

// @return true if the member has ended well
Result<bool> Crew::look_at(Member& member, std::uint64_t timeout_ms) {
  CACHALOT_TRY_ASSIGN(const std::optional<os::ChildStatus> status,
                      member.child.wait_for(timeout_ms));
  if (!status) return false;
  if (status->ok()) return true;
  return failure_of(member, *status);
}

Error Crew::failure_of(Member& member, const os::ChildStatus& status) {
  const bool has_spoken = member.state->has_failed && status.exit_code == 1;
  Member& keeper = keepers_[member.host];
  const bool is_keeper = &member == &keeper;
  // The accused process may have died a moment before.
  if (has_spoken && !is_keeper && is_about_the_keeper(member.state->error)) {
    const Result<std::optional<os::ChildStatus>> ended = keeper.child.wait_for(kKeeperBlameMs);
    if (ended && *ended && !(*ended)->ok()) return failure_of(keeper, **ended);
  }
  if (has_spoken) {
    Error error = Error::make(member.state->error.code, "%s: %s", member.name.c_str(),
                              member.state->error.message);
    error.os_error = member.state->error.os_error;
    return error;
  }
  const Code code = is_keeper ? Code::kNoKeeper : Code::kIo;
  return Error::make(code, "%s (pid %d) died: %s", member.name.c_str(), member.child.pid(),
                     status.text().c_str());
}

}  // namespace cachalot::replay
