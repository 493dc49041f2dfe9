// bench sweep: how long one write and one read take, by size: a pool's memory, private memory, and UCX.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <map>

#include "hardware.h"
#include "kv_transfer.h"
#include "latency.h"
#include "plain_copies.h"
#include "tested_devices.h"
#include "ucx_peer.h"

namespace cachalot::apps::bench {
namespace {

using memory::Domain;
using memory::DomainKind;

constexpr std::uint64_t kSweepArea = std::uint64_t{256} << 20;
constexpr std::uint64_t kLargestBytes = std::uint64_t{4} << 20;
constexpr std::uint32_t kSweepSamples = 100;  // a repetition, while they are small
constexpr std::uint64_t kSweepTurnBytes = std::uint64_t{64}
                                          << 20;  // a repetition, where they are large
constexpr std::array<std::uint64_t, 9> kSweepSizes = {
    64, 256, 1024, 4096, 16'384, 65'536, 262'144, 1'048'576, kLargestBytes};

// Beluga's figures in its text and tables; the curves of its Figure 5 have none.
double beluga_us(const std::string& row) {
  if (row == "read/64/noncoherent") return 0.75;     // Table 2: an access of 64 bytes
  if (row == "write/16Ki/noncoherent") return 2.41;  // Table 4
  if (row == "read/16Ki/noncoherent") return 5.98;
  return 0;
}

class SweepBench {
 public:
  SweepBench(const Settings& settings, Report& report, std::byte* pool, std::byte* private_area,
             std::byte* own)
      : settings_(settings), report_(report), pool_(pool), private_(private_area), own_(own) {
    for (const DomainKind kind : settings.domains) domains_.push_back(make_domain(kind));
  }

  // One size: the bytes lie in the caches on the caller's side, and not on the other one.
  void run(std::uint64_t bytes) {
    ColdPlaces pool(pool_, kSweepArea, bytes), dram(private_, kSweepArea, bytes);
    for (const bool writes : {true, false}) {
      std::byte* place = nullptr;
      std::vector<TimedWay> ways;
      ways.push_back({"private", [&] { place = dram.next(); },
                      [&, writes, bytes] {
                        copy_plain(Copy::kMemcpy, writes ? place : own_, writes ? own_ : place,
                                   bytes);
                        if (writes) _mm_mfence();
                      }});
      for (const auto& domain : domains_) {
        ways.push_back({memory::domain_name(domain->kind()), [&] { place = pool.next(); },
                        [&, writes, bytes, use = domain.get()] {
                          if (writes) {
                            use->write_bulk(place, own_, bytes);
                            use->complete();
                          } else {
                            use->read_bulk(own_, place, bytes);
                          }
                        }});
      }
      const auto samples = static_cast<std::uint32_t>(
          std::clamp<std::uint64_t>(kSweepTurnBytes / bytes, 1, kSweepSamples));
      const std::vector<Latency> times = time_in_turns(ways, settings_.repeats * samples);
      for (std::size_t i = 1; i < ways.size(); ++i) {
        const std::string name =
            (writes ? "write/" : "read/") + size_name(bytes) + "/" + ways[i].name;
        add_latency(report_, name, times[i], "memcpy of private memory", times.data(),
                    beluga_us(name));
        if (i + 1 == ways.size()) both_us_[bytes] += times[i].us.median;
      }
    }
  }

  // One way from process to process, beside a write by one and a read by the other one.
  Status run_ucx(std::uint64_t bytes) {
    const std::uint64_t count = std::clamp<std::uint64_t>(kSweepArea / bytes, 50, 5000);
    CACHALOT_TRY_ASSIGN(const double round_trip_ns, run_ucx_round_trips(bytes, count));
    report_.add({"message/" + size_name(bytes) + "/ucx_tcp", round_trip_ns / 2e3, "us",
                 "a write and a read of the pool", both_us_[bytes]});
    return {};
  }

 private:
  const Settings& settings_;
  Report& report_;
  std::byte *pool_, *private_, *own_;
  std::vector<std::unique_ptr<Domain>> domains_;
  std::map<std::uint64_t, double> both_us_;  // write and read, of the last domain
};

}  // namespace

Status bench_sweep(const Settings& settings, Report& report) {
  take_cores();
  show_progress("sweep");
  CACHALOT_TRY_ASSIGN(const TestedDevices pool, TestedDevices::take(settings, 1, kSweepArea));
  CACHALOT_TRY_ASSIGN(const PrivateMemory dram, PrivateMemory::make(kSweepArea));
  CACHALOT_TRY_ASSIGN(const PrivateMemory own, PrivateMemory::make(kLargestBytes));
  fill_randomly(pool.base(0), kSweepArea);
  fill_randomly(dram.at(0), dram.bytes());
  fill_randomly(own.at(0), own.bytes());
  SweepBench bench(settings, report, pool.base(0), dram.at(0), own.at(0));
  std::vector<std::uint64_t> sizes(kSweepSizes.begin(), kSweepSizes.end());
  if (settings.quick) sizes = {64, 16'384, kLargestBytes};
  for (const std::uint64_t bytes : sizes) {
    show_progress("sweep: " + size_name(bytes));
    bench.run(bytes);
  }
  release_cores();
  for (const std::uint64_t bytes : sizes) {
    show_progress("sweep: ucx_perftest " + size_name(bytes));
    const Status done = bench.run_ucx(bytes);
    if (done) continue;
    if (done.error().code != Code::kUnsupported) return done;
    report.note("no rows of UCX: the program ucx_perftest (package ucx-utils) is not installed");
    break;
  }
  note_clock(report);
  report.note(
      "paper: Beluga (arXiv 2511.20172), Tables 2 and 4; other hardware. Its latencies are up to "
      "7.0 (write) and 6.3 "
      "(read) times lower than RDMA's");
  report.note(std::string("pool memory in pages: ") + os::page_mode_name(pool.all().page_mode(0)) +
              "; private memory: huge where the system has some");
  return {};
}

}  // namespace cachalot::apps::bench
