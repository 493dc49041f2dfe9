// bench coherence: what each way to make a write seen, and a read see it, costs where no hardware does so.
#include <cpuid.h>
#include <immintrin.h>

#include <algorithm>
#include <array>

#include "hardware.h"
#include "latency.h"
#include "plain_copies.h"
#include "tested_devices.h"

namespace cachalot::apps::bench {
namespace {

using memory::Domain;
using memory::DomainKind;

constexpr std::uint64_t kMethodArea = std::uint64_t{256} << 20;  // far more than the caches hold
constexpr std::uint64_t kMethodBytes = 16'384;                   // as in Beluga's Table 4
constexpr std::uint32_t kMethodSamples = 300;                    // of each way, for each repetition

enum class Flush : std::uint32_t { kClflush, kClflushopt, kClwb };
struct FlushKind {
  Flush flush;
  const char* name;
};
constexpr std::array kFlushKinds = {FlushKind{Flush::kClflush, "clflush"},
                                    FlushKind{Flush::kClflushopt, "clflushopt"},
                                    FlushKind{Flush::kClwb, "clwb"}};

bool has_clwb() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b >> 24 & 1) != 0;
}

bool is_available(Flush flush) {
  switch (flush) {
    case Flush::kClflush:
      return true;
    case Flush::kClflushopt:
      return memory::has_clflushopt();
    case Flush::kClwb:
      return has_clwb();
  }
  return false;
}

template <Flush kFlush>
void flush_each_line(std::byte* at, std::uint64_t bytes) {
  for (std::uint64_t i = 0; i < bytes; i += memory::kLineBytes) {
    volatile auto& line = *reinterpret_cast<volatile char*>(at + i);
    if constexpr (kFlush == Flush::kClflush) asm volatile("clflush %0" : "+m"(line));
    if constexpr (kFlush == Flush::kClflushopt) asm volatile("clflushopt %0" : "+m"(line));
    if constexpr (kFlush == Flush::kClwb) asm volatile("clwb %0" : "+m"(line));
  }
}

void flush_range(Flush flush, std::byte* at, std::uint64_t bytes) {
  switch (flush) {
    case Flush::kClflush:
      return flush_each_line<Flush::kClflush>(at, bytes);
    case Flush::kClflushopt:
      return flush_each_line<Flush::kClflushopt>(at, bytes);
    case Flush::kClwb:
      return flush_each_line<Flush::kClwb>(at, bytes);
  }
}

class MethodBench {
 public:
  MethodBench(const Settings& settings, Report& report, std::byte* pool, std::byte* own)
      : samples_(settings.repeats * kMethodSamples),
        report_(report),
        places_(pool, kMethodArea, kMethodBytes),
        own_(own) {}

  // The first way is the limit. All end in complete(), so that the bytes have left this core, except
  // non_temporal/ordered.
  void writes() {
    std::vector<TimedWay> ways;
    ways.push_back(way("memcpy", [this] {
      copy_plain(Copy::kMemcpy, place_, own_, kMethodBytes);
      noncoherent_->complete();
    }));
    ways.push_back(way("non_temporal", [this] {
      noncoherent_->write_bulk(place_, own_, kMethodBytes);
      noncoherent_->complete();
    }));
    ways.push_back(way("non_temporal/ordered", [this] {
      noncoherent_->write_bulk(place_, own_, kMethodBytes);
      noncoherent_->order();
    }));
    for (const FlushKind& kind : kFlushKinds) {
      if (!is_available(kind.flush)) continue;
      ways.push_back(way(kind.name, [this, flush = kind.flush] {
        copy_plain(Copy::kMemcpy, place_, own_, kMethodBytes);
        flush_range(flush, place_, kMethodBytes);
        noncoherent_->complete();
      }));
    }
    measure("write/", ways, "memcpy and mfence");
  }

  // `stale`: this core has read the lines before, `absent`: no cache has them. CLWB keeps lines, so it serves no read.
  void reads() {
    std::vector<TimedWay> ways;
    ways.push_back(
        way("memcpy", [this] { copy_plain(Copy::kMemcpy, own_, place_, kMethodBytes); }));
    for (const bool stale : {true, false}) {
      const std::string suffix = stale ? "/stale" : "/absent";
      ways.push_back(way(
          "clflush" + suffix,
          [this] {
            _mm_mfence();
            flush_range(Flush::kClflush, place_, kMethodBytes);
            _mm_mfence();
            coherent_->read_bulk(own_, place_,
                                 kMethodBytes);  // the same copy, which flushes nothing
          },
          stale));
      if (!memory::has_clflushopt()) continue;
      ways.push_back(way(
          "clflushopt" + suffix, [this] { noncoherent_->read_bulk(own_, place_, kMethodBytes); },
          stale));
    }
    measure("read/", ways, "memcpy of absent lines");
  }

 private:
  TimedWay way(const std::string& name, std::function<void()> run, bool stale = false) {
    return {name,
            [this, stale] {
              place_ = places_.next();
              if (stale) copy_plain(Copy::kMemcpy, own_, place_, kMethodBytes);
            },
            std::move(run)};
  }

  // Table 4; the paper flushes with CLFLUSH and does not say whether lines were cached.
  static double paper_us(const std::string& name) {
    if (name == "write/non_temporal") return 2.41;
    if (name == "write/clflush") return 8.50;
    if (name == "read/clflush/stale") return 5.98;
    return 0;
  }

  void measure(const std::string& what, const std::vector<TimedWay>& ways, const char* limit) {
    show_progress("coherence: " + what);
    const std::vector<Latency> times = time_in_turns(ways, samples_);
    for (std::size_t i = 1; i < ways.size(); ++i) {
      const std::string name = what + ways[i].name;
      add_latency(report_, name, times[i], limit, times.data(), paper_us(name));
    }
  }

  const std::uint32_t samples_;
  Report& report_;
  ColdPlaces places_;
  std::byte* const own_;
  std::byte* place_ = nullptr;
  const std::unique_ptr<Domain> coherent_ = make_domain(DomainKind::kCoherent);
  const std::unique_ptr<Domain> noncoherent_ = make_domain(DomainKind::kNoncoherent);
};

}  // namespace

Status bench_coherence(const Settings& settings, Report& report) {
  take_cores();
  show_progress("coherence");
  CACHALOT_TRY_ASSIGN(const TestedDevices pool, TestedDevices::take(settings, 1, kMethodArea));
  CACHALOT_TRY_ASSIGN(const PrivateMemory own, PrivateMemory::make(kMethodBytes));
  fill_randomly(pool.base(0), kMethodArea);
  fill_randomly(own.at(0), own.bytes());
  MethodBench bench(settings, report, pool.base(0), own.at(0));
  bench.writes();
  bench.reads();
  note_clock(report);
  for (const FlushKind& kind : kFlushKinds) {
    if (!is_available(kind.flush))
      report.note(std::string("no rows of ") + kind.name + ": this processor does not have it");
  }
  report.note(
      "no rows of uncacheable memory: Linux maps memory write-back for a process, whatever it "
      "asks; an administrator "
      "changes that (MTRR). Paper: write 281.56 us, read 166.49 us");
  report.note(
      std::string(
          "paper: Beluga (arXiv 2511.20172), Table 4; other hardware. Pool memory in pages: ") +
      os::page_mode_name(pool.all().page_mode(0)));
  return {};
}

}  // namespace cachalot::apps::bench
