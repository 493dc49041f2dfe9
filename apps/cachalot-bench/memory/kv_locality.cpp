// One layer's keys of a long sequence, as attention reads them: rows side by side (per_layer), or a
// stride apart (folded). What a folded layout saves in memory it pays for here.

#include <sys/mman.h>

#include <array>
#include <numeric>
#include <string>
#include <vector>

#include "device_memory/memfd/memfd_backend.h"
#include "vtensor.h"
#include "vtensor/vtensor_set.h"

namespace cachalot::apps::bench {
namespace {

using vtensor::KvLayout;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kBytes = 512 * kMiB;  // more than any cache, over all layers
constexpr std::uint64_t kAheadBytes = 4096;   // asked for ahead of the row that is read

struct Model {
  const char* name;
  vtensor::KvShape shape;
};
const std::array kModels = {
    Model{"Llama-3-8B", {.layers = 32, .part_bytes = {2048, 2048}}},
    Model{"Llama-3-8B_tp8", {.layers = 32, .part_bytes = {256, 256}}},
    Model{"DeepSeek-V3", {.layers = 61, .part_bytes = {1152}}},
};

// Adds up every number of the rows, so that all of their bytes are read.
// @param ahead_rows  whose lines are asked for meanwhile; 0: the processor guesses by itself
std::uint64_t read_rows(const std::uint64_t* first, std::uint64_t row_bytes,
                        std::uint64_t stride_bytes, std::uint64_t rows, std::uint64_t ahead_rows) {
  constexpr std::uint64_t kLineWords = 8;
  const std::uint64_t words = row_bytes / 8, stride = stride_bytes / 8;
  std::array<std::uint64_t, kLineWords> sums{};
  for (std::uint64_t row = 0; row < rows; ++row) {
    const std::uint64_t* const numbers = first + row * stride;
    const std::uint64_t* const ahead = numbers + ahead_rows * stride;
    const bool fetches = ahead_rows != 0 && row + ahead_rows < rows;
    for (std::uint64_t i = 0; i + kLineWords <= words; i += kLineWords) {
      if (fetches) __builtin_prefetch(ahead + i);
      for (std::uint64_t k = 0; k < kLineWords; ++k) sums[k] += numbers[i + k];
    }
  }
  return std::accumulate(sums.begin(), sums.end(), std::uint64_t{0});
}

struct Unmap {
  std::uint64_t bytes;
  void operator()(void* memory) const { munmap(memory, bytes); }
};

class LocalityBench {
 public:
  LocalityBench(const Settings& settings, Report& report, device_memory::MemfdBackend& backend,
                const char* pages, bool has_huge_pages)
      : report_(report),
        backend_(backend),
        pages_(pages),
        has_huge_pages_(has_huge_pages),
        rounds_(settings.quick ? 2 : std::min(settings.repeats, 5u)) {}

  // The same bytes without a gap in plain memory, in pages of the same size.
  Status run(const Model& model) {
    const std::uint64_t tokens = kBytes / model.shape.token_bytes() - 64;
    CACHALOT_TRY_ASSIGN(const std::vector<double> plain, read_plain(model.shape, tokens));
    for (const KvLayout layout : {KvLayout::kPerLayer, KvLayout::kFolded}) {
      show_progress(std::string("vtensor: ") + model.name + ", " + vtensor::kv_layout_name(layout));
      CACHALOT_TRY_ASSIGN(const Rates rates, read_range(model.shape, layout, tokens));
      add(model, layout, tokens, "", rates.plain, plain);
      add(model, layout, tokens, "/fetched_ahead", rates.fetched, plain);
    }
    return {};
  }

 private:
  struct Rates {
    std::vector<double> plain, fetched;
  };

  void add(const Model& model, KvLayout layout, std::uint64_t tokens, const char* how,
           const std::vector<double>& rates, const std::vector<double>& baseline) {
    const Spread spread = spread_of(rates);
    Row row{std::string("read_layer/") + model.name + "/" + vtensor::kv_layout_name(layout) + "/" +
                pages_ + how,
            spread.median, "GB/s", "the same bytes in one piece", median_of(baseline)};
    add_spread(row, spread);
    row.extras.emplace_back("tokens", static_cast<double>(tokens));
    row.extras.emplace_back("row_bytes", static_cast<double>(model.shape.part_bytes[0]));
    report_.add(std::move(row));
  }

