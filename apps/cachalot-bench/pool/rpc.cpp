#include "rpc.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/rng.h"
#include "grants.h"
#include "pool_fixture.h"
#include "signal_limits.h"
#include "ucx_peer.h"

namespace cachalot::apps::bench {
namespace {

using memory::DomainKind;
using pool::BlockUse;
using pool::Found;

// Reads the uses of the published blocks first, first + 1, …
Result<std::vector<Found>> find_blocks(pool::Client& client, std::uint64_t first,
                                       std::uint64_t count) {
  constexpr std::uint64_t kBatch = 128;
  std::vector<Found> found(count);
  std::array<BlockHash, kBatch> hashes;
  for (std::uint64_t done = 0; done < count; done += kBatch) {
    const std::uint64_t n = std::min(kBatch, count - done);
    for (std::uint64_t i = 0; i < n; ++i) hashes[i] = bench_hash(first + done + i);
    if (client.lookup({hashes.data(), n}, {found.data() + done, n}) != n) {
      return Error::make(Code::kInternal, "bench: a block that was published is not found");
    }
  }
  return found;
}

template <class T>
void shuffle(std::vector<T>& items) {
  base::Rng rng(1);
  for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[rng.below(i)]);
}

// One domain's rows.
class RpcBench {
 public:
  static constexpr std::uint32_t kManyBlocks = 1'048'576;
  static constexpr std::uint32_t kFewBlocks = 65'536;

  RpcBench(const Settings& settings, DomainKind domain, const Cores& cores, SignalLimits& limits,
           Report& report)
      : settings_(settings), domain_(domain), cores_(cores), limits_(limits), report_(report) {}

  Status run() {
    blocks_ = settings_.quick ? kFewBlocks : kManyBlocks;
    // On a busy machine each wait for the other process may take a turn of the scheduler.
    requests_ = settings_.quick ? 20'480 : 200'000;
    CACHALOT_TRY_ASSIGN(ServedPool served, ServedPool::start({domain_, 64, blocks_, 1024}, cores_));
    served_.emplace(std::move(served));
    CACHALOT_TRY_ASSIGN(pool::PoolClient attached, served_->attach());
    client_.emplace(std::move(attached));
    show_progress("rpc: filling the directory");
    CACHALOT_TRY(fill(client(), 0, blocks_, 1, payload_));
    next_hash_ = blocks_;
    CACHALOT_TRY(round_trips());
    CACHALOT_TRY(touch_rates());
    CACHALOT_TRY(alone());
    CACHALOT_TRY(batched_touch_rate());
    CACHALOT_TRY(commit_rate());
    return grant_rates();
  }

 private:
  pool::Client& client() { return client_->client(); }
  std::string named(const char* name) const { return name + suffix(domain_); }

  Status round_trips() {
    const std::uint32_t trips = settings_.quick ? 512 : 16'000;
    CACHALOT_TRY_ASSIGN(const std::vector<Found> found, find_blocks(client(), 0, 1024));
    std::vector<double> bare, pings, touches;
    for (std::uint32_t i = 0; i < settings_.repeats; ++i) {
      show_progress("rpc: round trips");
      std::vector<double> samples;
      CACHALOT_TRY(limits_.ping_pong(domain_, trips, samples));
      bare.push_back(median_of(samples));
      CACHALOT_TRY(pings_of(trips, pings));
      CACHALOT_TRY(touches_of(found, trips, touches));
    }
    add_round_trip("round_trip/ping", pings, bare);
    add_round_trip("round_trip/touch", touches, bare);
    return {};
  }

  Status pings_of(std::uint32_t trips, std::vector<double>& p50s) {
    constexpr std::uint32_t kMean = 16;
    std::vector<double> samples;
    for (std::uint32_t done = 0; done < trips; done += kMean) {
      const std::uint64_t start = now_ns();
      for (std::uint32_t i = 0; i < kMean; ++i) CACHALOT_TRY(client().requests().ping());
      samples.push_back(static_cast<double>(now_ns() - start) / kMean);
    }
    p50s.push_back(median_of(samples));
    return {};
  }

