#include "actors.h"

#include <unistd.h>

#include <cstring>
#include <optional>
#include <vector>

#include "base/log.h"
#include "base/rng.h"
#include "pool/pool.h"

namespace cachalot::crash {
namespace {

using pool::Client;
using pool::Found;
using pool::Verdict;

BlockHash name_of(std::uint32_t chain, std::uint32_t depth) {
  const std::uint64_t id = chain * 100 + depth;
  return {base::mix64(id + 1), base::mix64(~id)};
}

void fill(std::vector<std::byte>& bytes, const BlockHash& hash) {
  for (std::size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const std::uint64_t word = base::mix64(hash.high + i);
    std::memcpy(bytes.data() + i, &word, 8);
  }
}

bool is_right(const std::byte* bytes, std::size_t count, const BlockHash& hash) {
  for (std::size_t i = 0; i + 8 <= count; i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + i, 8);
    if (word != base::mix64(hash.high + i)) return false;
  }
  return true;
}

// What may happen to a call while others die; anything else is a fault.
bool is_expected(Code code) {
  return code == Code::kNoKeeper || code == Code::kTimeout || code == Code::kBusy ||
         code == Code::kNoSpace || code == Code::kNotFound;
}

class ClientActor {
 public:
  ClientActor(const Setting& setting, Arena& arena, std::uint32_t number, std::uint64_t seed)
      : setting_(setting),
        arena_(arena),
        desk_(arena.desks[number]),
        rng_(seed),
        pins_(number == 0),
        buffer_(std::size_t{kDepth} * setting.block_bytes) {}

  int run() {
    Result<pool::Pool> pool = pool::Pool::open({setting_.path});
    if (!pool) return fail("open", pool.error());
    break_rule(*pool);
    pool_ = std::make_unique<pool::Pool>(*std::move(pool));
    while (desk_.must_end.load(std::memory_order_relaxed) == 0) {
      if (!attached_ && !attach()) {
        usleep(500);
        continue;
      }
      step();
      desk_.reattachments.store(
          attached_ ? client().counters()[pool::ClientCounter::kReattachments] : 0,
          std::memory_order_relaxed);
      desk_.operations.fetch_add(1, std::memory_order_relaxed);
    }
    attached_.reset();
    return 0;
  }

 private:
  Client& client() { return attached_->client(); }

  int fail(const char* what, const Error& error) {
    arena_.fault("client: %s: %s", what, error.message);
    return 1;
  }
  void check(const char* what, const Error& error) {
    if (!is_expected(error.code)) fail(what, error);
  }
  void break_rule([[maybe_unused]] const pool::Pool& pool) {
#ifdef CACHALOT_RULE_SWITCHES
    pool.access().domain().break_rule(setting_.broken);
#endif
  }

  bool attach() {
    pool::ClientOptions options;
    options.grant_target = 8;
    options.timeout_ns = 1'000'000'000;
    options.recovery_ns = 300'000'000;
    options.renew_interval_ns = 4'000'000;
    options.pins = pins_;
    options.verify_checksums = options.write_checksums = false;  // R6 alone must be enough
    Result<pool::PoolClient> attached = pool_->attach(options);
    if (!attached) {
      check("attach", attached.error());
      return false;
    }
    attached_.emplace(*std::move(attached));
    return true;
  }

  void step() {
    const std::uint64_t dice = rng_.below(100);
    const auto chain = static_cast<std::uint32_t>(rng_.below(setting_.chains));
    const auto length = static_cast<std::uint32_t>(1 + rng_.below(kDepth));
    if (dice < 40) return put(chain, length);
    if (dice < 80) return void(get(chain, length));
    if (dice < 86) return pins_ ? get_pinned(chain, length) : void(get(chain, length));
    if (dice < 94) return evict(chain, static_cast<std::uint32_t>(rng_.below(length)));
    if (const Status status = client().detach(); !status) check("detach", status.error());
    attached_.reset();
  }

  std::uint32_t look_up(std::uint32_t chain, std::uint32_t length) {
    for (std::uint32_t depth = 0; depth < length; ++depth) hashes_[depth] = name_of(chain, depth);
    return static_cast<std::uint32_t>(client().lookup({hashes_, length}, {found_, length}));
  }

  void verify(const std::byte* bytes, std::uint32_t depth, const char* how) {
    if (is_right(bytes, setting_.block_bytes, hashes_[depth])) {
      desk_.verified_bytes.fetch_add(setting_.block_bytes, std::memory_order_relaxed);
      return;
    }
    const pool::Entry& entry = found_[depth].entry;
    arena_.fault("wrong bytes (%s): block %u generation %u epoch %u", how, entry.block,
                 entry.generation, entry.epoch);
  }

