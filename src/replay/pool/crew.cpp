#include "replay/pool/crew.h"

#include <signal.h>

#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "node/archive/archive.h"
#include "os/limits.h"
#include "pool/pool.h"
#include "replay/pool/engine.h"
#include "storage/backends.h"

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

// Null: none is wanted. Storage that is down may come back while a keeper serves, but a replay would measure nothing.
Result<std::unique_ptr<storage::Store>> open_store(const StorageOptions& options) {
  constexpr std::uint64_t kPatienceNs = 5'000'000'000;
  if (options.uri.empty()) return std::unique_ptr<storage::Store>();
  CACHALOT_TRY_ASSIGN(std::unique_ptr<storage::Backend> backend,
                      storage::open_backend(options.uri, options.secrets));
  const storage::ObjectKey none{};
  bool is_there = false;
  CACHALOT_TRY(backend->exists({&none, 1}, {&is_there, 1}, SteadyClock::read() + kPatienceNs));
  return storage::Store::make(
      std::move(backend),
      {.limits = options.limits, .write_bytes_per_day = options.write_bytes_per_day});
}

StorageCounters count(node::Archive& archive) {
  const storage::StoreCounts stored = archive.store().counts();
  const node::ArchiveCounts moved = archive.counts();
  return {stored.put_bytes,
          stored.got_bytes,
          moved.fetched_blocks,
          moved.unused_blocks,
          moved.lost_blocks + moved.skipped_blocks,
          stored.evicted_objects,
          stored.failed_puts + stored.failed_gets,
          stored.damaged_objects};
}

Status check_has_worked(const storage::StoreCounts& counts) {
  const std::uint64_t failed = counts.failed_puts + counts.failed_gets;
  if (failed == 0 || counts.put_objects + counts.got_objects != 0) return {};
  return Error::make(Code::kIo, "storage: %llu blocks failed, expected some to be written or read",
                     static_cast<unsigned long long>(failed));
}

Status keep(const ReplayOptions& options, const std::vector<std::string>& paths,
            HarnessState& harness) {
  (void)os::raise_descriptor_limit();
  CACHALOT_TRY_ASSIGN(pool::Pool pool, pool::Pool::open(paths));
  pool::KeeperOptions keeper_options;
  keeper_options.policy = options.policy;
  CACHALOT_TRY_ASSIGN(std::unique_ptr<storage::Store> store, open_store(options.storage));
  CACHALOT_TRY_ASSIGN(pool::PoolKeeper keeper, pool.serve(keeper_options));
  std::optional<node::Archive> archive;
  if (store != nullptr) {
    node::ArchiveOptions archiving;
    archiving.policy = options.storage.write_policy;
    archive.emplace(pool, keeper.keeper(), std::move(store), archiving);
  }
  harness.keeper.is_ready.store(true, std::memory_order_release);
  CACHALOT_TRY(keeper.run(harness.keeper_must_end));
  harness.keeper_counters = keeper.keeper().counters();
  if (!archive) return {};
  harness.storage = count(*archive);
  return check_has_worked(archive->store().counts());
}

Status replay_requests(const ReplayOptions& options, const Workload& workload,
                       const std::vector<std::string>& paths, std::uint32_t number,
                       HarnessState& harness) {
  OpaqueOptions client_options;
  client_options.pool = paths;
  client_options.fingerprint = fingerprint(options);
  client_options.block_bytes = options.block_bytes;
  client_options.grant_blocks = grant_target(options.block_bytes);
  client_options.counts_prompts = true;
  client_options.recovery_ns = 0;  // the replay ends with its keeper
  CACHALOT_TRY_ASSIGN(OpaqueClient client, OpaqueClient::attach(client_options));
  CACHALOT_TRY_ASSIGN(Engine engine, Engine::make(options, workload, number, harness, client));
  EngineState& state = harness.engines[number];
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
                         const std::vector<std::string>& paths, HarnessState& harness) {
  Crew crew(harness);
  CACHALOT_TRY_ASSIGN(os::Child keeper, os::Child::start([&] {
                        leave_signals_to_the_parent();
                        return report_end(harness.keeper, keep(options, paths, harness));
                      }));
  crew.keeper_.emplace(Member{"the keeper", &harness.keeper, std::move(keeper)});
  CACHALOT_TRY(crew.wait_until_ready(harness.keeper));
  for (std::uint32_t i = 0; i < options.engines; ++i) {
    ProcessState& state = harness.engines[i].process;
    CACHALOT_TRY_ASSIGN(os::Child engine, os::Child::start([&, i] {
                          leave_signals_to_the_parent();
                          return report_end(state,
                                            replay_requests(options, workload, paths, i, harness));
                        }));
    crew.engines_.push_back(Member{"engine " + std::to_string(i), &state, std::move(engine)});
  }
  for (const Member& engine : crew.engines_) CACHALOT_TRY(crew.wait_until_ready(*engine.state));
  return crew;
}

void Crew::go() {
  harness_->start_ns.store(SteadyClock::read(), std::memory_order_release);
}

Status Crew::wait_until_ready(const ProcessState& state) {
  while (!state.is_ready.load(std::memory_order_acquire)) {
    CACHALOT_TRY(wait_for(kReadyLookMs));
  }
  return {};
}

Result<bool> Crew::wait_for(std::uint64_t timeout_ms) {
  CACHALOT_TRY_ASSIGN(const bool keeper_is_done, look_at(*keeper_, timeout_ms));
  if (keeper_is_done) {
    return Error::make(Code::kNoKeeper, "the keeper ended before the engines did");
  }
  bool all_done = true;
  for (Member& engine : engines_) {
    if (engine.is_done) continue;
    CACHALOT_TRY_ASSIGN(engine.is_done, look_at(engine, 0));
    all_done = all_done && engine.is_done;
  }
  return all_done;
}

Status Crew::end_keeper() {
  harness_->keeper_must_end.store(true, std::memory_order_relaxed);
  CACHALOT_TRY_ASSIGN(const os::ChildStatus status, keeper_->child.wait());
  if (!status.ok()) return failure_of(*keeper_, status);
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
  // The accused process may have died a moment before.
  if (has_spoken && &member != &*keeper_ && is_about_the_keeper(member.state->error)) {
    const Result<std::optional<os::ChildStatus>> keeper = keeper_->child.wait_for(kKeeperBlameMs);
    if (keeper && *keeper && !(*keeper)->ok()) return failure_of(*keeper_, **keeper);
  }
  if (has_spoken) {
    Error error = Error::make(member.state->error.code, "%s: %s", member.name.c_str(),
                              member.state->error.message);
    error.os_error = member.state->error.os_error;
    return error;
  }
  const Code code = &member == &*keeper_ ? Code::kNoKeeper : Code::kIo;
  return Error::make(code, "%s (pid %d) died: %s", member.name.c_str(), member.child.pid(),
                     status.text().c_str());
}

}  // namespace cachalot::replay