  Status touches_of(const std::vector<Found>& found, std::uint32_t trips,
                    std::vector<double>& p50s) {
    constexpr std::uint32_t kMean = 16;
    std::vector<double> samples;
    CACHALOT_TRY(client().requests().ping());
    for (std::uint32_t done = 0; done < trips; done += kMean) {
      const std::uint64_t start = now_ns();
      for (std::uint32_t i = 0; i < kMean; ++i) {
        const pool::Entry& entry = found[(done + i) % found.size()].entry;
        if (!client().requests().post_touch({entry.block, entry.generation}))
          CACHALOT_TRY(client().requests().ping());
        CACHALOT_TRY(wait_for_all());
      }
      samples.push_back(static_cast<double>(now_ns() - start) / kMean);
    }
    p50s.push_back(median_of(samples));
    return {};
  }

  // Polls without backing off; a keeper that fell asleep meanwhile is woken.
  Status wait_for_all() {
    for (std::uint32_t idle = 1; client().requests().outstanding() != 0; ++idle) {
      if (client().requests().poll() == 0 && idle % kPollsBeforeWaking == 0)
        CACHALOT_TRY(client().requests().ping());
    }
    return {};
  }

  void add_round_trip(const char* name, const std::vector<double>& p50s,
                      const std::vector<double>& bare) {
    const Spread spread = spread_of(p50s);
    Row row{named(name),      spread.median,   "ns",
            "bare ping-pong", median_of(bare), ratio_at_most(1.2)};
    add_spread(row, spread);
    report_.add(std::move(row));
  }

  Status touch_rates() {
    CACHALOT_TRY_ASSIGN(const std::vector<Found> found, find_blocks(client(), 0, blocks_));
    std::vector<BlockUse> all;
    for (const Found& one : found) all.push_back({one.entry.block, one.entry.generation});
    std::vector<BlockUse> few(all.begin(), all.begin() + kFewBlocks);
    shuffle(all);
    shuffle(few);
    CACHALOT_TRY(touch_rate("touch_rate/64Ki", few));
    if (all.size() > few.size()) CACHALOT_TRY(touch_rate("touch_rate/1Mi", all));
    return {};
  }

  Status touch_rate(const char* name, const std::vector<BlockUse>& uses) {
    std::vector<RateMeter> rings(kRings, RateMeter(kChunk));
    RateMeter touches(kChunk);
    Cpu cpu;
    for (std::uint32_t i = 0; i < settings_.repeats; ++i) {
      show_progress(std::string("rpc: ") + name);
      for (std::uint32_t ring = 0; ring < kRings; ++ring) {
        if (!is_sensible(ring)) continue;
        const auto kind = static_cast<SignalLimits::Ring>(ring);
        CACHALOT_TRY(limits_.ring_rate(domain_, kind, requests_, rings[ring]));
      }
      CACHALOT_TRY(measure(requests_, touches, cpu, [&] { return stream_touches(uses, touches); }));
    }
    const Target target = value_at_least(domain_ == DomainKind::kCoherent ? 40 : 25);
    Row row = row_of(name, touches, cpu, target);
    row.baseline = "raw ring without CRC, the best of its kinds";
    for (std::uint32_t ring = 0; ring < kRings; ++ring) {
      const double m_per_s = rings[ring].spread().median;
      row.baseline_value = std::max(row.baseline_value, m_per_s);
      if (is_sensible(ring)) row.extras.emplace_back(kRingKeys[ring], m_per_s);
    }
    report_.add(std::move(row));
    return {};
  }

  Status stream_touches(const std::vector<BlockUse>& uses, RateMeter& rate) {
    std::uint32_t idle = 0;
    for (std::uint64_t posted = 0; posted < requests_;) {
      while (posted < requests_ && client().requests().post_touch(uses[at_])) {
        ++posted;
        at_ = at_ + 1 < uses.size() ? at_ + 1 : 0;
      }
      const std::uint32_t answered = client().requests().poll();
      rate.count(answered);
      if (answered != 0) {
        idle = 0;
      } else if (++idle % kPollsBeforeWaking == 0) {
        CACHALOT_TRY(client().requests().ping());
      }
    }
    return wait_for_all();
  }

