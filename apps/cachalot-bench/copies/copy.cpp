#include "copy.h"

#include <algorithm>
#include <array>
#include <functional>

#include "base/rng.h"
#include "memory/devices.h"
#include "plain_copies.h"

namespace cachalot::apps::bench {
namespace {

using memory::Domain;
using memory::DomainKind;

constexpr std::uint64_t kArea = std::uint64_t{256} << 20;  // far more than the caches hold
// Short turns, so that most are free of preemption.
constexpr std::uint64_t kPerTurn = std::uint64_t{8} << 20;
constexpr std::uint32_t kTurnsPerRepeat = 6;

struct Size {
  const char* name;
  std::uint64_t bytes;
};
constexpr std::array kSizes = {Size{"16KiB", 16'384}, Size{"64KiB", 65'536},
                               Size{"1MiB", 1'048'576}, Size{"4MiB", 4'194'304}};

class CopyBench {
 public:
  CopyBench(const Settings& settings, Report& report, const memory::DeviceSet& pool,
            const PrivateMemory& own)
      : settings_(settings), report_(report), pool_(pool.base(0)), own_(own) {}

  void run(DomainKind kind, const Size& size) {
    const std::unique_ptr<Domain> domain = make_domain(kind);
    for (const bool in : {true, false}) {
      const auto plain = [&](Copy copy) {
        return [=](std::byte* pool, std::byte* own, std::uint64_t bytes) {
          if (in) {
            copy_in(copy, kind, pool, own, bytes);
          } else {
            copy_out(copy, kind, own, pool, bytes);
          }
        };
      };
      const auto ours = [&](bool hashed) {
        return [this, in, hashed, &domain](std::byte* pool, std::byte* own, std::uint64_t bytes) {
          memory::FusedHash hash(bytes);
          memory::FusedHash* const use = hashed ? &hash : nullptr;
          if (in) {
            domain->write_bulk(pool, own, bytes, use);
            domain->order();
          } else {
            domain->read_bulk(own, pool, bytes, use);
          }
          if (hashed) sum_ += hash.finish();
        };
      };
      const std::array<Way, 5> ways = {plain(Copy::kMemcpy), plain(Copy::kNonTemporal),
                                       plain(Copy::kRepMovsb), ours(false), ours(true)};
      measure(ways, size.bytes);
      add(in ? "write/" : "read/", size.name, kind);
    }
  }

 private:
  using Way = std::function<void(std::byte* pool, std::byte* own, std::uint64_t bytes)>;

  void measure(const std::array<Way, 5>& ways, std::uint64_t bytes) {
    for (auto& samples : gb_s_) samples.clear();
    base::Rng rng(1);
    const std::uint64_t places = kArea / bytes;
    for (std::uint32_t i = 0; i < settings_.repeats * kTurnsPerRepeat; ++i) {
      for (std::size_t k = 0; k < ways.size(); ++k) {
        const std::size_t way = (i + k) % ways.size();  // none always comes after the same other
        const std::uint64_t start = now_ns();
        for (std::uint64_t done = 0; done < kPerTurn; done += bytes) {
          std::byte* const pool = pool_ + rng.below(places) * bytes;
          ways[way](pool, own_.at(rng.below(places) * bytes), bytes);
        }
        gb_s_[way].push_back(static_cast<double>(kPerTurn) / static_cast<double>(now_ns() - start));
      }
    }
  }

  void add(const char* direction, const char* size, DomainKind kind) {
    std::uint32_t best = 0;
    for (std::uint32_t way = 1; way < kCopies; ++way) {
      if (median_of(gb_s_[way]) > median_of(gb_s_[best])) best = way;
    }
    const Spread alone = spread_of(gb_s_[kCopies]), hashed = spread_of(gb_s_[kCopies + 1]);
    Row row{direction + (size + suffix(kind)),  alone.median,           "GB/s",
            copy_name(static_cast<Copy>(best)), median_of(gb_s_[best]), ratio_at_least(0.9)};
    add_spread(row, alone);
    report_.add(std::move(row));
    // 30 % more time.
    Row fused{std::string(direction) + "checksum/" + size + suffix(kind),
              hashed.median,
              "GB/s",
              "the copy alone",
              alone.median,
              ratio_at_least(1 / 1.3)};
    add_spread(fused, hashed);
    report_.add(std::move(fused));
  }

  const Settings& settings_;
  Report& report_;
  std::byte* pool_;
  const PrivateMemory& own_;
  std::array<std::vector<double>, 5> gb_s_;
  std::uint64_t sum_ = 0;
};

}  // namespace

Status bench_copy(const Settings& settings, Report& report) {
  take_cores();
  show_progress("copy");
  CACHALOT_TRY_ASSIGN(const memory::DeviceSet pool,
                      memory::DeviceSet::create({"memfd:bench"}, kArea));
  CACHALOT_TRY_ASSIGN(const PrivateMemory own, PrivateMemory::make(kArea));
  report.note(std::string("pool memory in pages: ") + os::page_mode_name(pool.page_mode(0)));
  CopyBench bench(settings, report, pool, own);
  for (const DomainKind domain : settings.domains) {
    for (const Size& size : kSizes) {
      show_progress(std::string("copy: ") + size.name + suffix(domain));
      bench.run(domain, size);
    }
  }
  return {};
}

}  // namespace cachalot::apps::bench
