#include "vtensor.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstring>
#include <string>
#include <vector>

#include "device_memory/memfd/memfd_backend.h"
#include "os/memory.h"
#include "vtensor/vtensor_set.h"

namespace cachalot::apps::bench {
namespace {

using vtensor::KvLayout;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kBytes = 512 * kMiB;  // of physical memory, in every measurement
constexpr std::uint64_t kChunk = 2 * kMiB;
const vtensor::KvShape kLlama8B = {.layers = 32, .part_bytes = {2048, 2048}};
constexpr std::array kLayouts = {KvLayout::kPerLayer, KvLayout::kFolded};

vtensor::VTensorOptions options_of(KvLayout layout) {
  return {.shape = kLlama8B,
          .layout = layout,
          .chunk_bytes = kChunk,
          .max_tokens = 1 << 16,
          .copy = vtensor::copy_by_processor,
          .with_thread = false};
}

class VTensorBench {
 public:
  VTensorBench(const Settings& settings, Report& report, device_memory::MemfdBackend& backend)
      : report_(report), backend_(backend), rounds_(settings.quick ? 3 : settings.repeats) {}

  Status run() {
    for (const KvLayout layout : kLayouts) {
      CACHALOT_TRY(measure_extend(layout));
      CACHALOT_TRY(measure_alias(layout));
    }
    CACHALOT_TRY(measure_ready());
    return measure_waits();
  }

 private:
  // One step of growth: a chunk in every plane. Nothing is created: the chunks were used before.
  Status measure_extend(KvLayout layout) {
    vtensor::LocalBudget budget;
    CACHALOT_TRY_ASSIGN(const auto set,
                        vtensor::VTensorSet::open(backend_, budget, options_of(layout)));
    const std::uint64_t planes = set->layout().planes(), steps = kBytes / kChunk / planes;
    CACHALOT_TRY_ASSIGN(auto created, set->create(0, 1 << 16));
    CACHALOT_TRY(set->extend(*created.vtensor, set->layout().tokens_in(0, steps)));
    CACHALOT_TRY(set->shrink(*created.vtensor, 0));
    std::vector<double> grow, bare;
    for (std::uint32_t round = 0; round < rounds_; ++round) {
      show_progress(std::string("vtensor: extend, ") + vtensor::kv_layout_name(layout));
      for (std::uint64_t step = 1; step <= steps; ++step) {
        const std::uint64_t start = now_ns();
        CACHALOT_TRY(set->extend(*created.vtensor, set->layout().tokens_in(0, step)));
        grow.push_back(static_cast<double>(now_ns() - start) * 1e-3);
      }
      CACHALOT_TRY(set->shrink(*created.vtensor, 0));
      CACHALOT_TRY(measure_bare(planes, steps, bare));
    }
    const Spread spread = spread_of(grow);
    Row row{std::string("extend/") + vtensor::kv_layout_name(layout), spread.median, "us",
            "map and set_access of as many chunks", median_of(bare)};
    add_spread(row, spread);
    row.extras.emplace_back("chunks", static_cast<double>(planes));
    row.extras.emplace_back("tokens", static_cast<double>(set->layout().tokens_in(0, 1)));
    report_.add(std::move(row));
    return {};
  }

  // The same calls of the device, by hand, in as many places as there are planes.
  Status measure_bare(std::uint64_t planes, std::uint64_t steps, std::vector<double>& us) {
    std::vector<device_memory::Handle> handles;
    CACHALOT_TRY_ASSIGN(const device_memory::Address range,
                        backend_.reserve(planes * steps * kChunk));
    for (std::uint64_t i = 0; i < planes * steps; ++i) {
      CACHALOT_TRY_ASSIGN(const device_memory::Handle handle, backend_.create(kChunk));
      handles.push_back(handle);
    }
    for (std::uint64_t step = 0; step < steps; ++step) {
      const std::uint64_t start = now_ns();
      for (std::uint64_t plane = 0; plane < planes; ++plane) {
        const device_memory::Address at = range + (plane * steps + step) * kChunk;
        CACHALOT_TRY(backend_.map(at, handles[step * planes + plane]));
        CACHALOT_TRY(backend_.set_access(at, kChunk, device_memory::Access::kReadWrite));
      }
      us.push_back(static_cast<double>(now_ns() - start) * 1e-3);
    }
    CACHALOT_TRY(backend_.unmap(range, planes * steps * kChunk));
    for (const device_memory::Handle handle : handles) CACHALOT_TRY(backend_.release(handle));
    return backend_.free_range(range);
  }

