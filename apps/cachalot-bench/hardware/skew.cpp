// bench skew: what interleaving is worth where few blocks get most accesses and a device has a limited bandwidth.
//
// This machine has one memory, so the devices' limit is emulated: an access is over when its copy is, and when the
// token bucket of its device has given its bytes.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <thread>

#include "base/rng.h"
#include "hardware.h"
#include "kv_transfer.h"
#include "memory/devices.h"
#include "memory/interleave.h"
#include "os/topology.h"
#include "plain_copies.h"
#include "tested_devices.h"

namespace cachalot::apps::bench {
namespace {

using memory::Domain;
using memory::Interleave;

constexpr std::uint32_t kDevices = 4;
constexpr std::uint64_t kDeviceBytes = std::uint64_t{64} << 20;
constexpr std::uint32_t kWorkers = 2;
constexpr std::uint32_t kInFlight = 8;  // of a worker: 16 in all, as many as Beluga has threads
constexpr double kZipf = 0.99;
constexpr std::uint64_t kSkewTurnNs = 25'000'000;
// Beluga: a device moves 22.5 GB/s, the adapter before all of them 46.2. Here the copying cores are the adapter.
constexpr double kDeviceShare = 22.5 / 46.2;
// Its Figure 13: queries a second without and with interleaving.
constexpr double kPaperGain = 11.32 / 8.49;

// The order of blocks that a worker accesses: the first ones most often (Zipf).
std::vector<std::uint32_t> zipf_sequence(std::uint64_t blocks, std::uint32_t length,
                                         std::uint64_t seed) {
  std::vector<double> up_to(blocks);
  double sum = 0;
  for (std::uint64_t i = 0; i < blocks; ++i)
    up_to[i] = sum += std::pow(static_cast<double>(i + 1), -kZipf);
  base::Rng rng(seed);
  std::vector<std::uint32_t> out(length);
  for (std::uint32_t& block : out) {
    const double at = static_cast<double>(rng.next() >> 11) * 0x1.0p-53 * sum;
    block = static_cast<std::uint32_t>(std::upper_bound(up_to.begin(), up_to.end(), at) -
                                       up_to.begin());
    block = std::min(block, static_cast<std::uint32_t>(blocks - 1));
  }
  return out;
}

// A token bucket that saves nothing up: bytes pass one after the other, at one rate.
// @threads any
class BandwidthCap {
 public:
  void start(double ns_per_byte) {
    ns_per_byte_ = ns_per_byte;
    free_at_ns_.store(0, std::memory_order_relaxed);
  }

  // @return when these bytes will have passed, after all that were asked for before
  std::uint64_t take(std::uint64_t bytes, std::uint64_t at_ns) {
    const auto cost = static_cast<std::uint64_t>(static_cast<double>(bytes) * ns_per_byte_);
    std::uint64_t free = free_at_ns_.load(std::memory_order_relaxed), end = 0;
    do {
      end = std::max(free, at_ns) + cost;
    } while (!free_at_ns_.compare_exchange_weak(free, end, std::memory_order_relaxed));
    return end;
  }

 private:
  double ns_per_byte_ = 0;  // 0: no limit
  alignas(64) std::atomic<std::uint64_t> free_at_ns_ = 0;
};

// Where the blocks lie.
enum class Layout : std::uint32_t { kFilled, kInterleaved };  // kFilled: one device after the other

class SkewBench {
 public:
  SkewBench(const Settings& settings, Report& report, const TestedDevices& pool,
            const Interleave& interleave, const PrivateMemory& own, const Cores& cores)
      : settings_(settings),
        report_(report),
        pool_(pool),
        interleave_(interleave),
        own_(own),
        cores_(cores) {}

  void run(bool writes, std::uint64_t block_bytes) {
    writes_ = writes;
    block_bytes_ = block_bytes;
    const std::uint64_t blocks = interleave_.total_bytes() / block_bytes;
    for (std::uint32_t i = 0; i < kWorkers; ++i) blocks_[i] = zipf_sequence(blocks, 1 << 14, 1 + i);

    std::vector<double> before;
    for (std::uint32_t i = 0; i < settings_.repeats; ++i)
      before.push_back(turn(Layout::kInterleaved, 0));
    const double cap = kDeviceShare * median_of(std::move(before));

    std::vector<double> free, filled, interleaved;
    for (std::uint32_t i = 0; i < settings_.repeats; ++i) {
      free.push_back(turn(Layout::kInterleaved, 0));
      filled.push_back(turn(Layout::kFilled, 1 / cap));
      interleaved.push_back(turn(Layout::kInterleaved, 1 / cap));
    }
    const std::string name = (writes ? "write/" : "read/") + size_name(block_bytes);
    const Spread limit = spread_of(std::move(free)), one = spread_of(std::move(filled)),
                 all = spread_of(std::move(interleaved));
    add(name + "/filled", one, "the same without a cap", limit.median, cap, Layout::kFilled, 0);
    add(name + "/interleaved", all, "filled", one.median, cap, Layout::kInterleaved, kPaperGain);
  }

 private:
  void add(const std::string& name, const Spread& gb_s, const char* limit_name, double limit,
           double cap, Layout layout, double paper_ratio) {
    Row row{name, gb_s.median, "GB/s", limit_name, limit};
    row.paper_ratio = paper_ratio;
    add_spread(row, gb_s);
    row.extras.emplace_back("device_cap_gb_s", cap);
    row.extras.emplace_back("busiest_device_share", busiest_share(layout));
    report_.add(std::move(row));
  }

