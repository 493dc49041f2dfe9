#include "fault_world.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/log.h"
#include "base/rng.h"
#include "pool/client/client.h"
#include "pool/keeper/keeper_line.h"
#include "pool/keeper/service/keeper.h"
#include "simulated_pool.h"
#include "testing/memory/lossy_memory.h"
#include "testing/memory/scheduler.h"

namespace cachalot::model {
namespace {

using memory::LossyHost;
using memory::Rule;
using memory::Scheduler;
using pool::Client;
using pool::Found;
using pool::Keeper;
using pool::Verdict;

constexpr std::uint32_t kClients = 2;
constexpr std::uint32_t kDepth = 3;
constexpr std::uint32_t kMostBlockBytes = 2048;
constexpr std::uint64_t kBudget = 40'000'000;

// A process: what it owns outlives the fiber that is abandoned when it dies.
struct ClientProcess {
  explicit ClientProcess(Scheduler& scheduler) : waiter(scheduler) {}
  YieldWaiter waiter;
  std::unique_ptr<Client> client;
  std::optional<pool::Access> access;
  std::uint32_t pid = 0;
  std::size_t fiber = 0;
  bool is_dead = false, has_left = false;
  BlockHash hashes[kDepth];
  Found found[kDepth];
  std::byte buffers[kDepth][kMostBlockBytes];
  std::vector<std::byte> bytes[kDepth];
};

struct KeeperProcess {
  std::unique_ptr<Keeper> keeper;
  std::uint32_t area = 0, host = 0;
  std::size_t fiber = 0;
  bool is_dead = false, has_ended = false, rules = false;
};

// What dead processes owned is never destroyed: destructors would detach.
std::vector<std::unique_ptr<ClientProcess>>& dead_clients() {
  static auto* const all = new std::vector<std::unique_ptr<ClientProcess>>;
  return *all;
}
std::vector<std::unique_ptr<KeeperProcess>>& dead_keepers() {
  static auto* const all = new std::vector<std::unique_ptr<KeeperProcess>>;
  return *all;
}

memory::Adversary adversary_of(const FaultOptions& options) {
  memory::Adversary adversary = memory::adversary(options.mood);
  adversary.pace.stall_chance = options.stall_chance;
  adversary.pace.stall_steps = options.stall_steps;
  return adversary;
}

class FaultWorld final : private pool::Evidence {
 public:
  explicit FaultWorld(const FaultOptions& options)
      : options_(options),
        rng_(options.seed * 991),
        scheduler_(options.seed, adversary_of(options).pace),
        memory_(scheduler_, {.devices = 1,
                             .bytes_each = device_bytes_of(geometry()),
                             .adversary = adversary_of(options)}) {
    // Two hosts for keepers in turn, one for each client.
    for (std::uint32_t i = 0; i < 2 + kClients; ++i) hosts_.push_back(&memory_.add_host());
  }

  ~FaultWorld() {
    for (auto& process : clients_) dead_clients().push_back(std::move(process));
    for (auto& process : keepers_) dead_keepers().push_back(std::move(process));
  }

  FaultResult run() {
    pool::Geometry g = geometry();
    g.device_bytes = device_bytes_of(geometry());
    format_pool(*pool::make_access({options_.seed + 1, 77}, g, hosts_[0]->view(), *hosts_[0]), 0);
    for (LossyHost* each : hosts_) each->break_rule(options_.broken);
    scheduler_.add("fate", [this] { be_fate(); });
    if (scheduler_.run(kBudget).ending != memory::Ending::kAllDone && result_.fault.empty()) {
      fault("hang: " + scheduler_.unfinished());
    }
    result_.steps = scheduler_.steps();
    return result_;
  }

 private:
  pool::Geometry geometry() const {
    pool::Geometry g = geometry_of(options_, kClients);
    g.hosts = 2;  // no process is on the keeper's machine
    return g;
  }
  void fault(const std::string& what) {
    if (result_.fault.empty()) result_.fault = what;
  }
  bool is_over() const { return !result_.fault.empty() || is_ending_; }
  void check(const char* what, const Error& error) {
    const Code code = error.code;
    if (code == Code::kNoKeeper || code == Code::kTimeout || code == Code::kBusy ||
        code == Code::kNoSpace || code == Code::kNotFound) {
      return;
    }
    fault(std::string(what) + ": " + error.message);
  }

