#include "transfer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <span>

#include "peer.h"
#include "plain_copies.h"
#include "pool_fixture.h"
#include "signal_limits.h"
#include "ucx_peer.h"

namespace cachalot::apps::bench {
namespace {

using memory::DomainKind;

constexpr std::uint64_t kPoolBytes = std::uint64_t{384} << 20;
constexpr std::uint64_t kOwnBytes = std::uint64_t{256} << 20;
// A turn is timed in chunks, and the median counts: on a loaded machine most chunks are free of
// preemption. A chunk is long enough to have its share of grants, commits and touches.
constexpr std::uint64_t kChunkBytes = std::uint64_t{4} << 20;
constexpr std::uint64_t kLeastChunkBlocks = 4;
constexpr std::uint64_t kChunks = 8;
constexpr std::uint32_t kGrants = 16;

struct Size {
  const char* name;
  std::uint64_t bytes;
};
// 2.5 MiB is a block of 16 tokens of a 32-billion-parameter model.
constexpr std::uint64_t kMostBlockBytes = 4'194'304;
constexpr std::array kSizes = {Size{"64KiB", 65'536}, Size{"256KiB", 262'144},
                               Size{"1MiB", 1'048'576}, Size{"2.5MiB", 2'621'440},
                               Size{"4MiB", kMostBlockBytes}};

// The ways of moving a block: the plain copies of Copy, then ours. kTwoStep: through a buffer of the engine's, as with
// a transfer library that cannot use the engine's own pages.
constexpr std::uint32_t kPlain = kCopies, kChecksum = kCopies + 1, kTwoStep = kCopies + 2,
                        kWays = kCopies + 3;

// One process's side: its clients, its memory, and what it does in one turn.
class Worker {
 public:
  static Result<Worker> start(pool::Pool& pool, bool puts, std::uint32_t index) {
    CACHALOT_TRY_ASSIGN(pool::PoolClient plain, attach_when_served(pool, options(false)));
    CACHALOT_TRY_ASSIGN(pool::PoolClient checked, attach_when_served(pool, options(true)));
    CACHALOT_TRY_ASSIGN(PrivateMemory own, PrivateMemory::make(kOwnBytes));
    CACHALOT_TRY_ASSIGN(PrivateMemory bounce, PrivateMemory::make(kMostBlockBytes));
    return Worker(pool, std::move(plain), std::move(checked), std::move(own), std::move(bounce),
                  puts, index);
  }

  // Moves one random block, waited for. @return ns
  Result<std::uint64_t> one(std::uint32_t way) {
    const std::uint64_t start = now_ns();
    if (way >= kCopies && puts_) {
      const pool::PutItem item{bench_hash(next_hash_++), source(way)};
      pool::Verdict verdict{};
      CACHALOT_TRY(client(way).put(nullptr, {&item, 1}, {&verdict, 1}));
    } else {
      CACHALOT_TRY(move(way));
      access_->domain().complete();
    }
    return now_ns() - start;
  }

  // Moves random blocks, a stream of kChunks chunks. @return GB/s
  Result<double> turn(std::uint32_t way) {
    const std::uint64_t count = turn_blocks();
    RateMeter rate(chunk_blocks());
    rate.start();
    for (std::uint64_t i = 0; i < count; ++i) {
      CACHALOT_TRY(move(way));
      if (i + 1 < count) rate.count(1);
    }
    if (way >= kCopies && puts_) CACHALOT_TRY(client(way).drain());
    access_->domain().complete();
    rate.count(1);
    return rate.spread().median * static_cast<double>(bytes()) * 1e-3;
  }

  std::uint64_t chunk_blocks() const { return std::max(kChunkBytes / bytes(), kLeastChunkBlocks); }
  std::uint64_t turn_blocks() const { return kChunks * chunk_blocks(); }

  // Publishes what get() reads: blocks 0, 1, … up to the capacity.
  Status publish_all() {
    for (std::uint32_t n = 0; n < access_->geometry.capacity_blocks; ++n) {
      CACHALOT_TRY(clients_[1].client().post_put(nullptr, {bench_hash(n), {place(), bytes()}}));
    }
    return clients_[1].client().drain();
  }

  // Wakes the keeper.
  Status ping() { return clients_[0].client().requests().ping(); }
  std::uint64_t bytes() const { return access_->geometry.block_bytes; }

 private:
  Worker(pool::Pool& pool, pool::PoolClient plain, pool::PoolClient checked, PrivateMemory own,
         PrivateMemory bounce, bool puts, std::uint32_t index)
      : access_(&pool.access()),
        own_(std::move(own)),
        bounce_(std::move(bounce)),
        puts_(puts),
        rng_(index),
        next_hash_(std::uint64_t{index + 1} << 40) {
    clients_.push_back(std::move(plain));
    clients_.push_back(std::move(checked));
  }