  // The CPU time of each side's own work, without the other's or any waiting: keeper and client
  // take turns in one thread, 64 requests at a time.
  Status alone() {
    show_progress("rpc: each side alone");
    CACHALOT_TRY_ASSIGN(InlinePool pool, InlinePool::start({domain_, 64, kFewBlocks, 1024}));
    CACHALOT_TRY(fill(pool.client(), 0, kFewBlocks, 1, payload_));
    CACHALOT_TRY_ASSIGN(const std::vector<Found> found, find_blocks(pool.client(), 0, kFewBlocks));
    std::vector<BlockUse> uses;
    for (const Found& one : found) uses.push_back({one.entry.block, one.entry.generation});
    shuffle(uses);
    std::vector<double> keeper_ns, client_ns;
    for (std::uint32_t i = 0; i < settings_.repeats; ++i) {
      for (std::size_t at = 0; at + kTurn <= uses.size(); at += kTurn) {
        const std::uint64_t start = now_ns();
        for (std::size_t n = at; n < at + kTurn; ++n) pool.client().requests().post_touch(uses[n]);
        pool.client().requests().poll();  // sends them
        const std::uint64_t posted = now_ns();
        std::uint32_t served = 0;
        for (std::uint32_t polls = 0; served < kTurn; ++polls) {
          served += pool.keeper().poll();
          if (polls == kPollsBeforeWaking)
            return Error::make(Code::kInternal, "bench: the keeper sees no requests");
        }
        const std::uint64_t answered = now_ns();
        while (pool.client().requests().outstanding() != 0) pool.client().requests().poll();
        const std::uint64_t done = now_ns();
        keeper_ns.push_back(static_cast<double>(answered - posted) / kTurn);
        client_ns.push_back(static_cast<double>(posted - start + done - answered) / kTurn);
      }
    }
    add_alone("touch_cpu/keeper", keeper_ns);
    add_alone("touch_cpu/client", client_ns);
    return {};
  }

  void add_alone(const char* name, const std::vector<double>& samples) {
    const Spread spread = spread_of(samples);
    Row row{named(name), spread.median, "ns", "", 0};
    add_spread(row, spread);
    report_.add(std::move(row));
  }

  // What engines do: five hits a request.
  Status batched_touch_rate() {
    CACHALOT_TRY_ASSIGN(std::vector<Found> found, find_blocks(client(), 0, kFewBlocks));
    shuffle(found);
    RateMeter rate(kChunk);
    Cpu cpu;
    for (std::uint32_t i = 0; i < settings_.repeats; ++i) {
      show_progress("rpc: touches, five a request");
      const Status status =
          measure(requests_, rate, cpu, [&] { return stream_reports(found, rate); });
      if (!status) return status;
    }
    report_.add(row_of("touch_rate/five_a_request", rate, cpu));
    return {};
  }

  // The client drops reports rather than wait for room, so the waiting is done here.
  Status stream_reports(const std::vector<Found>& found, RateMeter& rate) {
    constexpr std::uint32_t kReports = pool::kUsesInHead;  // that make a request
    std::uint32_t idle = 0;
    for (std::uint64_t n = 0; n < requests_;) {
      while (n < requests_ && client().requests().outstanding() < rpc::kMaxOutstanding) {
        for (std::uint32_t i = 0; i < kReports; ++i) client().report_hit(found[n++ % found.size()]);
      }
      const std::uint32_t answered = client().requests().poll();
      rate.count(answered * kReports);
      idle = answered != 0 ? 0 : idle + 1;
      if (idle == kPollsBeforeWaking) CACHALOT_TRY(client().requests().ping());
    }
    return wait_for_all();
  }

  // Roots of 64 bytes into a full pool: each brings a grant, an eviction and a commit.
  Status commit_rate() {
    constexpr std::uint64_t kPutChunk = 512;
    const std::uint64_t puts = requests_ / 4;
    RateMeter rate(kPutChunk);
    Cpu cpu;
    for (std::uint32_t i = 0; i < settings_.repeats; ++i) {
      show_progress("rpc: commits");
      const Status status = measure(puts, rate, cpu, [&]() -> Status {
        for (std::uint64_t n = 0; n < puts; ++n) {
          CACHALOT_TRY(client().post_put(nullptr, {bench_hash(next_hash_++), payload_}));
          rate.count(1);
        }
        return client().drain();
      });
      if (!status) return status;
    }
    report_.add(row_of("commit_rate/evicting", rate, cpu));
    return {};
  }

