#include "memory/devices.h"

#include <algorithm>
#include <cinttypes>

namespace cachalot::memory {
namespace {

constexpr std::uint64_t kMaxBytes = DeviceSet::kMostBytes;

Error not_stripes(const char* what, std::uint64_t value) {
  return Error::make(Code::kInvalidArgument,
                     "%s: %" PRIu64 " is not a multiple of 2 MiB in 2 MiB..2^62", what, value);
}

// Removes the files of a set that does not come to be.
struct RemoveOnFailure {
  DeviceSet* set;
  ~RemoveOnFailure() {
    if (set != nullptr) static_cast<void>(set->remove());  // the first error is the one to tell
  }
};

}  // namespace

Result<Interleave> Interleave::make(std::vector<std::uint64_t> data_starts,
                                    std::uint64_t data_bytes_each) {
  if (data_starts.empty()) return Error::make(Code::kInvalidArgument, "devices: none given");
  if (data_bytes_each == 0 || data_bytes_each % kStripeBytes != 0 || data_bytes_each > kMaxBytes) {
    return not_stripes("data bytes of a device", data_bytes_each);
  }
  for (const std::uint64_t start : data_starts) {
    // 0 is good: a device whose header is elsewhere.
    if (start % kStripeBytes != 0 || start > kMaxBytes) {
      return not_stripes("start of a data area", start);
    }
  }
  std::uint64_t total_bytes = 0;
  if (__builtin_mul_overflow(data_bytes_each, data_starts.size(), &total_bytes) ||
      total_bytes > kMaxBytes) {
    return Error::make(Code::kInvalidArgument,
                       "%zu devices of %" PRIu64 " data bytes: more than 2^62 in all",
                       data_starts.size(), data_bytes_each);
  }
  return Interleave(std::move(data_starts), data_bytes_each);
}

Status DeviceSet::add(os::SharedFile file) {
  for (const Device& device : devices_) {
    if (device.file.overlaps(file)) {
      return Error::make(Code::kInvalidArgument, "%.120s: given twice", file.path().c_str());
    }
  }
  devices_.push_back({std::move(file), os::Mapping()});
  return {};
}

Status DeviceSet::map_all(const os::MapOptions& options) {
  for (Device& device : devices_) {
    CACHALOT_TRY_ASSIGN(device.mapping, device.file.map(options, bytes_each_));
  }
  return {};
}

Result<DeviceSet> DeviceSet::create(const std::vector<std::string>& paths, std::uint64_t bytes_each,
                                    const os::MapOptions& options,
                                    std::function<void(int fd)> first_named) {
  if (paths.empty()) return Error::make(Code::kInvalidArgument, "devices: none given");
  if (bytes_each == 0 || bytes_each % kStripeBytes != 0 || bytes_each > kMaxBytes) {
    return not_stripes("bytes of a device", bytes_each);
  }
  DeviceSet set;
  RemoveOnFailure guard{&set};
  set.bytes_each_ = bytes_each;
  os::CreateOptions create_options{.huge_pages = options.huge_pages};
  create_options.named = std::move(first_named);
  for (const std::string& path : paths) {
    CACHALOT_TRY_ASSIGN(auto file, os::SharedFile::create(path, bytes_each, create_options));
    create_options.named = {};
    CACHALOT_TRY(set.add(std::move(file)));
  }
  CACHALOT_TRY(set.map_all(options));
  guard.set = nullptr;
  return set;
}

Result<DeviceSet> DeviceSet::open(const std::vector<std::string>& paths,
                                  const os::MapOptions& options, os::Owners owners,
                                  std::uint64_t most_bytes) {
  if (paths.empty()) return Error::make(Code::kInvalidArgument, "devices: none given");
  DeviceSet set;
  set.bytes_each_ = most_bytes;
  const os::Access access = options.read_only ? os::Access::kReadOnly : os::Access::kReadWrite;
  for (const std::string& path : paths) {
    CACHALOT_TRY_ASSIGN(auto file, os::SharedFile::open(path, access, owners));
    if (file.bytes() < kStripeBytes) {
      return Error::make(Code::kBadInput, "%.120s: %" PRIu64 " bytes, a device has 2 MiB at least",
                         path.c_str(), file.bytes());
    }
    set.bytes_each_ = std::min(set.bytes_each_, file.bytes() / kStripeBytes * kStripeBytes);
    CACHALOT_TRY(set.add(std::move(file)));
  }
  CACHALOT_TRY(set.map_all(options));
  return set;
}

PoolView DeviceSet::view() const {
  PoolView view;
  view.bytes_each = bytes_each_;
  for (const Device& device : devices_) view.bases.push_back(device.mapping.data());
  return view;
}

Status DeviceSet::require_bytes(std::uint64_t bytes_each) const {
  for (const Device& device : devices_) CACHALOT_TRY(device.file.require_bytes(bytes_each));
  return {};
}

Status DeviceSet::remove() {
  Status first;
  for (const Device& device : devices_) {
    Status removed = device.file.remove();
    if (!removed && first) first = std::move(removed);
  }
  return first;
}

}  // namespace cachalot::memory