  static pool::ClientOptions options(bool checksums) {
    pool::ClientOptions out;
    out.grant_target = kGrants;
    out.verify_checksums = checksums;
    out.write_checksums = checksums;
    return out;
  }

  pool::Client& client(std::uint32_t way) { return clients_[way == kChecksum].client(); }
  std::byte* place() { return own_.at(rng_.below(kOwnBytes / bytes()) * bytes()); }
  // What is put.
  std::span<const std::byte> source(std::uint32_t way) {
    std::byte* own = place();
    if (way != kTwoStep) return {own, bytes()};
    std::memcpy(bounce_.at(0), own, bytes());
    return {bounce_.at(0), bytes()};
  }
  std::uint32_t block() { return static_cast<std::uint32_t>(rng_.below(access_->geometry.blocks)); }

  Status move(std::uint32_t way) {
    if (way < kCopies) {
      copy(static_cast<Copy>(way));
    } else if (puts_) {
      return client(way).post_put(nullptr, {bench_hash(next_hash_++), source(way)});
    } else {
      const std::uint64_t n = rng_.below(access_->geometry.capacity_blocks);
      std::byte* own = place();
      std::byte* target = way == kTwoStep ? bounce_.at(0) : own;
      CACHALOT_TRY(client(way).get(bench_hash(n), {target, bytes()}));
      if (way == kTwoStep) std::memcpy(own, target, bytes());
    }
    return {};
  }

  void copy(Copy copy) {
    const DomainKind domain = access_->geometry.domain;
    std::byte* own = place();
    access_->for_each_extent(block(), bytes(), [&](std::byte* pool, std::uint64_t length) {
      if (puts_) {
        copy_in(copy, domain, pool, own, length);
      } else {
        copy_out(copy, domain, own, pool, length);
      }
      own += length;
    });
  }

  const pool::Access* access_;
  PrivateMemory own_, bounce_;
  bool puts_;
  base::Rng rng_;
  std::uint64_t next_hash_;
  std::vector<pool::PoolClient> clients_;
};

// The second client's process.
Result<Peer::Serve> prepare_peer(const std::vector<std::string>& paths, bool puts) {
  CACHALOT_TRY_ASSIGN(pool::Pool opened, pool::Pool::open(paths));
  auto pool = std::make_shared<pool::Pool>(std::move(opened));
  CACHALOT_TRY_ASSIGN(Worker started, Worker::start(*pool, puts, 1));
  auto worker = std::make_shared<Worker>(std::move(started));
  return Peer::Serve([pool, worker](const Command& command) -> std::uint64_t {
    const Result<double> gb_s = worker->turn(command.job);
    return gb_s ? static_cast<std::uint64_t>(*gb_s * 1e6) : 0;
  });
}

// All rows of one size in one domain.
class TransferBench {
 public:
  TransferBench(const Settings& settings, Report& report, bool puts, const Cores& cores)
      : settings_(settings), report_(report), puts_(puts), cores_(cores) {}

  Status run(DomainKind domain, const Size& size) {
    where_ = size.name + suffix(domain);
    show_progress((puts_ ? "put: " : "get: ") + where_);
    const auto capacity = static_cast<std::uint32_t>(kPoolBytes / size.bytes);
    CACHALOT_TRY_ASSIGN(
        ServedPool served,
        ServedPool::start({domain, size.bytes, capacity, 4 * kGrants + 64}, cores_));
    CACHALOT_TRY_ASSIGN(Peer peer, Peer::start(cores_.other, [&] {
                          return prepare_peer(served.pool().paths(), puts_);
                        }));
    CACHALOT_TRY_ASSIGN(Worker worker, Worker::start(served.pool(), puts_, 0));
    CACHALOT_TRY(worker.publish_all());
    CACHALOT_TRY(bandwidth(served, worker, nullptr));
    CACHALOT_TRY(latency(worker));
    return settings_.quick ? Status{} : bandwidth(served, worker, &peer);
  }

 private:
  Status bandwidth(ServedPool& served, Worker& worker, Peer* peer) {
    std::array<std::vector<double>, kWays> gb_s, client_us, keeper_us;
    for (std::uint32_t i = 0; i < 2 * settings_.repeats; ++i) {
      for (std::uint32_t k = 0; k < kWays; ++k) {
        const std::uint32_t way = (i + k) % kWays;  // none always comes after the same other
        CACHALOT_TRY(worker.ping());
        const std::uint64_t client_cpu = own_cpu_ns(), keeper_cpu = served.keeper_cpu_ns();
        if (peer != nullptr) CACHALOT_TRY(peer->begin({way, 0, 0, 0}));
        CACHALOT_TRY_ASSIGN(double rate, worker.turn(way));
        if (peer != nullptr) {
          CACHALOT_TRY_ASSIGN(const std::uint64_t other, peer->end());
          if (other == 0) return Error::make(Code::kInternal, "bench: the second client failed");
          rate += static_cast<double>(other) * 1e-6;
        }
        gb_s[way].push_back(rate);
        const double per_us = 1e3 * static_cast<double>(worker.turn_blocks());
        client_us[way].push_back(static_cast<double>(own_cpu_ns() - client_cpu) / per_us);
        keeper_us[way].push_back(static_cast<double>(served.keeper_cpu_ns() - keeper_cpu) / per_us);
      }
    }
    for (const std::uint32_t way : {kPlain, kChecksum, kTwoStep}) {
      Row row = row_of(peer == nullptr ? "rate" : "rate_2_clients", way, gb_s, "GB/s");
      row.extras.emplace_back("client_cpu_us", median_of(client_us[way]));
      if (peer == nullptr) row.extras.emplace_back("keeper_cpu_us", median_of(keeper_us[way]));
      report_.add(std::move(row));
    }
    return {};
  }