  template <class F>
  void for_each_extent(Layout layout, std::uint64_t logical, std::uint64_t bytes, F&& f) const {
    if (layout == Layout::kInterleaved) return interleave_.for_each_extent(logical, bytes, f);
    while (bytes > 0) {
      const std::uint64_t offset = logical % kDeviceBytes;
      const std::uint64_t length = std::min(bytes, kDeviceBytes - offset);
      f(static_cast<std::uint32_t>(logical / kDeviceBytes), offset, length);
      logical += length;
      bytes -= length;
    }
  }

  // The share of all accessed bytes that lies on the device with most of them.
  double busiest_share(Layout layout) const {
    std::array<double, kDevices> bytes{};
    double all = 0;
    for (const auto& sequence : blocks_) {
      for (const std::uint32_t block : sequence) {
        for_each_extent(layout, block * block_bytes_, block_bytes_,
                        [&](std::uint32_t device, std::uint64_t, std::uint64_t length) {
                          bytes[device] += static_cast<double>(length);
                          all += static_cast<double>(length);
                        });
      }
    }
    return *std::max_element(bytes.begin(), bytes.end()) / all;
  }

  // @return GB/s of all workers. @param ns_per_byte of each device; 0: no cap
  double turn(Layout layout, double ns_per_byte) {
    for (BandwidthCap& cap : caps_) cap.start(ns_per_byte);
    ready_.store(0, std::memory_order_relaxed);
    std::array<std::uint64_t, kWorkers> bytes{};
    std::thread other([&] {
      (void)os::pin_to_core(cores_.other);
      bytes[1] = work(1, layout);
    });
    bytes[0] = work(0, layout);
    other.join();
    return static_cast<double>(bytes[0] + bytes[1]) / static_cast<double>(kSkewTurnNs);
  }

  // @return bytes of the accesses that were over in time
  std::uint64_t work(std::uint32_t worker, Layout layout) {
    ready_.fetch_add(1, std::memory_order_relaxed);
    while (ready_.load(std::memory_order_relaxed) < kWorkers) os::cpu_relax();
    std::byte* const own = own_.at(worker * own_.bytes() / kWorkers);
    const std::uint64_t end_ns = now_ns() + kSkewTurnNs;
    std::array<std::uint64_t, kInFlight> over_at_ns{};
    std::uint64_t bytes = 0;
    for (std::uint32_t i = 0;; ++i) {
      std::uint64_t now = now_ns();
      // The oldest access in flight makes room.
      std::uint64_t& slot = over_at_ns[i % kInFlight];
      for (; now < slot && now < end_ns; now = now_ns()) os::cpu_relax();
      if (now >= end_ns) break;
      if (slot != 0) bytes += block_bytes_;
      const std::uint32_t block = blocks_[worker][next_[worker]++ % blocks_[worker].size()];
      std::uint64_t over = 0, done = 0;
      for_each_extent(layout, block * block_bytes_, block_bytes_,
                      [&](std::uint32_t device, std::uint64_t offset, std::uint64_t length) {
                        over = std::max(over, caps_[device].take(length, now));
                        std::byte* const at = pool_.base(device) + offset;
                        if (writes_) {
                          domain_->write_bulk(at, own + done, length);
                        } else {
                          domain_->read_bulk(own + done, at, length);
                        }
                        done += length;
                      });
      domain_->order();
      slot = std::max(over, now_ns());
    }
    for (const std::uint64_t over : over_at_ns)
      bytes += over != 0 && over <= end_ns ? block_bytes_ : 0;
    return bytes;
  }

  const Settings& settings_;
  Report& report_;
  const TestedDevices& pool_;
  const Interleave& interleave_;
  const PrivateMemory& own_;
  const Cores cores_;
  const std::unique_ptr<Domain> domain_ = make_domain(memory::DomainKind::kNoncoherent);
  bool writes_ = false;
  std::uint64_t block_bytes_ = 0;
  std::array<std::vector<std::uint32_t>, kWorkers> blocks_;
  std::array<std::size_t, kWorkers> next_{};
  std::array<BandwidthCap, kDevices> caps_;
  std::atomic<std::uint32_t> ready_ = 0;
};

}  // namespace

Status bench_skew(const Settings& settings, Report& report) {
  const Cores cores = take_cores();
  show_progress("skew");
  constexpr std::uint64_t kSmall = 16'384;           // Figure 7
  constexpr std::uint64_t kBlock = 128 * 20 * 1024;  // a KV block of Qwen-32B, as in Figure 13
  CACHALOT_TRY_ASSIGN(const TestedDevices pool,
                      TestedDevices::take(settings, kDevices, kDeviceBytes));
  CACHALOT_TRY_ASSIGN(const Interleave interleave,
                      Interleave::make(std::vector<std::uint64_t>(kDevices, 0), kDeviceBytes));
  CACHALOT_TRY_ASSIGN(const PrivateMemory own, PrivateMemory::make(kWorkers * (kBlock + kSmall)));
  for (std::uint32_t i = 0; i < kDevices; ++i) fill_randomly(pool.base(i), kDeviceBytes);
  fill_randomly(own.at(0), own.bytes());
  SkewBench bench(settings, report, pool, interleave, own, cores);
  for (const bool writes : {false, true}) {
    for (const std::uint64_t bytes : {kSmall, kBlock}) {
      show_progress(std::string("skew: ") + (writes ? "write " : "read ") + size_name(bytes));
      bench.run(writes, bytes);
    }
  }
  report.note(
      "the devices' bandwidth is emulated: token buckets around copies in one memory; each device "
      "gets 22.5/46.2 of "
      "what the copies reach without a cap, as a device's share of an adapter in the paper");
  report.note("4 devices, 16 accesses in flight, Zipf 0.99, non-coherent domain");
  report.note(
      "paper: Beluga (arXiv 2511.20172), Figure 13: 8.49 to 11.32 queries a second of an engine, "
      "on 32 devices");
  return {};
}

}  // namespace cachalot::apps::bench
