#include "sched/timing/gpu_spec.h"

#include <cctype>
#include <string>

namespace cachalot::sched {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;
constexpr double kGB = 1e9, kTera = 1e12, kMilli = 1e-3, kMicro = 1e-6;

// Sources: the vendor's data sheets; memory as the driver reports it. PCIe cards have no other link: the figure for
// large messages is what NCCL reaches over PCIe 5 x16 with peer access (about 40 of 63 GB/s), for small ones the time
// of vLLM's own all-reduce over PCIe.
constexpr GpuSpec kGpus[] = {
    {"RTX4090", 24564 * kMiB, 1008 * kGB, 165.2 * kTera, 330.3 * kTera, 20 * kGB, 15 * kMicro,
     25 * kGB, 0, true},
    {"L20", 46068 * kMiB, 864 * kGB, 119.5 * kTera, 239 * kTera, 20 * kGB, 15 * kMicro, 25 * kGB,
     2.5 * kMilli, true},
    {"RTXPRO6000", 97887 * kMiB, 1597 * kGB, 503.8 * kTera, 1007.6 * kTera, 40 * kGB, 12 * kMicro,
     55 * kGB, 5 * kMilli, true},
    {"A100_SXM", 81920 * kMiB, 2039 * kGB, 312 * kTera, 0, 235 * kGB, 8 * kMicro, 25 * kGB,
     2.5 * kMilli, true},
    {"A800_SXM", 81920 * kMiB, 2039 * kGB, 312 * kTera, 0, 160 * kGB, 8 * kMicro, 25 * kGB,
     2.5 * kMilli, true},
    {"H20", 97871 * kMiB, 4000 * kGB, 148 * kTera, 296 * kTera, 400 * kGB, 8 * kMicro, 55.4 * kGB,
     2.5 * kMilli, true},
    {"H100_SXM", 81559 * kMiB, 3350 * kGB, 989 * kTera, 1979 * kTera, 400 * kGB, 8 * kMicro,
     55 * kGB, 2.5 * kMilli, true},
    {"H200_SXM", 143771 * kMiB, 4800 * kGB, 989 * kTera, 1979 * kTera, 400 * kGB, 8 * kMicro,
     55 * kGB, 2.5 * kMilli, true},
    {"B200_SXM", 183359 * kMiB, 8000 * kGB, 2250 * kTera, 4500 * kTera, 800 * kGB, 8 * kMicro,
     55 * kGB, 2.5 * kMilli, true},
};

std::string plain(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    if (c == ' ' || c == '-' || c == '_') continue;
    plain += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return plain;
}

}  // namespace

std::span<const GpuSpec> gpu_specs() {
  return kGpus;
}

Result<GpuSpec> find_gpu(std::string_view name) {
  const std::string wanted = plain(name);
  std::string names;
  for (const GpuSpec& gpu : kGpus) {
    if (plain(gpu.name) == wanted) return gpu;
    names += (names.empty() ? "" : ", ") + std::string(gpu.name);
  }
  return Error::make(Code::kInvalidArgument, "GPU \"%.60s\" is not known here; expected one of %s",
                     std::string(name).c_str(), names.c_str());
}

}  // namespace cachalot::sched