  std::uint32_t get(std::uint32_t chain, std::uint32_t length) {
    const std::uint32_t hits = look_up(chain, length);
    std::byte* to[kDepth];
    for (std::uint32_t i = 0; i < hits; ++i)
      to[i] = buffer_.data() + std::size_t{i} * setting_.block_bytes;
    const auto valid = static_cast<std::uint32_t>(client().read({found_, hits}, {to, hits}));
    for (std::uint32_t i = 0; i < valid; ++i) verify(to[i], i, "validated");
    if (valid != 0) client().report_hit(found_[valid - 1]);
    desk_.hits.fetch_add(valid, std::memory_order_relaxed);
    note_read();
    return valid;
  }

  // The consumer that cannot discard: it reads in place, and checks nothing afterwards.
  void get_pinned(std::uint32_t chain, std::uint32_t length) {
    const auto pin = client().pin();
    if (!pin) return check("pin", pin.error());
    const std::uint32_t hits = look_up(chain, length);
    for (std::uint32_t i = 0; i < hits; ++i) {
      std::uint64_t at = 0;
      pool_->access().for_each_extent(found_[i].entry.block, setting_.block_bytes,
                                      [&](const std::byte* from, std::uint64_t bytes) {
                                        pool_->access().domain().read_bulk(buffer_.data() + at,
                                                                           from, bytes);
                                        at += bytes;
                                      });
      verify(buffer_.data(), i, "pinned");
    }
    client().unpin(*pin);
    note_read();
  }

  void put(std::uint32_t chain, std::uint32_t length) {
    const std::uint32_t valid = get(chain, length);
    std::vector<std::vector<std::byte>> bytes;
    std::vector<pool::PutItem> items;
    for (std::uint32_t depth = valid; depth < length; ++depth) {
      fill(bytes.emplace_back(setting_.block_bytes), name_of(chain, depth));
    }
    for (std::uint32_t depth = valid; depth < length; ++depth) {
      items.push_back({name_of(chain, depth), bytes[depth - valid]});
    }
    if (items.empty()) return;
    std::vector<Verdict> verdicts(items.size());
    const BlockHash parent = name_of(chain, valid == 0 ? 0 : valid - 1);
    const Status status = client().put(valid == 0 ? nullptr : &parent, items, verdicts);
    if (!status) return check("put", status.error());
    note(last_store_ns_, desk_.longest_store_gap_ns);
  }

  void evict(std::uint32_t chain, std::uint32_t depth) {
    const auto evicted = client().requests().evict(name_of(chain, depth));
    if (!evicted) check("evict", evicted.error());
  }

  void note_read() {
    note(last_read_ns_, desk_.longest_read_gap_ns);
  }

  static void note(std::uint64_t& last_ns, std::atomic<std::uint64_t>& longest_ns) {
    const std::uint64_t now_ns = base::SteadyClock::read();
    if (last_ns != 0 && now_ns - last_ns > longest_ns.load(std::memory_order_relaxed)) {
      longest_ns.store(now_ns - last_ns, std::memory_order_relaxed);
    }
    last_ns = now_ns;
  }

  const Setting& setting_;
  Arena& arena_;
  Desk& desk_;
  base::Rng rng_;
  const bool pins_;
  std::unique_ptr<pool::Pool> pool_;
  std::optional<pool::PoolClient> attached_;
  BlockHash hashes_[kDepth];
  Found found_[kDepth];
  std::vector<std::byte> buffer_;
  std::uint64_t last_read_ns_ = 0, last_store_ns_ = 0;
};

}  // namespace

int run_client(const Setting& setting, Arena& arena, std::uint32_t client, std::uint64_t seed) {
  obey(arena.desks[client]);
  return ClientActor(setting, arena, client, seed).run();
}

int run_keeper(const Setting& setting, Arena& arena, std::uint32_t number) {
  Desk& desk = arena.desks[number];
  obey(desk);
  Result<pool::Pool> pool = pool::Pool::open({setting.path});
  if (!pool) {
    arena.fault("keeper: open: %s", pool.error().message);
    return 1;
  }
#ifdef CACHALOT_RULE_SWITCHES
  pool->access().domain().break_rule(setting.broken);
#endif
  pool::KeeperOptions options;
  options.max_grants = kMaxGrants;
  options.suspect_after_ns = setting.suspect_after_ns;
  options.watch_interval_ns = 2'000'000;
  options.tend_interval_ns = 500'000;
  Result<pool::PoolKeeper> keeper = pool->serve(options, pool::Succession::kOverTheLiving);
  // its time was over before it had begun
  if (!keeper && keeper.error().code == Code::kStale) return 0;
  if (!keeper) {
    arena.fault("keeper: serve: %s", keeper.error().message);
    return 1;
  }
  desk.is_ready.store(1, std::memory_order_release);
  // The end is asked for by a word in the arena.
  while (desk.must_end.load(std::memory_order_relaxed) == 0) {
    if (keeper->keeper().is_deposed()) return 0;
    keeper->poll_or_wait();
    desk.operations.fetch_add(1, std::memory_order_relaxed);
  }
  if (!keeper->keeper().is_deposed() && !keeper->keeper().is_valid()) {
    arena.fault("keeper: its invariants do not hold");
    return 1;
  }
  return 0;
}

}  // namespace cachalot::crash
