// bench background: small reads and writes of a pool while another core moves bulk data in it.
#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "hardware.h"
#include "kv_transfer.h"
#include "latency.h"
#include "os/topology.h"
#include "plain_copies.h"
#include "tested_devices.h"

namespace cachalot::apps::bench {
namespace {

using memory::Domain;

constexpr std::uint64_t kSmallArea = std::uint64_t{256} << 20, kBulkArea = std::uint64_t{64} << 20;
constexpr std::uint64_t kBulkBytes = std::uint64_t{1} << 20;
constexpr std::uint32_t kBackgroundTurns = 10;     // a repetition
constexpr std::uint32_t kBackgroundSamples = 100;  // of each operation in a turn
constexpr std::array<std::uint64_t, 2> kSmallSizes = {64, 16'384};

enum class Bulk : std::uint32_t { kNone, kRead, kWrite };
constexpr std::uint32_t kBulks = 3;

// Moves bulk data on the other core from its beginning to its end.
class BulkMover {
 public:
  BulkMover(Domain& domain, Bulk bulk, std::byte* pool, std::byte* own, int core) {
    if (bulk == Bulk::kNone) return;
    thread_ = std::thread([=, this, &domain] {
      (void)os::pin_to_core(core);
      const std::uint64_t start = now_ns();
      for (std::uint64_t at = 0; !ends_.load(std::memory_order_relaxed); at += kBulkBytes) {
        std::byte* const there = pool + at % kBulkArea;
        std::byte* const here = own + at % kBulkArea;
        if (bulk == Bulk::kRead) {
          domain.read_bulk(here, there, kBulkBytes);
        } else {
          domain.write_bulk(there, here, kBulkBytes);
          domain.order();
        }
        bytes_.fetch_add(kBulkBytes, std::memory_order_relaxed);
      }
      gb_s_ = static_cast<double>(bytes_.load()) / static_cast<double>(now_ns() - start);
    });
    while (bytes_.load(std::memory_order_relaxed) == 0) os::cpu_relax();
  }
  BulkMover(const BulkMover&) = delete;
  BulkMover& operator=(const BulkMover&) = delete;
  ~BulkMover() { end(); }

  // @return what it has moved, GB/s; 0: nothing
  double end() {
    ends_.store(true, std::memory_order_relaxed);
    if (thread_.joinable()) thread_.join();
    return gb_s_;
  }

 private:
  std::atomic<bool> ends_ = false;
  std::atomic<std::uint64_t> bytes_ = 0;
  double gb_s_ = 0;
  std::thread thread_;
};

struct SmallOperation {
  TimedWay way;
  Bulk same = Bulk::kNone;  // the bulk in its direction
  std::array<std::vector<double>, kBulks> us = {};
};

void add_operation(Report& report, const SmallOperation& operation) {
  const auto of = [&](Bulk bulk) {
    return latency_of(operation.us[static_cast<std::uint32_t>(bulk)]);
  };
  const Latency none = of(Bulk::kNone);
  add_latency(report, operation.way.name + "/alone", none, "", nullptr);
  for (const bool is_same : {true, false}) {
    const Bulk bulk = is_same == (operation.same == Bulk::kRead) ? Bulk::kRead : Bulk::kWrite;
    // Figure 8 is of 64 bytes and has no numbers: its medians stay as they are.
    const double paper_ratio = operation.way.name.ends_with("/64") ? 1 : 0;
    add_latency(report, operation.way.name + (is_same ? "/same" : "/other"), of(bulk), "alone",
                &none, 0, paper_ratio);
  }
}

}  // namespace

Status bench_background(const Settings& settings, Report& report) {
  const Cores cores = take_cores();
  if (!cores.are_two) {
    report.note("no rows: the bulk data needs a second core");
    return {};
  }
  show_progress("background");
  CACHALOT_TRY_ASSIGN(const TestedDevices pool,
                      TestedDevices::take(settings, 1, kSmallArea + kBulkArea));
  CACHALOT_TRY_ASSIGN(const PrivateMemory bulk_own, PrivateMemory::make(kBulkArea));
  CACHALOT_TRY_ASSIGN(const PrivateMemory own, PrivateMemory::make(kSmallSizes.back()));
  fill_randomly(pool.base(0), kSmallArea + kBulkArea);
  fill_randomly(bulk_own.at(0), bulk_own.bytes());
  fill_randomly(own.at(0), own.bytes());
  const std::unique_ptr<Domain> domain = make_domain(memory::DomainKind::kNoncoherent);

  std::byte* place = nullptr;
  std::array<ColdPlaces, kSmallSizes.size()> places = {
      ColdPlaces(pool.base(0), kSmallArea, kSmallSizes[0]),
      ColdPlaces(pool.base(0), kSmallArea, kSmallSizes[1])};
  std::vector<SmallOperation> operations;
  for (std::size_t i = 0; i < kSmallSizes.size(); ++i) {
    const std::uint64_t bytes = kSmallSizes[i];
    const auto choose = [&place, &of = places[i]] { place = of.next(); };
    operations.push_back({{"read/" + size_name(bytes), choose,
                           [&, bytes] { domain->read_bulk(own.at(0), place, bytes); }},
                          Bulk::kRead});
    operations.push_back({{"write/" + size_name(bytes), choose,
                           [&, bytes] {
                             domain->write_bulk(place, own.at(0), bytes);
                             domain->complete();
                           }},
                          Bulk::kWrite});
  }

  std::array<std::vector<double>, kBulks> gb_s;
  for (std::uint32_t turn = 0; turn < settings.repeats * kBackgroundTurns; ++turn) {
    for (std::uint32_t k = 0; k < kBulks; ++k) {
      const std::uint32_t bulk = (turn + k) % kBulks;
      BulkMover mover(*domain, static_cast<Bulk>(bulk), pool.base(0) + kSmallArea, bulk_own.at(0),
                      cores.other);
      for (std::uint32_t i = 0; i < kBackgroundSamples; ++i) {
        for (SmallOperation& operation : operations)
          operation.us[bulk].push_back(time_once(operation.way));
      }
      gb_s[bulk].push_back(mover.end());
    }
  }
  for (const SmallOperation& operation : operations) add_operation(report, operation);
  for (const Bulk bulk : {Bulk::kRead, Bulk::kWrite}) {
    const Spread spread = spread_of(gb_s[static_cast<std::uint32_t>(bulk)]);
    Row row{bulk == Bulk::kRead ? "bulk/read" : "bulk/write", spread.median, "GB/s", "", 0};
    add_spread(row, spread);
    report.add(std::move(row));
  }
  note_clock(report);
  report.note(
      "bulk: pieces of 1 MiB, as fast as one core moves them. Non-coherent domain; writes end in "
      "complete()");
  report.note(
      "paper: Beluga (arXiv 2511.20172), Figure 8, up to 15 GB/s on one device of 22.5: medians of "
      "64 bytes stay, the "
      "99th percentile rises in the same direction only; its text has no figures");
  return {};
}

}  // namespace cachalot::apps::bench
