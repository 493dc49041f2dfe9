#include "cuda_registration.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>

#include "cuda_device.h"
#include "memory/devices.h"
#include "os/shared_file.h"

namespace cachalot::apps::bench {
namespace {

constexpr const char* kHugetlb = "hugetlb";  // reserved huge pages, which few machines have

struct Kind {
  const char* name;
  const char* path;  // the process's number is appended
  bool huge_pages;
};
constexpr std::array kKinds = {Kind{"memfd", "memfd:bench_register", true},
                               Kind{"memfd/small_pages", "memfd:bench_register", false},
                               Kind{"tmpfs", "shm:cachalot_bench_register.", true},
                               Kind{"tmpfs/small_pages", "shm:cachalot_bench_register.", false},
                               Kind{kHugetlb, "/dev/hugepages/cachalot_bench_register.", true}};

struct Times {
  std::vector<double> register_ms, unregister_ms, own_ms;
  os::PageMode pages = os::PageMode::kSmall;
};

double ms_since(std::uint64_t begin) {
  return static_cast<double>(now_ns() - begin) * 1e-6;
}

Result<os::Mapping> make_memory(const Kind& kind, std::uint64_t bytes) {
  std::string path = kind.path;
  if (path.ends_with('.')) path += std::to_string(getpid());
  CACHALOT_TRY_ASSIGN(
      os::SharedFile file,
      os::SharedFile::create(path, bytes, {.mode = 0600, .huge_pages = kind.huge_pages}));
  Result<os::Mapping> mapping = file.map({.huge_pages = kind.huge_pages, .populate = true});
  CACHALOT_TRY(file.remove());
  return mapping;
}

Result<Times> measure(const Settings& settings, kv::CudaDevice& device, const Kind& kind,
                      std::uint64_t bytes) {
  Times times;
  const std::uint32_t rounds = settings.quick ? 2 : std::min(settings.repeats, 3u);
  for (std::uint32_t i = 0; i < rounds; ++i) {
    CACHALOT_TRY_ASSIGN(const os::Mapping memory, make_memory(kind, bytes));
    times.pages = memory.page_mode();
    if (kind.name == kHugetlb && times.pages != os::PageMode::kHugetlb)
      return Error::make(Code::kUnsupported, "/dev/hugepages is no hugetlbfs");
    std::uint64_t begin = now_ns();
    CACHALOT_TRY(device.register_pool(memory.data(), bytes));
    times.register_ms.push_back(ms_since(begin));
    begin = now_ns();
    CACHALOT_TRY(device.unregister_pool(memory.data()));
    times.unregister_ms.push_back(ms_since(begin));
    begin = now_ns();
    CACHALOT_TRY_ASSIGN(const PageLocked own, PageLocked::make(device, bytes));
    times.own_ms.push_back(ms_since(begin));
  }
  return times;
}

}  // namespace

Status measure_registration(const Settings& settings, kv::CudaDevice& device, Report& report) {
  constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
  const std::uint64_t bytes = settings.quick ? kGiB / 16 : kGiB;
  const double gib = static_cast<double>(bytes) / static_cast<double>(kGiB);
  for (const Kind& kind : kKinds) {
    const std::string name = std::string("register/") + kind.name;
    show_progress("cuda: " + name);
    const Result<Times> times = measure(settings, device, kind, bytes);
    if (!times) {
      report.note(name + ": left out: " + times.error().message);
      continue;
    }
    Row row{name, median_of(times->register_ms) / gib, "ms", "page-locked by the driver",
            median_of(times->own_ms) / gib};
    row.extras.emplace_back("unregister_ms", median_of(times->unregister_ms) / gib);
    report.add(std::move(row));
    report.note(name + ": of 1 GiB, in pages " + os::page_mode_name(times->pages));
  }
  return {};
}

}  // namespace cachalot::apps::bench