  // A prefix of as many tokens as fit, beside a copy of its bytes.
  Status measure_alias(KvLayout layout) {
    vtensor::LocalBudget budget;
    CACHALOT_TRY_ASSIGN(const auto set,
                        vtensor::VTensorSet::open(backend_, budget, options_of(layout)));
    const std::uint64_t bytes = kBytes / 2, tokens = bytes / kLlama8B.token_bytes() + 1;
    CACHALOT_TRY_ASSIGN(auto from, set->create(tokens, 1 << 16));
    CACHALOT_TRY_ASSIGN(auto to, set->create(0, 1 << 16));
    std::memset(reinterpret_cast<void*>(from.vtensor->base()), 1, kChunk);
    std::vector<char> source(bytes / 4, 1), target(bytes / 4, 2);
    std::vector<double> alias, copy;
    for (std::uint32_t round = 0; round < rounds_; ++round) {
      show_progress(std::string("vtensor: alias, ") + vtensor::kv_layout_name(layout));
      const std::uint64_t start = now_ns();
      CACHALOT_TRY(set->alias(*to.vtensor, *from.vtensor, tokens));
      alias.push_back(static_cast<double>(now_ns() - start) * 1e-3);
      CACHALOT_TRY(set->shrink(*to.vtensor, 0));
      const std::uint64_t before = now_ns();
      std::memcpy(target.data(), source.data(), source.size());
      copy.push_back(static_cast<double>(now_ns() - before) * 1e-3 * 4);
    }
    const vtensor::VTensorStats stats = set->stats();
    const Spread spread = spread_of(alias);
    Row row{std::string("alias/") + vtensor::kv_layout_name(layout), spread.median, "us",
            "a copy of the bytes", median_of(copy)};
    add_spread(row, spread);
    row.extras.emplace_back("tokens", static_cast<double>(tokens));
    row.extras.emplace_back("shared_chunks",
                            static_cast<double>(stats.borrowed_chunks_total / rounds_));
    row.extras.emplace_back("copied_bytes", static_cast<double>(stats.copied_bytes / rounds_));
    report_.add(std::move(row));
    return {};
  }

  // What every decode step pays where nothing is to do.
  Status measure_ready() {
    vtensor::LocalBudget budget;
    CACHALOT_TRY_ASSIGN(const auto set,
                        vtensor::VTensorSet::open(backend_, budget, options_of(KvLayout::kFolded)));
    CACHALOT_TRY_ASSIGN(auto created, set->create(16, 1 << 16));
    constexpr std::uint64_t kCalls = 100'000;
    std::vector<double> ns;
    for (std::uint32_t round = 0; round < rounds_; ++round) {
      const std::uint64_t start = now_ns();
      for (std::uint64_t i = 0; i < kCalls; ++i) {
        CACHALOT_TRY(set->wait_ready(*created.vtensor, 1 + i % 15));
        set->prepare(*created.vtensor, 2 + i % 15);
      }
      ns.push_back(static_cast<double>(now_ns() - start) / kCalls);
    }
    const Spread spread = spread_of(ns);
    Row row{"step/nothing_to_map", spread.median, "ns", "", 0};
    add_spread(row, spread);
    report_.add(std::move(row));
    return {};
  }

  // Eight requests decode with the background at work; a step takes 5 ms of this core.
  Status measure_waits() {
    constexpr std::uint64_t kRequests = 8, kSteps = 96, kStepNs = 5'000'000;
    std::array<double, 2> shares{};
    for (const bool prepares : {true, false}) {
      show_progress("vtensor: decode");
      vtensor::LocalBudget budget;
      vtensor::VTensorOptions options = options_of(KvLayout::kFolded);
      options.with_thread = true;
      options.ready_chunks = 32;
      CACHALOT_TRY_ASSIGN(const auto set, vtensor::VTensorSet::open(backend_, budget, options));
      std::vector<vtensor::VTensor*> requests;
      for (std::uint64_t i = 0; i < kRequests; ++i) {
        CACHALOT_TRY_ASSIGN(auto created, set->create(1 + 2 * i, 1 << 16));
        requests.push_back(created.vtensor);
      }
      for (std::uint64_t step = 1; step <= kSteps; ++step) {
        for (std::uint64_t i = 0; i < kRequests; ++i) {
          if (prepares) set->prepare(*requests[i], 1 + 2 * i + step);
        }
        const std::uint64_t start = now_ns();
        while (now_ns() - start < kStepNs) {
        }
        for (std::uint64_t i = 0; i < kRequests; ++i) {
          CACHALOT_TRY(set->wait_ready(*requests[i], 1 + 2 * i + step));
        }
      }
      const auto waits = static_cast<double>(set->stats().waits);
      shares[prepares ? 0 : 1] = 100 * (1 - waits / static_cast<double>(kRequests * kSteps));
    }
    report_.add(
        {"decode/wait_free", shares[0], "%", "without prepare()", shares[1], value_at_least(99.9)});
    return {};
  }

  Report& report_;
  device_memory::MemfdBackend& backend_;
  const std::uint32_t rounds_;
};

}  // namespace

Status bench_vtensor(const Settings& settings, Report& report) {
  const os::AvailableMemory available = os::available_memory();
  if (available.bytes < 3 * kBytes) {
    return Error::make(Code::kNoSpace,
                       "bench vtensor: %" PRIu64 " MiB available, expected %" PRIu64,
                       available.bytes / kMiB, 3 * kBytes / kMiB);
  }
  {
    CACHALOT_TRY_ASSIGN(const auto backend, device_memory::MemfdBackend::open());
    CACHALOT_TRY(VTensorBench(settings, report, *backend).run());
    report.note("Llama-3-8B in chunks of 2 MiB on memfd; found: pages " +
                std::string(os::page_mode_name(backend->page_mode())));
  }
  return bench_kv_locality(settings, report);
}

}  // namespace cachalot::apps::bench