  // One block at a time, waited for.
  Status latency(Worker& worker) {
    std::array<std::vector<double>, kWays> us;
    for (std::uint32_t i = 0; i < 10 * settings_.repeats; ++i) {
      for (std::uint32_t k = 0; k < kWays; ++k) {
        const std::uint32_t way = (i + k) % kWays;  // none always comes after the same other
        CACHALOT_TRY(worker.ping());
        CACHALOT_TRY_ASSIGN(const std::uint64_t ns, worker.one(way));
        us[way].push_back(static_cast<double>(ns) * 1e-3);
      }
    }
    for (const std::uint32_t way : {kPlain, kChecksum, kTwoStep})
      report_.add(row_of("latency", way, us, "us"));
    return {};
  }

  static const char* suffix_of(std::uint32_t way) {
    return way == kChecksum ? "_checksum/" : way == kTwoStep ? "_two_step/" : "/";
  }

  // Our way beside the best of the plain copies.
  Row row_of(const char* name, std::uint32_t way,
             const std::array<std::vector<double>, kWays>& samples, const char* unit) const {
    const bool is_time = unit == std::string("us");
    std::uint32_t best = 0;
    for (std::uint32_t copy = 1; copy < kCopies; ++copy) {
      const double a = median_of(samples[copy]), b = median_of(samples[best]);
      if (is_time ? a < b : a > b) best = copy;
    }
    const Spread spread = spread_of(samples[way]);
    const bool has_target = !is_time && way == kPlain;
    Row row{std::string(name) + suffix_of(way) + where_,
            spread.median,
            unit,
            copy_name(static_cast<Copy>(best)),
            median_of(samples[best]),
            has_target ? ratio_at_least(0.9) : Target{}};
    add_spread(row, spread);
    return row;
  }

  const Settings& settings_;
  Report& report_;
  bool puts_;
  Cores cores_;
  std::string where_;
};

// What a transfer library moves between two processes of this machine.
Status ucx_rates(const Settings& settings, Report& report) {
  for (const Size& size : kSizes) {
    std::vector<double> gb_s;
    for (std::uint32_t i = 0; i < std::min(settings.repeats, 5u); ++i) {
      show_progress(std::string("ucx_perftest: ") + size.name);
      const Result<double> rate = run_ucx_perftest(size.bytes, (256u << 20) / size.bytes);
      if (!rate && rate.error().code == Code::kUnsupported) {
        report.note(
            "no rows of UCX: the program ucx_perftest (package ucx-utils) is not installed");
        return {};
      }
      if (!rate) return rate.error();
      gb_s.push_back(*rate / 1e9);
    }
    const Spread spread = spread_of(gb_s);
    Row row{std::string("ucx_tcp/") + size.name, spread.median, "GB/s", "", 0};
    add_spread(row, spread);
    report.add(std::move(row));
    if (settings.quick) break;
  }
  report.note("ucx_tcp: ucx_perftest -t tag_bw -E sleep between two processes of this machine.");
  return {};
}

Status bench_transfer(const Settings& settings, Report& report, bool puts) {
  const Cores cores = take_cores();
  TransferBench bench(settings, report, puts, cores);
  for (const DomainKind domain : settings.domains) {
    for (const Size& size : kSizes) CACHALOT_TRY(bench.run(domain, size));
  }
  report.note("two clients: the second shares its core with the keeper");
  report.note("two_step: through a buffer of the engine's. Its limit is one plain copy, too.");
  release_cores();
  CACHALOT_TRY(ucx_rates(settings, report));
  (void)take_cores();
  CACHALOT_TRY_ASSIGN(SignalLimits limits, SignalLimits::start(cores));
  return note_ping_pong(limits, report);
}

}  // namespace

Status bench_put(const Settings& settings, Report& report) {
  return bench_transfer(settings, report, true);
}

Status bench_get(const Settings& settings, Report& report) {
  return bench_transfer(settings, report, false);
}

}  // namespace cachalot::apps::bench
