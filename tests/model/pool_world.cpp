#include "pool_world.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <memory>

#include "base/rng.h"
#include "pool/client/client.h"
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
using pool::Verdict;

constexpr std::uint32_t kClients = 2;
constexpr std::uint32_t kMostBlockBytes = 4096;
constexpr std::uint32_t kDepth = 5;
constexpr std::uint64_t kHangSteps = 1'000'000;  // without one operation done; one takes about 500

memory::Adversary adversary_of(const WorldOptions& options) {
  memory::Adversary adversary = memory::adversary(options.mood);
  if (options.stall_steps != 0) adversary.pace.stall_steps = options.stall_steps;
  if (options.stall_chance >= 0) adversary.pace.stall_chance = options.stall_chance;
  return adversary;
}

class World {
 public:
  explicit World(const WorldOptions& options)
      : options_(options),
        rng_(options.seed * 77),
        scheduler_(options.seed, adversary_of(options).pace),
        memory_(scheduler_, {.devices = options.devices,
                             .bytes_each = device_bytes_of(geometry()),
                             .adversary = adversary_of(options)}) {
    for (std::uint32_t i = 0; i < 1 + kClients; ++i) {
      LossyHost& host = memory_.add_host();
      if (options.broken == Rule::kR4CompleteBeforeTelling) host.break_rule(options.broken);
      hosts_.push_back(&host);
    }
  }

  WorldResult run() {
    scheduler_.add(
        "keeper", [this] { keep(); }, Scheduler::Role::kDaemon);
    for (std::uint32_t i = 0; i < kClients; ++i) {
      scheduler_.add("client", [this, i] { use(i); });
    }
    std::uint64_t before = 0;
    do {
      before = result_.operations();
      if (scheduler_.run(kHangSteps).ending == memory::Ending::kAllDone) break;
    } while (result_.operations() != before);
    if (!scheduler_.unfinished().empty()) fault("hang");
    result_.steps = scheduler_.steps();
    result_.fingerprint = memory_.fingerprint();
    return result_;
  }

 private:
  std::uint32_t size_of(const BlockHash& hash) const {
    if (hash.low % 2 == 0) return options_.block_bytes;
    return 1 + static_cast<std::uint32_t>(hash.low % options_.block_bytes);
  }
  pool::Geometry geometry() const {
    pool::Geometry g = geometry_of(options_, kClients);
    g.devices = options_.devices;
    return g;
  }

  void fault(const std::string& what) {
    if (result_.fault.empty()) result_.fault = what;
  }
  bool is_over() const { return !result_.fault.empty(); }

  Result<pool::Access> open(LossyHost& host) const {
    CACHALOT_TRY_ASSIGN(
        const pool::Header header,
        pool::read_header(host, host.view().bases[0], host.view().bytes_each, "pool"));
    return pool::make_access(header.id, header.geometry, host.view(), host);
  }

  // The keeper's host: makes the pool, says so by another way than the pool, serves.
  void keep() {
    LossyHost& host = *hosts_[0];
    pool::Geometry g = geometry();
    g.device_bytes = device_bytes_of(geometry());
    const pool::PoolId id{options_.seed + 1, 77};
    const auto access = pool::make_access(id, g, host.view(), host);
    pool::format_pool(*access, 0);
    is_made_ = true;
    // That pools are made and found is R4's second half; the other rules are broken in what follows.
    for (LossyHost* each : hosts_) each->break_rule(options_.broken);
    pool::KeeperOptions keeper_options;
    keeper_options.max_grants = 3;
    keeper_options.tend_interval_ns = 40 * Scheduler::kStepNs;
    keeper_options.polls_between_clock_reads = 1;
    keeper_options.use_doorbells = false;
    auto keeper = pool::Keeper::start(*access, keeper_options, scheduler_);
    keeper_ = keeper->get();
    while (!scheduler_.stopping()) {
      ++keeper_polls_;
      if (keeper_->poll() == 0) scheduler_.yield();
    }
    result_.evictions = keeper_->counters()[pool::KeeperCounter::kEvictions];
    if (keeper_->counters()[pool::KeeperCounter::kMalformed] != 0)
      fault("a request arrived malformed");
    if (!keeper_->is_valid()) fault("the keeper's invariants do not hold");
    keeper_ = nullptr;
  }

  std::unique_ptr<Client> attach(std::uint32_t index, YieldWaiter& waiter) {
    LossyHost& host = *hosts_[1 + index];
    const auto access = open(host);
    if (!access) {
      fault(std::string("told of a pool that is not there: ") + access.error().message);
      return nullptr;
    }
    pool::ClientOptions client_options;
    client_options.grant_target = 2;
    client_options.timeout_ns = ~std::uint64_t{0} / 4;
    client_options.verify_checksums = client_options.write_checksums = options_.checksums;
    client_options.use_doorbells = false;
    auto client = Client::attach(*access, index, client_options, waiter, scheduler_);
    if (client) return *std::move(client);
    fault(std::string("attach: ") + client.error().message);
    return nullptr;
  }

