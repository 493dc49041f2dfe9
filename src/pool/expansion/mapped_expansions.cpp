#include "pool/expansion/mapped_expansions.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "base/clock.h"
#include "base/log.h"
#include "base/rare_line.h"
#include "pool/expansion/expansion_device.h"

namespace cachalot::pool {

std::uint32_t MappedExpansions::follow(const Access& access, std::uint32_t area,
                                       std::uint32_t epoch) {
  constexpr std::uint64_t kRetryNs = 1'000'000'000;
  const std::optional<std::uint64_t> version = read_table_version(access, area, epoch);
  const std::lock_guard lock(mutex_);
  // An older table is that of a keeper that another one has followed: a caller that was delayed since it looked must not map
  // a device that was given up over the one that took its place, where other threads are reading.
  if (!version || *version < version_) return access.layout.first_blocks;
  const bool is_known = *version == version_;
  if (is_known && (retry_at_ns_ == 0 || base::SteadyClock::read() < retry_at_ns_))
    return accessible_;
  const std::optional<ExpansionTable> table = read_table(access, area, epoch);
  if (!table || table->version < version_) return access.layout.first_blocks;
  Status why_not;
  const bool is_whole = map_locked(access, table->expansions, why_not) == table->expansions.size();
  static base::RareLine line;  // it is tried once a second
  if (!is_whole && line.is_due()) {
    base::log(base::LogLevel::kWarn, "pool", "a device of the pool cannot be used here: %s",
              why_not.error().message);
  }
  version_ = table->version;
  retry_at_ns_ = is_whole ? 0 : base::SteadyClock::read() + kRetryNs;
  std::vector<Expansion> there;
  for (const Mapped& mapped : mapped_) there.push_back(mapped.expansion);
  accessible_ = std::min(blocks_on(access, there), table->leaving);
  return accessible_;
}

std::size_t MappedExpansions::map(const Access& access, std::span<const Expansion> expansions,
                                  Status& why_not) {
  const std::lock_guard lock(mutex_);
  version_ = 0;
  return map_locked(access, expansions, why_not);
}

std::size_t MappedExpansions::map_locked(const Access& access,
                                         std::span<const Expansion> expansions, Status& why_not) {
  std::size_t same = 0;
  // By the serial, whatever name the device has.
  while (same < std::min(mapped_.size(), expansions.size()) &&
         mapped_[same].expansion.serial == expansions[same].serial)
    ++same;
  mapped_.resize(same);
  for (; same < expansions.size(); ++same) {
    why_not = map_next(access, expansions[same]);
    if (!why_not) break;
  }
  return same;
}

Status MappedExpansions::map_next(const Access& access, const Expansion& expansion) {
  CACHALOT_TRY_ASSIGN(
      const ExpansionFile there,
      open_named(access, expansion, read_only_ ? os::Access::kReadOnly : os::Access::kReadWrite,
                 owners_));
  std::byte* const at = mapped_.empty() ? base_ + access.geometry.device_bytes
                                        : mapped_.back().range.data + mapped_.back().range.bytes;
  const std::byte* const end =
      base_ + access.layout.data_offset + access.layout.data_bytes_per_device;
  if (expansion.bytes > static_cast<std::uint64_t>(end - at)) {
    return Error::make(Code::kCorrupt, "%.200s: is larger than the pool may grow",
                       expansion.path.c_str());
  }
  const Range range{at, expansion.bytes};
  if (listener_ && at < told_until_) {
    return Error::make(
        Code::kBusy,
        "%.200s: would take the place of a device whose memory a GPU of this process "
        "has locked: start the process again to use it",
        expansion.path.c_str());
  }
  struct stat named {};
  if (fstat(there.file.fd(), &named) != 0)
    return Error::from_errno(errno, "%.120s: looking at it", expansion.path.c_str());
  os::MapOptions options;
  options.read_only = read_only_;
  CACHALOT_TRY(there.file.map_at(at, memory::kStripeBytes, range.bytes, options));
  if (listener_) {
    CACHALOT_TRY(listener_(range));
    told_until_ = range.data + range.bytes;
  }
  mapped_.push_back({expansion, range, there.file.file_path(), named.st_dev, named.st_ino});
  return {};
}

Status MappedExpansions::flush() {
  for (const Range& range : ranges())
    CACHALOT_TRY(os::flush_to_file(range.data, range.bytes, "a device of the pool"));
  return {};
}

std::optional<std::string> MappedExpansions::find_removed(
    std::span<const Expansion> expansions) const {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < std::min(mapped_.size(), expansions.size()); ++i) {
    const Mapped& mapped = mapped_[i];
    struct stat named {};
    const bool is_named = stat(mapped.file.c_str(), &named) == 0;
    // Not to be allowed to look, say, is no sign of anything.
    if (!is_named && errno != ENOENT && errno != ENOTDIR) continue;
    if (!is_named || named.st_dev != mapped.device || named.st_ino != mapped.inode)
      return mapped.expansion.path;
  }
  return {};
}

Result<Expansion> MappedExpansions::look_at(const Access& access, const std::string& path) const {
  CACHALOT_TRY_ASSIGN(const ExpansionFile there,
                      open_expansion(access, path, os::Access::kReadWrite, owners_));
  return there.expansion;
}

Status MappedExpansions::listen(Listener listener) {
  const std::lock_guard lock(mutex_);
  listener_ = {};
  told_until_ = nullptr;
  if (!listener) return {};
  for (const Mapped& mapped : mapped_) {
    CACHALOT_TRY(listener(mapped.range));
    told_until_ = mapped.range.data + mapped.range.bytes;
  }
  listener_ = std::move(listener);
  return {};
}

std::vector<MappedExpansions::Range> MappedExpansions::ranges() const {
  const std::lock_guard lock(mutex_);
  std::vector<Range> all;
  for (const Mapped& mapped : mapped_) all.push_back(mapped.range);
  return all;
}

}  // namespace cachalot::pool
