#include "lookup.h"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <optional>

#include "allocations.h"
#include "pool_fixture.h"
#include "signal_limits.h"

namespace cachalot::apps::bench {
namespace {

using memory::Domain;
using memory::DomainKind;
using memory::Line;
using pool::Found;

constexpr std::uint32_t kPrefixBlocks = 128;
constexpr std::uint32_t kPrefixes = 8192;
constexpr std::uint32_t kCapacity = kPrefixes * kPrefixBlocks;
// Prefixes that are made cold together, long enough before they are read that no flush is under
// way any more.
constexpr std::uint32_t kTurn = 64;

using Prefix = std::array<BlockHash, kPrefixBlocks>;
using Addresses = std::array<const void*, kPrefixBlocks>;

// The three ways in which 128 lines can be read, all misses overlapped.
enum class Way { kGather, kLoads, kPrefetches };

[[gnu::noinline]] std::uint64_t read_by_loads(const Addresses& lines, bool prefetch) {
  if (prefetch) {
    for (const void* line : lines) _mm_prefetch(static_cast<const char*>(line), _MM_HINT_T0);
  }
  std::uint64_t sum = 0;
  for (const void* line : lines) sum ^= *static_cast<const volatile std::uint64_t*>(line);
  return sum;
}

void flush(const Addresses& lines) {
  for (const void* line : lines) _mm_clflush(line);
}

// One read of 128 lines, with the flushes that the domain needs.
void read_lines(Domain& domain, Way way, const Addresses& lines) {
  if (way == Way::kGather) {
    static Line out[kPrefixBlocks];
    domain.gather_lines(lines.data(), lines.size(), out);
    return;
  }
  if (domain.kind() != DomainKind::kCoherent) {
    _mm_mfence();
    for (const void* line : lines) {
      asm volatile("clflushopt %0" : "+m"(*static_cast<volatile char*>(const_cast<void*>(line))));
    }
    _mm_mfence();
  }
  read_by_loads(lines, way == Way::kPrefetches);
}

class LookupBench {
 public:
  LookupBench(const Settings& settings, DomainKind domain, Report& report)
      : settings_(settings), domain_(domain), report_(report) {}

  Status run() {
    show_progress("lookup: filling the directory");
    CACHALOT_TRY_ASSIGN(InlinePool pool, InlinePool::start({domain_, 64, kCapacity, 1024}));
    pool_.emplace(std::move(pool));
    CACHALOT_TRY(fill_once());
    std::vector<double> limit, hits;
    CACHALOT_TRY(measure(&LookupBench::published, kPrefixBlocks, true, hits, limit));
    add("prefix_128/cold", hits, limit, true);
    std::vector<double> misses;
    CACHALOT_TRY(measure(&LookupBench::unknown, 0, true, misses, limit));
    add("miss_128/cold", misses, limit, false);
    std::vector<double> warm, warm_limit;
    CACHALOT_TRY(measure(&LookupBench::published, kPrefixBlocks, false, warm, warm_limit));
    add("prefix_128/warm", warm, warm_limit, false);
    if (settings_.quick) return {};
    // Everything evicted and replaced once more than the first fill left it.
    show_progress("lookup: replacing all that is in the directory");
    CACHALOT_TRY(fill_once());
    std::vector<double> churned, churned_limit;
    CACHALOT_TRY(measure(&LookupBench::published, kPrefixBlocks, true, churned, churned_limit));
    add("prefix_128/cold_churned", churned, churned_limit, true);
    return {};
  }

 private:
  using Name = BlockHash (LookupBench::*)(std::uint64_t) const;

  BlockHash published(std::uint64_t n) const { return bench_hash(first_ + n); }
  BlockHash unknown(std::uint64_t n) const { return bench_hash((std::uint64_t{1} << 40) + n); }

  Status fill_once() {
    const std::vector<std::byte> payload(64, std::byte{1});
    first_ = next_;
    next_ += kCapacity;
    return fill(pool_->client(), first_, kCapacity, kPrefixBlocks, payload);
  }

  // The home lines of some hashes.
  Addresses homes_of(const Prefix& prefix) const {
    const pool::Access& access = pool_->client().access();
    Addresses out;
    for (std::uint32_t i = 0; i < kPrefixBlocks; ++i) {
      const pool::Home home =
          pool::home_of(prefix[i], pool_->client().namespace_id(), access.geometry.directory_slots);
      out[i] = access.region.at(access.layout.entry(home.slot));
    }
    return out;
  }