  void use(std::uint32_t index) {
    YieldWaiter waiter(scheduler_);
    while (!is_made_) scheduler_.yield();
    (void)open_once(index);
    while (keeper_ == nullptr) scheduler_.yield();
    std::unique_ptr<Client> client = attach(index, waiter);
    base::Rng rng(options_.seed * 31 + index);
    for (std::uint32_t i = 0; i < options_.operations && client != nullptr && !is_over(); ++i) {
      const std::uint64_t dice = rng.below(100);
      const auto chain = static_cast<std::uint32_t>(rng.below(options_.chains));
      const auto length = static_cast<std::uint32_t>(1 + rng.below(kDepth));
      if (dice < 26) {
        put(*client, chain, length);
      } else if (dice < 46) {
        look(*client, chain, length);
      } else if (dice < 76) {
        get(*client, chain, length, false);
      } else if (dice < 88) {
        evict(*client, chain, static_cast<std::uint32_t>(rng.below(length)));
      } else {
        leave(*client);
        client.reset();
        client = attach(index, waiter);
        ++result_.done[static_cast<int>(Operation::kAttach)];
      }
    }
    if (client != nullptr && !is_over()) leave(*client);
  }

  // A process that was told that the pool is made finds it made.
  bool open_once(std::uint32_t index) {
    const auto access = open(*hosts_[1 + index]);
    if (!access) fault(std::string("told of a pool that is not there: ") + access.error().message);
    return access.ok();
  }

  void leave(Client& client) {
    const auto& counters = client.counters();
    result_.stale_reads += counters[pool::ClientCounter::kStaleReads];
    if (counters[pool::ClientCounter::kDamagedReads] != 0) {
      fault("a payload did not match its checksum although its entry stood");
    }
    const Status status = client.detach();
    if (!status) fault(std::string("detach: ") + status.error().message);
  }

  // Hits of a chain's first `length` blocks, read and checked; then the rest is stored.
  void put(Client& client, std::uint32_t chain, std::uint32_t length) {
    const std::uint32_t valid = get(client, chain, length, true);
    std::vector<std::vector<std::byte>> bytes;
    std::vector<pool::PutItem> items;
    for (std::uint32_t depth = valid; depth < length; ++depth) {
      const BlockHash hash = name_of(chain, depth);
      std::vector<std::byte>& block = bytes.emplace_back(size_of(hash));
      for (std::uint32_t i = 0; i < block.size(); ++i) block[i] = byte_of(hash, i);
    }
    for (std::uint32_t depth = valid; depth < length; ++depth) {
      items.push_back({name_of(chain, depth), bytes[depth - valid]});
    }
    ++result_.done[static_cast<int>(Operation::kPut)];
    if (items.empty()) return;
    std::vector<Verdict> verdicts(items.size(), Verdict::kBadItem);
    const BlockHash parent = name_of(chain, valid == 0 ? 0 : valid - 1);
    // Where the chains that both clients are writing fill the pool, a commit is refused, and with every
    // refusal one of the chains loses its protection: it cannot go on for ever.
    constexpr int kMostRefusals = 100;
    Status status;
    for (int refusals = 0; refusals < kMostRefusals; ++refusals) {
      status = client.put(valid == 0 ? nullptr : &parent, items, verdicts);
      if (status || status.error().code != Code::kNoSpace) break;
    }
    if (!status) {
      // A chain that is longer than what the other client's grants leave of the pool cannot be stored
      // whole: each refusal gives up its own tail, and the next attempt stores that again.
      const bool may_be = status.error().code == Code::kNoSpace && keeper_ != nullptr &&
                          keeper_->counters()[pool::KeeperCounter::kFree] == 0;
      if (may_be) return;
      return fault(std::string("put: ") + status.error().message);
    }
    for (const Verdict verdict : verdicts) {
      if (verdict == Verdict::kNotHeld)
        fault("a client was told that it does not hold its own grant");
      if (verdict == Verdict::kBadItem) fault("an item arrived broken");
    }
  }

  std::uint32_t get(Client& client, std::uint32_t chain, std::uint32_t length,
                    bool is_part_of_put) {
    BlockHash hashes[kDepth];
    pool::Found found[kDepth];
    for (std::uint32_t depth = 0; depth < length; ++depth) hashes[depth] = name_of(chain, depth);
    const auto hits = static_cast<std::uint32_t>(client.lookup({hashes, length}, {found, length}));
    // An engine has other things to do before it reads what it has found.
    for (std::uint64_t pause = rng_.below(4) == 0 ? rng_.below(options_.pause) : 0; pause != 0;
         --pause)
      scheduler_.yield();
    std::byte buffers[kDepth][kMostBlockBytes];
    std::byte* to[kDepth];
    for (std::uint32_t i = 0; i < hits; ++i) to[i] = buffers[i];
    const auto valid = static_cast<std::uint32_t>(client.read({found, hits}, {to, hits}));
    for (std::uint32_t depth = 0; depth < valid; ++depth) {
      const BlockHash hash = hashes[depth];
      if (found[depth].entry.length != size_of(hash))
        fault("a block has another length than was stored");
      for (std::uint32_t i = 0; i < size_of(hash); ++i) {
        if (buffers[depth][i] == byte_of(hash, i)) continue;
        fault("wrong bytes were handed out");
        break;
      }
    }
    if (valid != 0) client.report_hit(found[valid - 1]);
    if (!is_part_of_put) ++result_.done[static_cast<int>(Operation::kGet)];
    result_.hits += valid;
    return valid;
  }

