#include "sched/timing/gpu_spec.h"

#include <cctype>
#include <string>

namespace cachalot::sched {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;
constexpr double kGB = 1e9, kTera = 1e12, kMilli = 1e-3, kMicro = 1e-6;

// All-reduces of two GPUs. NVLink: what NCCL reaches for large messages, and the time of an engine's own all-reduce for
// small ones. PCIe 5: fitted to a recorded run of vLLM with tensor parallelism of 2 over PCIe (TPOT 1.5 % off, and 16 %
// with the 40 GB/s and 12 us that messages between two GPUs alone reach). PCIe 4: half its bandwidth, not measured.
constexpr LinkSpec kLinks[] = {
    {"pcie4", 10 * kGB, 40 * kMicro},   {"pcie5", 20 * kGB, 40 * kMicro},
    {"nvlink3", 235 * kGB, 8 * kMicro}, {"nvlink4", 400 * kGB, 8 * kMicro},
    {"nvlink5", 800 * kGB, 8 * kMicro},
};
constexpr LinkSpec kPcie4 = kLinks[0], kPcie5 = kLinks[1], kNvlink3 = kLinks[2],
                   kNvlink4 = kLinks[3], kNvlink5 = kLinks[4];

constexpr GpuSpec gpu(const char* name, double memory, double bandwidth, double bf16, double fp8,
                      const LinkSpec& link, double host, double step_overhead) {
  return {name,           memory, bandwidth,     bf16, fp8, link.bytes_per_second,
          link.latency_s, host,   step_overhead, true};
}

// Sources: the vendor's data sheets; memory as the driver reports it. Cards without NVLink reduce over PCIe.
constexpr GpuSpec kGpus[] = {
    gpu("RTX4090", 24564 * kMiB, 1008 * kGB, 165.2 * kTera, 330.3 * kTera, kPcie4, 25 * kGB, 0),
    gpu("L20", 46068 * kMiB, 864 * kGB, 119.5 * kTera, 239 * kTera, kPcie4, 25 * kGB, 2.5 * kMilli),
    gpu("RTXPRO6000", 97887 * kMiB, 1597 * kGB, 503.8 * kTera, 1007.6 * kTera, kPcie5, 55 * kGB,
        5 * kMilli),
    gpu("A100_SXM", 81920 * kMiB, 2039 * kGB, 312 * kTera, 0, kNvlink3, 25 * kGB, 2.5 * kMilli),
    gpu("A800_SXM", 81920 * kMiB, 2039 * kGB, 312 * kTera, 0, {"nvlink3", 160 * kGB, 8 * kMicro},
        25 * kGB, 2.5 * kMilli),
    gpu("H20", 97871 * kMiB, 4000 * kGB, 148 * kTera, 296 * kTera, kNvlink4, 55.4 * kGB,
        2.5 * kMilli),
    gpu("H100_SXM", 81559 * kMiB, 3350 * kGB, 989 * kTera, 1979 * kTera, kNvlink4, 55 * kGB,
        2.5 * kMilli),
    gpu("H200_SXM", 143771 * kMiB, 4800 * kGB, 989 * kTera, 1979 * kTera, kNvlink4, 55 * kGB,
        2.5 * kMilli),
    gpu("B200_SXM", 183359 * kMiB, 8000 * kGB, 2250 * kTera, 4500 * kTera, kNvlink5, 55 * kGB,
        2.5 * kMilli),
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

std::string link_names(const char* between) {
  std::string names;
  for (const LinkSpec& link : kLinks)
    names += std::string(names.empty() ? "" : between) + link.name;
  return names;
}

std::string gpu_names() {
  std::string names;
  for (const GpuSpec& gpu : kGpus) names += (names.empty() ? "" : ", ") + std::string(gpu.name);
  return names;
}

Result<LinkSpec> find_link(std::string_view name) {
  for (const LinkSpec& link : kLinks) {
    if (plain(link.name) == plain(name)) return link;
  }
  return Error::make(Code::kInvalidArgument, "link \"%.60s\" is not known here; expected one of %s",
                     std::string(name).c_str(), link_names(", ").c_str());
}

Result<GpuSpec> find_gpu(std::string_view name) {
  const std::string wanted = plain(name);
  for (const GpuSpec& gpu : kGpus) {
    if (plain(gpu.name) == wanted) return gpu;
  }
  return Error::make(Code::kInvalidArgument, "GPU \"%.60s\" is not known here; expected one of %s",
                     std::string(name).c_str(), gpu_names().c_str());
}

}  // namespace cachalot::sched
