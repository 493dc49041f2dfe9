// bench devices: what a pool's devices give together: bytes a second by devices, cores and direction.
#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "hardware.h"
#include "latency.h"
#include "os/topology.h"
#include "plain_copies.h"
#include "tested_devices.h"

namespace cachalot::apps::bench {
namespace {

using memory::Domain;
using memory::Interleave;

constexpr std::uint32_t kMemoryDevices = 4;                    // where --device names none
constexpr std::uint64_t kRateBytes = std::uint64_t{64} << 20;  // of each device
constexpr std::uint64_t kRatePiece = std::uint64_t{1} << 20;
constexpr std::uint64_t kRateTurnNs = 25'000'000;
// Beluga: what one device moves, and what the adapter before all of them does.
constexpr double kPaperDevice = 22.5, kPaperAdapter = 46.2;

enum class Direction : std::uint32_t { kRead, kWrite, kBoth };
constexpr std::array kDirections = {Direction::kRead, Direction::kWrite, Direction::kBoth};
const char* name_of(Direction direction) {
  static constexpr const char* kNames[] = {"read", "write", "both"};
  return kNames[static_cast<std::uint32_t>(direction)];
}

// 1, 2, 4, … and the last one.
std::vector<std::uint32_t> steps_to(std::uint32_t most) {
  std::vector<std::uint32_t> steps;
  for (std::uint32_t n = 1; n < most; n *= 2) steps.push_back(n);
  steps.push_back(most);
  return steps;
}

class RateBench {
 public:
  RateBench(const TestedDevices& pool, const PrivateMemory& far, const PrivateMemory& own)
      : pool_(pool), far_(far), own_(own), domain_(make_domain(memory::DomainKind::kNoncoherent)) {}

  // Pieces of the pool, interleaved over its first `devices`; 0: of private memory.
  // @return GB/s of all cores together
  double turn(std::uint32_t devices, const std::vector<int>& cores, Direction direction) {
    std::atomic<std::uint32_t> ready{0};
    std::atomic<bool> ends{false};
    std::atomic<std::uint64_t> bytes{0};
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < cores.size(); ++i) {
      threads.emplace_back([&, i] {
        (void)os::pin_to_core(cores[i]);
        ++ready;
        while (ready.load() <= cores.size()) os::cpu_relax();
        std::uint64_t moved = 0;
        // On a loaded machine a thread may not have run before the turn ends.
        for (std::uint64_t piece = i * 7; !ends.load(std::memory_order_relaxed) || moved == 0;
             ++piece) {
          // Of two directions a core has one, one core alone both in turn.
          const bool writes =
              direction == Direction::kWrite ||
              (direction == Direction::kBoth && (cores.size() == 1 ? piece : i) % 2);
          move(devices, piece, own_.at(i * kRatePiece), writes);
          moved += kRatePiece;
        }
        bytes += moved;
      });
    }
    while (ready.load() < cores.size()) os::cpu_relax();
    const std::uint64_t start = now_ns();
    ++ready;
    std::this_thread::sleep_for(std::chrono::nanoseconds(kRateTurnNs));
    ends = true;
    for (std::thread& thread : threads) thread.join();
    return static_cast<double>(bytes.load()) / static_cast<double>(now_ns() - start);
  }

 private:
  void move(std::uint32_t devices, std::uint64_t piece, std::byte* own, bool writes) {
    if (devices == 0) {
      std::byte* const there = far_.at(piece * kRatePiece % far_.bytes());
      if (writes) {
        copy_plain(Copy::kNonTemporal, there, own, kRatePiece);
      } else {
        copy_plain(Copy::kMemcpy, own, there, kRatePiece);
      }
      return;
    }
    // Two pieces are a stripe.
    const std::uint64_t logical = piece * kRatePiece % (devices * kRateBytes);
    const std::uint64_t stripe = logical / memory::kStripeBytes;
    std::byte* const there = pool_.base(static_cast<std::uint32_t>(stripe % devices)) +
                             stripe / devices * memory::kStripeBytes +
                             logical % memory::kStripeBytes;
    if (writes) {
      domain_->write_bulk(there, own, kRatePiece);
      domain_->order();
    } else {
      domain_->read_bulk(own, there, kRatePiece);
    }
  }

  const TestedDevices& pool_;
  const PrivateMemory& far_;
  const PrivateMemory& own_;
  const std::unique_ptr<Domain> domain_;
};

}  // namespace

Status bench_devices(const Settings& settings, Report& report) {
  release_cores();
  std::vector<int> cores = os::online_cores();
  const auto devices = settings.devices.empty()
                           ? kMemoryDevices
                           : static_cast<std::uint32_t>(settings.devices.size());
  show_progress("devices");
  CACHALOT_TRY_ASSIGN(const TestedDevices pool, TestedDevices::take(settings, devices, kRateBytes));
  CACHALOT_TRY_ASSIGN(const PrivateMemory far, PrivateMemory::make(devices * kRateBytes));
  CACHALOT_TRY_ASSIGN(const PrivateMemory own, PrivateMemory::make(cores.size() * kRatePiece));
  for (std::uint32_t i = 0; i < devices; ++i) fill_randomly(pool.base(i), kRateBytes);
  fill_randomly(far.at(0), far.bytes());
  fill_randomly(own.at(0), own.bytes());
  RateBench bench(pool, far, own);
  std::vector<std::uint32_t> core_steps = steps_to(static_cast<std::uint32_t>(cores.size()));
  std::vector<std::uint32_t> device_steps = steps_to(devices);
  if (settings.quick) {
    core_steps = {core_steps.back()};
    device_steps = devices == 1 ? std::vector<std::uint32_t>{1} : std::vector{1u, devices};
  }
  for (const Direction direction : kDirections) {
    for (const std::uint32_t used : core_steps) {
      const std::vector<int> some(cores.begin(), cores.begin() + used);
      std::vector<double> limit;
      std::vector<std::vector<double>> rates(device_steps.size());
      for (std::uint32_t i = 0; i < settings.repeats; ++i) {
        show_progress(std::string("devices: ") + name_of(direction) + ", cores " +
                      std::to_string(used));
        limit.push_back(bench.turn(0, some, direction));
        for (std::size_t d = 0; d < device_steps.size(); ++d)
          rates[d].push_back(bench.turn(device_steps[d], some, direction));
      }
      for (std::size_t d = 0; d < device_steps.size(); ++d) {
        const Spread spread = spread_of(std::move(rates[d]));
        Row row{std::string(name_of(direction)) + "/devices" + std::to_string(device_steps[d]) +
                    "/cores" + std::to_string(used),
                spread.median, "GB/s", "private memory", median_of(limit)};
        const bool is_whole = used == core_steps.back() && direction == Direction::kRead;
        if (is_whole && device_steps[d] == 1) row.paper = kPaperDevice;
        if (is_whole && device_steps[d] == devices && devices > 2) row.paper = kPaperAdapter;
        add_spread(row, spread);
        report.add(std::move(row));
      }
    }
  }
  report.note(settings.devices.empty() ? "devices: memory of this machine; --device measures others"
                                       : "devices: as --device names them");
  report.note(
      "pieces of 1 MiB, non-coherent domain; stripes of 2 MiB over the devices. private memory: "
      "the "
      "same cores, memcpy "
      "and non-temporal stores. paper: Beluga (arXiv 2511.20172), one device, and the adapter "
      "before many");
  note_clock(report);
  return {};
}

}  // namespace cachalot::apps::bench