  // A block that is published, and stays so, is found sooner or later: a torn line may hide it once.
  void look(Client& client, std::uint32_t chain, std::uint32_t length) {
    constexpr std::uint64_t kPolls = 300;  // of the keeper: a line of its may be half drained
    BlockHash hashes[kDepth];
    pool::Found found[kDepth];
    for (std::uint32_t depth = 0; depth < length; ++depth) hashes[depth] = name_of(chain, depth);
    ++result_.done[static_cast<int>(Operation::kLookup)];
    const std::uint32_t depth = published_depth(client, hashes, length);
    if (depth == 0) return void(client.lookup({hashes, length}, {found, length}));
    const std::uint64_t evictions = keeper_->counters()[pool::KeeperCounter::kEvictions];
    for (const std::uint64_t end = keeper_polls_ + kPolls; keeper_polls_ < end;) {
      if (client.lookup({hashes, length}, {found, length}) >= depth) return;
      if (keeper_ == nullptr || keeper_->counters()[pool::KeeperCounter::kEvictions] != evictions)
        return;
    }
    fault("a published block was not found");
  }

  std::uint32_t published_depth(const Client& client, const BlockHash* hashes,
                                std::uint32_t length) const {
    std::uint32_t depth = 0;
    while (keeper_ != nullptr && depth < length &&
           keeper_->is_published(hashes[depth], client.namespace_id())) {
      ++depth;
    }
    return depth;
  }

  void evict(Client& client, std::uint32_t chain, std::uint32_t depth) {
    const auto evicted = client.requests().evict(name_of(chain, depth));
    if (!evicted && evicted.error().code != Code::kNotFound) {
      fault(std::string("evict: ") + evicted.error().message);
    }
    ++result_.done[static_cast<int>(Operation::kEvict)];
  }

  WorldOptions options_;
  base::Rng rng_;
  Scheduler scheduler_;
  memory::LossyMemory memory_;
  std::vector<LossyHost*> hosts_;
  bool is_made_ = false;  // told beside the pool
  pool::Keeper* keeper_ = nullptr;
  std::uint64_t keeper_polls_ = 0;
  WorldResult result_;
};

}  // namespace

WorldResult run_world(const WorldOptions& options) {
  return World(options).run();
}

const char* rule_name(Rule rule) {
  switch (rule) {
    case Rule::kNone:
      return "none";
    case Rule::kR1OneWriterPerLine:
      return "R1 one writer per line";
    case Rule::kR2NothingDirty:
      return "R2 nothing dirty stays behind";
    case Rule::kR3FlushBeforeRead:
      return "R3 invalidate before reading";
    case Rule::kR3FenceBeforeFlush:
      return "R3 fence before the flush";
    case Rule::kR3FenceAfterFlush:
      return "R3 fence after the flush";
    case Rule::kR4OrderBeforePublish:
      return "R4 order before publishing";
    case Rule::kR4CompleteBeforeTelling:
      return "R4 complete before telling";
    case Rule::kR5CheckLines:
      return "R5 a line carries its proof";
    case Rule::kR5ConfirmSplitLines:
      return "R5 confirm split lines";
    case Rule::kR6ValidateAfterReading:
      return "R6 validate after reading";
    case Rule::kValidateGenerationOnly:
      return "validate by generation only";
    case Rule::kGrantBeforeTombstoneComplete:
      return "grant before the tombstone is complete";
    case Rule::kForgetGenerationAtTakeover:
      return "generation forgotten at takeover";
    case Rule::kReuseAfterTimeout:
      return "block reused after its commit timed out";
    case Rule::kCommitNotIdempotent:
      return "commit replayed by the next keeper not idempotent";
    case Rule::kReturnedBlockKeepsGeneration:
      return "returned block keeps its generation";
    case Rule::kHonourOldGrants:
      return "old keepers grants honoured";
    case Rule::kAnswerBeforeMinEpoch:
      return "answers before min_epoch is raised";
    case Rule::kLoseQuarantineAtTakeover:
      return "quarantine lost at takeover";
    case Rule::kReleaseOnReattach:
      return "released because it re-attached";
    case Rule::kPinWithoutComplete:
      return "pinned read published without completing";
  }
  return "?";
}

std::string rule_identifier(Rule rule) {
  std::string identifier;
  for (const char* c = rule_name(rule); *c != '\0'; ++c) {
    if (std::isalnum(static_cast<unsigned char>(*c)) != 0) identifier += *c;
  }
  return identifier;
}

}  // namespace cachalot::model