  // An agent that sees processes end; what they stored has left their cores then.
  bool has_exited(const pool::ProcessIdentity& who) override {
    return std::find(exited_.begin(), exited_.end(), who.pid) != exited_.end();
  }

  // --- Fate: one fiber that lets the others die ------------------------------------------------

  void be_fate() {
    start_keeper(0);
    for (std::uint32_t i = 0; i < kClients; ++i) start_client(i);
    if (options_.ring_damages != 0) {
      scheduler_.add(
          "damage", [this] { damage_rings(); }, Scheduler::Role::kDaemon);
    }
    std::uint32_t crashes = options_.crashes, successions = options_.successions;
    while (crashes + successions != 0 && result_.fault.empty()) {
      pass(rng_.below(6000));
      if (rng_.below(crashes + successions) < crashes) {
        --crashes;
        crash_client(static_cast<std::uint32_t>(rng_.below(kClients)));
      } else {
        --successions;
        succeed(successions % 2 == 0);
      }
    }
    wait_until([this] { return operations_left() == 0; });
    is_ending_ = true;
    wait_until([this] {
      return std::all_of(clients_.begin(), clients_.end(),
                         [](const auto& c) { return c->has_left; });
    });
    look_at_what_is_left();
    for (auto& process : keepers_) wait_until([&] { return process->has_ended; });
  }

  template <class Done>
  void wait_until(Done&& done) {
    while (result_.fault.empty() && !done()) scheduler_.yield();
  }
  void pass(std::uint64_t steps) {
    for (const std::uint64_t end = scheduler_.steps() + steps; scheduler_.steps() < end;)
      scheduler_.yield();
  }
  std::uint64_t operations_left() const {
    const std::uint64_t all = std::uint64_t{options_.operations} * kClients;
    return all - std::min(all, result_.operations);
  }

  void look_at_what_is_left() {
    using Counter = pool::KeeperCounter;
    const auto is_clean = [this] {
      const Keeper& keeper = *keepers_.back()->keeper;
      auto& counters = const_cast<Keeper&>(keeper).counters();
      return counters[Counter::kGranted] + counters[Counter::kQuarantined] +
                 counters[Counter::kLimbo] ==
             0;
    };
    const std::uint64_t end = scheduler_.steps() + 2'000'000;
    while (result_.fault.empty() && !is_clean()) {
      if (scheduler_.steps() > end) return fault("blocks leaked: " + what_is_held());
      scheduler_.yield();
    }
    if (result_.fault.empty() && !keepers_.back()->keeper->is_valid())
      fault("the keeper's invariants do not hold");
    is_finished_ = true;
  }

  std::string what_is_held() {
    using Counter = pool::KeeperCounter;
    auto& counters = keepers_.back()->keeper->counters();
    std::string text = "granted " + std::to_string(counters[Counter::kGranted]) + " quarantined " +
                       std::to_string(counters[Counter::kQuarantined]) + " limbo " +
                       std::to_string(counters[Counter::kLimbo]);
    LossyHost& host = *hosts_[keepers_.back()->host];
    const auto access = open(host);
    const std::uint32_t area = keepers_.back()->area;
    for (std::uint32_t client = 0; client < kClients; ++client) {
      pool::ViewLine view{};
      pool::ClientLine line{};
      (void)access->region.read_as(access->layout.view_line(area, client), view);
      (void)access->region.read_as(access->layout.client_line(client), line);
      text += "; slot " + std::to_string(client) + " view incarnation " +
              std::to_string(view.incarnation) + " flags " + std::to_string(view.flags) + " pid " +
              std::to_string(view.pid) + ", line incarnation " + std::to_string(line.incarnation) +
              " flags " + std::to_string(line.flags) + " pid " + std::to_string(line.pid) +
              " drained " + std::to_string(line.drained) + " process " +
              std::to_string(clients_[client]->pid);
    }
    return text;
  }

  // --- Mailboxes -------------------------------------------------------------------------------