  // All lines that a lookup of these hashes can read, out of every cache.
  void make_cold(const Prefix& prefix, const Addresses& homes) {
    std::array<Found, kPrefixBlocks> found;
    const std::size_t hits = pool_->client().lookup(prefix, found);
    const pool::Access& access = pool_->client().access();
    for (std::size_t i = 0; i < hits; ++i) {
      _mm_clflush(access.region.at(access.layout.entry(found[i].slot)));
    }
    // Slots that spill bits lead to without being it are all in the homes' buckets.
    for (std::uint32_t i = 0; i < kPrefixBlocks; ++i) {
      const auto home = memory::as<pool::Entry>(*static_cast<const Line*>(homes[i]));
      const pool::Home place =
          pool::home_of(prefix[i], pool_->client().namespace_id(), access.geometry.directory_slots);
      for (std::uint64_t spill = home.spill; spill != 0; spill &= spill - 1) {
        const auto bit = static_cast<std::uint32_t>(__builtin_ctzll(spill));
        _mm_clflush(access.region.at(access.layout.entry(place.bucket + bit)));
      }
    }
    flush(homes);
  }

  // Lookups and bare reads in turns, ns each.
  Status measure(Name name, std::size_t expected, bool cold, std::vector<double>& lookups,
                 std::vector<double>& limit) {
    const std::uint32_t rounds = settings_.quick ? 16 : 64;
    base::Rng rng(7);
    std::vector<double> ways[3];
    std::array<Prefix, kTurn> subject, other;
    std::array<Addresses, kTurn> subject_lines, other_lines;
    for (std::uint32_t round = 0; round < rounds; ++round) {
      show_progress("lookup: prefixes of 128 blocks");
      // Warm: the same few again and again.
      const auto next = [&] { return cold ? rng.below(kPrefixes) : rng.below(kTurn); };
      for (std::uint32_t i = 0; i < kTurn; ++i) {
        draw(name, next(), subject[i], subject_lines[i]);
        draw(name, next(), other[i], other_lines[i]);
      }
      for (int way = 0; way < 3; ++way) {
        if (cold) {
          for (std::uint32_t i = 0; i < kTurn; ++i) make_cold(other[i], other_lines[i]);
        }
        time_reads(static_cast<Way>(way), other_lines, ways[way]);
      }
      if (cold) {
        for (std::uint32_t i = 0; i < kTurn; ++i) make_cold(subject[i], subject_lines[i]);
      }
      CACHALOT_TRY(time_lookups(subject, expected, lookups));
    }
    limit = *std::min_element(std::begin(ways), std::end(ways), [](const auto& a, const auto& b) {
      return median_of(a) < median_of(b);
    });
    return {};
  }

  void draw(Name name, std::uint64_t prefix, Prefix& hashes, Addresses& homes) const {
    for (std::uint32_t i = 0; i < kPrefixBlocks; ++i) {
      hashes[i] = (this->*name)(prefix * kPrefixBlocks + i);
    }
    homes = homes_of(hashes);
  }

  void time_reads(Way way, const std::array<Addresses, kTurn>& lines, std::vector<double>& out) {
    Domain& domain = pool_->client().access().domain();
    for (const Addresses& one : lines) {
      const std::uint64_t start = now_ns();
      read_lines(domain, way, one);
      _mm_lfence();
      out.push_back(static_cast<double>(now_ns() - start));
    }
  }

  Status time_lookups(const std::array<Prefix, kTurn>& prefixes, std::size_t expected,
                      std::vector<double>& out) {
    std::array<Found, kPrefixBlocks> found;
    std::array<double, kTurn> times;
    const std::uint64_t before = allocations();
    for (std::uint32_t i = 0; i < kTurn; ++i) {
      const std::uint64_t start = now_ns();
      const std::size_t hits = pool_->client().lookup(prefixes[i], found);
      times[i] = static_cast<double>(now_ns() - start);
      if (hits != expected) {
        return Error::make(Code::kInternal, "bench: a lookup found %zu blocks of %zu", hits,
                           expected);
      }
    }
    allocated_ += allocations() - before;
    out.insert(out.end(), times.begin(), times.end());
    return {};
  }

  void add(const char* name, const std::vector<double>& lookups, const std::vector<double>& limit,
           bool has_target) {
    const Spread spread = spread_of(lookups);
    Row row{name + suffix(domain_),
            spread.median,
            "ns",
            "128 random lines of it, overlapped",
            median_of(limit),
            has_target ? ratio_at_most(1.5) : Target{}};
    add_spread(row, spread);
    row.extras.emplace_back("per_block_ns", spread.median / kPrefixBlocks);
    row.extras.emplace_back("limit_per_line_ns", row.baseline_value / kPrefixBlocks);
    row.extras.emplace_back("allocations", static_cast<double>(allocated_));
    report_.add(std::move(row));
  }

  const Settings& settings_;
  DomainKind domain_;
  Report& report_;
  std::optional<InlinePool> pool_;
  std::uint64_t first_ = 0, next_ = 0, allocated_ = 0;
};

}  // namespace

Status bench_lookup(const Settings& settings, Report& report) {
  const Cores cores = take_cores();
  for (const DomainKind domain : settings.domains) {
    CACHALOT_TRY(LookupBench(settings, domain, report).run());
  }
  CACHALOT_TRY_ASSIGN(SignalLimits limits, SignalLimits::start(cores));
  return note_ping_pong(limits, report);
}

}  // namespace cachalot::apps::bench
