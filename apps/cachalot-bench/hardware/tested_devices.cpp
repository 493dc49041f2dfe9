#include "tested_devices.h"

#include <string>
#include <vector>

#include "os/shared_file.h"
#include "pool/format/access.h"

namespace cachalot::apps::bench {
namespace {

// A device is written over as it is.
Status check_holds_no_pool(const std::string& path) {
  const Result<os::SharedFile> file = os::SharedFile::open(path, os::Access::kReadOnly);
  if (!file) return {};  // it is made, or creation says what is wrong
  os::MapOptions options;
  options.read_only = true;
  options.huge_pages = false;
  const Result<os::Mapping> mapped =
      file->map(options, std::min(file->bytes(), memory::kStripeBytes));
  if (!mapped || mapped->bytes() < memory::kStripeBytes) return {};
  const std::unique_ptr<memory::Domain> strict = memory::make_noncoherent_domain();
  const Result<pool::Header> header =
      pool::read_header(*strict, mapped->data(), mapped->bytes(), path.c_str());
  if (!header && header.error().code == Code::kNotAPool) return {};
  return Error::make(
      Code::kBusy,
      "--device: %.200s holds a pool, which would be lost: expected another device, or "
      "a part of it that is free, as %.60s@64GiB+1GiB",
      path.c_str(), path.c_str());
}

}  // namespace

Result<TestedDevices> TestedDevices::take(const Settings& settings, std::uint32_t wanted,
                                          std::uint64_t bytes_each) {
  std::vector<std::string> paths = settings.devices;
  if (paths.empty()) {
    for (std::uint32_t i = 0; i < wanted; ++i) paths.push_back("memfd:bench" + std::to_string(i));
  }
  if (paths.size() < wanted) {
    return Error::make(Code::kInvalidArgument, "--device: %zu were named, expected %u",
                       paths.size(), wanted);
  }
  paths.resize(wanted);
  for (const std::string& path : paths) CACHALOT_TRY(check_holds_no_pool(path));
  CACHALOT_TRY_ASSIGN(memory::DeviceSet devices, memory::DeviceSet::create(paths, bytes_each));
  return TestedDevices(std::move(devices));
}

}  // namespace cachalot::apps::bench