  void damage_rings() {
    base::Rng rng(options_.seed * 7919);
    while (result_.damages < options_.ring_damages && !is_over()) {
      for (std::uint64_t pause = rng.below(3'000); pause != 0; --pause) scheduler_.yield();
      const auto slot = static_cast<std::uint32_t>(rng.below(kClients));
      const bool is_request = rng.chance(0.5);
      memory::Line* const line = newest_line(slot, is_request);
      if (line == nullptr) continue;
      constexpr std::uint32_t kNumberBits = 64;
      const std::uint64_t bit = kNumberBits + rng.below(8 * memory::kLineBytes - kNumberBits);
      line->words[bit / 64] ^= std::uint64_t{1} << (bit % 64);
      ++result_.damages;
    }
  }

  // Of the slot's present incarnation, as it lies on the device; null: none was written yet.
  memory::Line* newest_line(std::uint32_t slot, bool is_request) {
    const auto access = open(*hosts_[0]);
    if (!access || keepers_.back()->keeper == nullptr) return nullptr;
    const pool::Layout& layout = access->layout;
    memory::Line* const lines = memory_.device().data();
    const auto at = [lines](std::uint64_t offset) { return lines + offset / memory::kLineBytes; };
    const auto client = memory::as<pool::ClientLine>(*at(layout.client_line(slot)));
    const memory::SealedRegion region =
        access->region.salted(is_request ? rpc::request_salt(client.incarnation)
                                         : rpc::response_salt(client.incarnation, client.epoch));
    const std::uint64_t ring =
        is_request ? layout.request_ring(slot) : layout.response_ring(keepers_.back()->area, slot);
    memory::Line* newest = nullptr;
    for (std::uint32_t i = 0; i < pool::kRingLines; ++i) {
      const std::uint64_t offset = ring + i * memory::kLineBytes;
      memory::Line* const line = at(offset);
      if (!region.checks(*line, offset)) continue;
      if (newest == nullptr || line->words[0] > newest->words[0]) newest = line;
    }
    return newest;
  }

  // --- Keepers ---------------------------------------------------------------------------------

  void start_keeper(std::uint32_t host) {
    const KeeperProcess& process = begin_keeper(host);
    wait_until([&process] { return process.rules; });
  }

  KeeperProcess& begin_keeper(std::uint32_t host) {
    keepers_.push_back(std::make_unique<KeeperProcess>());
    KeeperProcess* const process = keepers_.back().get();
    process->host = host;
    process->fiber = scheduler_.add(
        "keeper", [this, process] { keep(*process); }, Scheduler::Role::kDaemon);
    return *process;
  }

  // The one that rules is the last of keepers_.
  void start_two_keepers() {
    const KeeperProcess& first = begin_keeper(0);
    const KeeperProcess& second = begin_keeper(1);
    wait_until([&] { return first.rules && second.rules; });
    if (!result_.fault.empty()) return;
    if (first.keeper->epoch() == second.keeper->epoch()) return fault("two keepers of one epoch");
    if (first.area == second.area) return fault("two keepers in one area");
    const bool is_first = first.keeper->epoch() > second.keeper->epoch();
    if (is_first) std::swap(keepers_[keepers_.size() - 1], keepers_[keepers_.size() - 2]);
    wait_until([&] { return (is_first ? second : first).has_ended; });
  }

  void succeed(bool is_over_the_dead) {
    KeeperProcess& old = *keepers_.back();
    if (is_over_the_dead && !old.has_ended) {
      scheduler_.abandon(old.fiber);
      old.is_dead = old.has_ended = true;
    }
    // The old one's host: what it had in its write buffer still drains some time.
    if (options_.two_keepers_at_once) {
      start_two_keepers();
    } else {
      start_keeper(1 - old.host);
    }
    ++result_.successions;
  }

  // Those of keepers that still run and, between hosts, the other host's (KeeperAreas).
  std::uint32_t areas_to_avoid(const KeeperProcess& process) const {
    std::uint32_t areas = 0;
    if (options_.two_keepers_at_once) areas = process.host == 0 ? 0b1100 : 0b0011;
    for (const auto& other : keepers_) {
      if (other.get() != &process && !other->has_ended && other->keeper != nullptr)
        areas |= 1u << other->area;
    }
    return areas;
  }

  void keep(KeeperProcess& process) {
    LossyHost& host = *hosts_[process.host];
    const auto access = open(host);
    if (!access) return fault("the pool is not there");
    pool::KeeperOptions options;
    options.max_grants = 3;
    options.tend_interval_ns = 40 * Scheduler::kStepNs;
    options.watch_interval_ns = 400 * Scheduler::kStepNs;
    options.suspect_after_ns = options_.suspect_steps * Scheduler::kStepNs;
    options.polls_between_clock_reads = 1;
    options.scrub_lines = 16;
    options.use_doorbells = false;
    if (options_.two_keepers_at_once) options.host = process.host;
    do {
      options.avoid_slots = areas_to_avoid(process);
      scheduler_.yield();
    } while (options_.two_keepers_at_once && !next_keeper_area(*access, options.avoid_slots));
    const auto area = next_keeper_area(*access, options.avoid_slots);
    if (!area) return fault(area.error().message);
    process.area = *area;
    auto keeper = Keeper::start(*access, options, scheduler_, this);
    if (!keeper) return fault(keeper.error().message);
    process.keeper = *std::move(keeper);
    // Another keeper may have finished its takeover meanwhile: then it is another area.
    for (std::uint32_t each = 0; each < pool::kKeeperSlots; ++each) {
      if (pool::read_keeper_line(*access, each).epoch == process.keeper->epoch())
        process.area = each;
    }
    process.rules = true;
    while (!is_finished_ && result_.fault.empty() && !process.keeper->is_deposed()) {
      if (process.keeper->poll() == 0) scheduler_.yield();
    }
    result_.suspicions += process.keeper->counters()[pool::KeeperCounter::kSuspicions];
    process.has_ended = true;
  }

  // --- Clients ---------------------------------------------------------------------------------

  Result<pool::Access> open(LossyHost& host) const {
    CACHALOT_TRY_ASSIGN(
        const pool::Header header,
        pool::read_header(host, host.view().bases[0], host.view().bytes_each, "pool"));
    return pool::make_access(header.id, header.geometry, host.view(), host);
  }

  void start_client(std::uint32_t index) {
    if (clients_.size() <= index) clients_.resize(index + 1);
    if (clients_[index] != nullptr) dead_clients().push_back(std::move(clients_[index]));
    clients_[index] = std::make_unique<ClientProcess>(scheduler_);
    ClientProcess* const process = clients_[index].get();
    process->pid = ++last_pid_;
    process->fiber = scheduler_.add("client", [this, process, index] { use(*process, index); });
  }

  // The process dies between two steps; what it had stored drains when it exits, and then another process
  // sees that it has.
  void crash_client(std::uint32_t index) {
    ClientProcess& process = *clients_[index];
    if (process.has_left) return;
    scheduler_.abandon(process.fiber);
    process.is_dead = true;
    ++result_.crashes;
    pass(rng_.below(3) == 0 ? rng_.below(20'000) : 0);  // suspected first, now and then
    hosts_[2 + index]->complete_for(process.fiber);
    exited_.push_back(process.pid);
    start_client(index);
  }

  void use(ClientProcess& process, std::uint32_t index) {
    const auto access = open(*hosts_[2 + index]);
    if (!access) return fault("the pool is not there");
    process.access.emplace(*access);
    base::Rng rng(options_.seed * 31 + process.pid);
    while (!is_over() && operations_left() != 0) {
      if (process.client == nullptr && !attach(process, index)) continue;
      step(process, rng);
      ++result_.operations;
    }
    leave(process);
    process.has_left = true;
  }

  bool attach(ClientProcess& process, std::uint32_t index) {
    pool::ClientOptions options;
    options.grant_target = 2;
    options.timeout_ns = options_.patience_steps * Scheduler::kStepNs;
    options.recovery_ns = options.timeout_ns;
    options.verify_checksums = options.write_checksums = false;
    options.use_doorbells = false;
    options.pins = index == 0;
    options.host = index;
    options.pid = process.pid;
    options.start_time = process.pid;
    auto client = Client::attach(*process.access, index, options, process.waiter, scheduler_);
    if (!client) {
      check("attach", client.error());
      scheduler_.yield();
      return false;
    }
    process.client = *std::move(client);
    return true;
  }

  void leave(ClientProcess& process) {
    if (process.client == nullptr) return;
    result_.reattachments += process.client->counters()[pool::ClientCounter::kReattachments];
    if (const Status status = process.client->detach(); !status) check("detach", status.error());
    process.client.reset();
  }

  void step(ClientProcess& process, base::Rng& rng) {
    Client& client = *process.client;
    client.renew();
    const std::uint64_t dice = rng.below(100);
    const auto chain = static_cast<std::uint32_t>(rng.below(options_.chains));
    const auto length = static_cast<std::uint32_t>(1 + rng.below(kDepth));
    if (dice < 45) return put(process, chain, length);
    if (dice < 72) return void(get(process, chain, length, rng));
    if (dice < 82)
      return is_pinning(process) ? get_pinned(process, chain, length, rng)
                                 : void(get(process, chain, length, rng));
    if (dice < 94) {
      const auto evicted =
          client.requests().evict(name_of(chain, static_cast<std::uint32_t>(rng.below(length))));
      if (!evicted) check("evict", evicted.error());
      return;
    }
    leave(process);
  }

  bool is_pinning(const ClientProcess& process) const { return &process == clients_[0].get(); }

  std::uint32_t look_up(ClientProcess& process, std::uint32_t chain, std::uint32_t length) {
    for (std::uint32_t depth = 0; depth < length; ++depth)
      process.hashes[depth] = name_of(chain, depth);
    return static_cast<std::uint32_t>(
        process.client->lookup({process.hashes, length}, {process.found, length}));
  }

  bool is_right(const ClientProcess& process, std::uint32_t depth) const {
    if (process.found[depth].entry.length != options_.block_bytes) return false;
    for (std::uint32_t i = 0; i < options_.block_bytes; ++i) {
      if (process.buffers[depth][i] != byte_of(process.hashes[depth], i)) return false;
    }
    return true;
  }

  std::uint32_t get(ClientProcess& process, std::uint32_t chain, std::uint32_t length,
                    base::Rng& rng) {
    const std::uint32_t hits = look_up(process, chain, length);
    if (rng.below(4) == 0) pass(rng.below(300));
    std::byte* to[kDepth];
    for (std::uint32_t i = 0; i < hits; ++i) to[i] = process.buffers[i];
    const auto valid =
        static_cast<std::uint32_t>(process.client->read({process.found, hits}, {to, hits}));
    for (std::uint32_t i = 0; i < valid; ++i) {
      if (!is_right(process, i)) fault("wrong bytes were handed out");
    }
    if (valid != 0) process.client->report_hit(process.found[valid - 1]);
    result_.hits += valid;
    return valid;
  }

  void get_pinned(ClientProcess& process, std::uint32_t chain, std::uint32_t length,
                  base::Rng& rng) {
    const auto pin = process.client->pin();
    if (!pin) return check("pin", pin.error());
    const std::uint32_t hits = look_up(process, chain, length);
    pass(rng.below(800));
    for (std::uint32_t i = 0; i < hits; ++i) {
      std::uint64_t at = 0;
      process.access->for_each_extent(process.found[i].entry.block, options_.block_bytes,
                                      [&](const std::byte* from, std::uint64_t bytes) {
                                        process.access->domain().read_bulk(process.buffers[i] + at,
                                                                           from, bytes);
                                        at += bytes;
                                      });
      if (!is_right(process, i)) fault("wrong bytes under a pin");
    }
    process.client->unpin(*pin);
    result_.pinned_hits += hits;
  }

  void put(ClientProcess& process, std::uint32_t chain, std::uint32_t length) {
    base::Rng rng(1);
    const std::uint32_t valid = get(process, chain, length, rng);
    pool::PutItem items[kDepth];
    Verdict verdicts[kDepth];
    std::uint32_t count = 0;
    for (std::uint32_t depth = valid; depth < length; ++depth, ++count) {
      std::vector<std::byte>& bytes = process.bytes[count];
      bytes.resize(options_.block_bytes);
      for (std::uint32_t i = 0; i < bytes.size(); ++i) bytes[i] = byte_of(name_of(chain, depth), i);
      items[count] = {name_of(chain, depth), bytes};
    }
    if (count == 0) return;
    const BlockHash parent = name_of(chain, valid == 0 ? 0 : valid - 1);
    const Status status =
        process.client->put(valid == 0 ? nullptr : &parent, {items, count}, {verdicts, count});
    if (!status) check("put", status.error());
  }

  FaultOptions options_;
  base::Rng rng_;
  Scheduler scheduler_;
  memory::LossyMemory memory_;
  std::vector<LossyHost*> hosts_;
  std::vector<std::unique_ptr<KeeperProcess>> keepers_;
  std::vector<std::unique_ptr<ClientProcess>> clients_;
  std::vector<std::uint32_t> exited_;
  std::uint32_t last_pid_ = 0;
  bool is_ending_ = false, is_finished_ = false;
  FaultResult result_;
};

}  // namespace

FaultResult run_fault_world(const FaultOptions& options) {
  base::set_log_level(base::LogLevel::kOff);
  return FaultWorld(options).run();
}

}  // namespace cachalot::model