  // Keys of one layer after the other; by the time that one comes again its lines have left the caches.
  template <class View>
  std::vector<double> rates(const vtensor::KvShape& shape, std::uint64_t tokens,
                            std::uint64_t ahead_bytes, View&& view) {
    std::vector<double> gb_per_s;
    const std::uint64_t row_bytes = shape.part_bytes[0];
    const std::uint64_t ahead_rows = (ahead_bytes + row_bytes - 1) / row_bytes;
    for (std::uint32_t round = 0; round <= rounds_; ++round) {
      for (std::uint64_t layer = 0; layer < shape.layers; ++layer) {
        const auto [first, stride] = view(layer);
        const std::uint64_t start = now_ns();
        const std::uint64_t sum = read_rows(first, row_bytes, stride, tokens, ahead_rows);
        const auto ns = static_cast<double>(now_ns() - start);
        asm volatile("" : : "r"(sum));
        // The first round makes the page tables.
        if (round != 0) gb_per_s.push_back(static_cast<double>(row_bytes * tokens) / ns);
      }
    }
    return gb_per_s;
  }

  Result<Rates> read_range(const vtensor::KvShape& shape, KvLayout layout, std::uint64_t tokens) {
    vtensor::LocalBudget budget;
    CACHALOT_TRY_ASSIGN(
        const auto set,
        vtensor::VTensorSet::open(
            backend_, budget,
            {.shape = shape, .layout = layout, .max_tokens = tokens, .with_thread = false}));
    CACHALOT_TRY_ASSIGN(const auto created, set->create(tokens, tokens));
    const auto view = [&](std::uint64_t layer) {
      const vtensor::RangeLayout::View where = set->layout().view(layer, 0);
      return std::pair(
          reinterpret_cast<const std::uint64_t*>(created.vtensor->base() + where.offset),
          where.stride);
    };
    return Rates{.plain = rates(shape, tokens, 0, view),
                 .fetched = rates(shape, tokens, kAheadBytes, view)};
  }

  Result<std::vector<double>> read_plain(const vtensor::KvShape& shape, std::uint64_t tokens) {
    void* const memory = mmap(nullptr, kBytes + 2 * kMiB, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return Error::from_errno(errno, "mmap: %lu bytes", kBytes);
    const std::unique_ptr<void, Unmap> owner(memory, Unmap{kBytes + 2 * kMiB});
    madvise(memory, kBytes + 2 * kMiB, has_huge_pages_ ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    auto* const bytes = static_cast<volatile char*>(memory);
    for (std::uint64_t i = 0; i < kBytes; i += 4096) bytes[i] = 1;
    const std::uint64_t layer_bytes = shape.part_bytes[0] * tokens;
    const std::uint64_t layers = kBytes / layer_bytes;
    return rates(shape, tokens, 0, [&](std::uint64_t layer) {
      const auto* const first = static_cast<const char*>(memory) + layer % layers * layer_bytes;
      return std::pair(reinterpret_cast<const std::uint64_t*>(first), shape.part_bytes[0]);
    });
  }

  Report& report_;
  device_memory::MemfdBackend& backend_;
  const char* pages_;
  const bool has_huge_pages_;
  const std::uint32_t rounds_;
};

Status run_pages(const Settings& settings, Report& report,
                 const device_memory::PageStoreOptions& options) {
  CACHALOT_TRY_ASSIGN(const auto backend, device_memory::MemfdBackend::open(options));
  const bool is_huge = backend->page_mode() != os::PageMode::kSmall;
  LocalityBench bench(settings, report, *backend, is_huge ? "2MiB_pages" : "4KiB_pages", is_huge);
  for (const Model& model : kModels) CACHALOT_TRY(bench.run(model));
  report.note(std::string("read_layer: ") + backend->description() + "; found: pages " +
              os::page_mode_name(backend->page_mode()));
  return {};
}

}  // namespace

Status bench_kv_locality(const Settings& settings, Report& report) {
  CACHALOT_TRY(run_pages(settings, report, {}));
  return run_pages(settings, report, {.source = device_memory::PageSource::kSmall});
}

}  // namespace cachalot::apps::bench