  // Blocks granted and given back again.
  Status grant_rates() {
    CACHALOT_TRY_ASSIGN(const auto stream, GrantStream::attach(served_->pool()));
    for (const std::uint32_t batch : {4u, 64u}) {
      const std::string name = "grant_rate/" + std::to_string(batch) + "_a_request";
      RateMeter rate(kChunk);
      Cpu cpu;
      for (std::uint32_t i = 0; i < settings_.repeats; ++i) {
        show_progress("rpc: " + name);
        CACHALOT_TRY(
            measure(requests_, rate, cpu, [&] { return stream->run(requests_, batch, rate); }));
      }
      report_.add(row_of(name.c_str(), rate, cpu));
    }
    return {};
  }

  // CPU time of one operation, waiting included: both sides spin.
  struct Cpu {
    std::vector<double> client_ns, keeper_ns;
  };

  template <class Stream>
  Status measure(std::uint64_t operations, RateMeter& rate, Cpu& cpu, Stream&& stream) {
    CACHALOT_TRY(client().requests().ping());  // wakes the keeper
    const std::uint64_t client_cpu = own_cpu_ns(), keeper_cpu = served_->keeper_cpu_ns();
    rate.start();
    CACHALOT_TRY(stream());
    const auto count = static_cast<double>(operations);
    cpu.client_ns.push_back(static_cast<double>(own_cpu_ns() - client_cpu) / count);
    cpu.keeper_ns.push_back(static_cast<double>(served_->keeper_cpu_ns() - keeper_cpu) / count);
    return {};
  }

  Row row_of(const char* name, const RateMeter& rate, const Cpu& cpu,
             const Target& target = {}) const {
    Row row{named(name), rate.spread().median, "M/s", "", 0, target};
    add_spread(row, rate.spread());
    row.extras.emplace_back("client_cpu_ns", median_of(cpu.client_ns));
    row.extras.emplace_back("keeper_cpu_ns", median_of(cpu.keeper_ns));
    return row;
  }

  static constexpr std::uint32_t kTurn = 64;  // requests that one poll can take
  static constexpr std::uint64_t kChunk = 2048;
  static constexpr auto kRings = static_cast<std::uint32_t>(SignalLimits::Ring::kCount);
  static constexpr const char* kRingKeys[kRings] = {
      "ring_answer_each_m_per_s", "ring_answer_per_poll_m_per_s", "ring_plain_loads_m_per_s"};
  bool is_sensible(std::uint32_t ring) const {
    return domain_ == DomainKind::kCoherent ||
           ring != static_cast<std::uint32_t>(SignalLimits::Ring::kPlain);
  }

  static constexpr std::uint32_t kPollsBeforeWaking = 4096;

  const Settings& settings_;
  DomainKind domain_;
  Cores cores_;
  SignalLimits& limits_;
  Report& report_;
  std::uint32_t blocks_ = 0;
  std::uint64_t requests_ = 0;
  std::uint64_t next_hash_ = 0;
  std::size_t at_ = 0;
  const std::vector<std::byte> payload_ = std::vector<std::byte>(64, std::byte{1});
  std::optional<ServedPool> served_;
  std::optional<pool::PoolClient> client_;
};

// What a message and its answer cost by a transfer library between two processes of this machine.
Status ucx_round_trip(const Settings& settings, Report& report) {
  std::vector<double> ns;
  for (std::uint32_t i = 0; i < std::min(settings.repeats, 5u); ++i) {
    show_progress("rpc: ucx_perftest");
    const Result<double> one = run_ucx_round_trips(64, 20'000);
    if (!one && one.error().code == Code::kUnsupported) {
      report.note("no row of UCX: the program ucx_perftest (package ucx-utils) is not installed");
      return {};
    }
    if (!one) return one.error();
    ns.push_back(*one);
  }
  const Spread spread = spread_of(ns);
  Row row{"round_trip/ucx_tcp", spread.median, "ns", "", 0};
  add_spread(row, spread);
  report.add(std::move(row));
  report.note("ucx_tcp: ucx_perftest -t tag_lat -E sleep between two processes of this machine.");
  return {};
}

}  // namespace

Status bench_rpc(const Settings& settings, Report& report) {
  const Cores cores = take_cores();
  CACHALOT_TRY_ASSIGN(SignalLimits limits, SignalLimits::start(cores));
  for (const DomainKind domain : settings.domains) {
    CACHALOT_TRY(RpcBench(settings, domain, cores, limits, report).run());
  }
  CACHALOT_TRY(note_ping_pong(limits, report));
  release_cores();
  return ucx_round_trip(settings, report);
}

}  // namespace cachalot::apps::bench
