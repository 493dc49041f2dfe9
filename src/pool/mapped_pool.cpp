#include "pool/mapped_pool.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

#include "os/process.h"
#include "os/reserve.h"
#include "os/shared_file.h"
#include "pool/expansion/expansion_device.h"
#include "pool/format/domains.h"

namespace cachalot::pool {
namespace {

os::MapOptions map_options(bool huge_pages, bool populate, bool read_only,
                           const Layout& layout = {}) {
  os::MapOptions map;
  map.address_bytes = layout.data_offset + layout.data_bytes_per_device;  // less only if it grows
  map.read_only = read_only;
  map.huge_pages = huge_pages;
  map.populate = populate;
  return map;
}

Result<os::SharedFile> open_file(const std::string& path, const OpenOptions& options) {
  return os::SharedFile::open(path,
                              options.read_only ? os::Access::kReadOnly : os::Access::kReadWrite,
                              options.allow_foreign ? os::Owners::kAny : os::Owners::kTrusted);
}

// Of a file that is no pool nothing is reserved.
Status check_magic_of_sparse(const std::string& path, const OpenOptions& options) {
  CACHALOT_TRY_ASSIGN(const os::SharedFile file, open_file(path, options));
  if (file.bytes() < memory::kStripeBytes || !os::has_holes(file.fd())) return {};
  std::uint64_t magic = 0;
  if (pread(file.fd(), &magic, sizeof magic, static_cast<off_t>(file.offset())) == sizeof magic &&
      magic == kMagic) {
    return {};
  }
  return Error::make(Code::kNotAPool, "%s: is not a pool: its magic is %016llx, not %016llx",
                     path.c_str(), static_cast<unsigned long long>(magic),
                     static_cast<unsigned long long>(kMagic));
}

// To touch a hole of a sparse copy, where no space is left, is death by SIGBUS, already when the header
// is read.
Status fill_holes(const std::string& path, const OpenOptions& options) {
  CACHALOT_TRY_ASSIGN(const os::SharedFile file, open_file(path, options));
  if (file.bytes() < memory::kStripeBytes || !os::has_holes(file.fd())) return {};
  if (options.read_only) {
    return Error::make(Code::kPermission,
                       "%s: is a sparse file, whose holes have to be filled before it is read, and "
                       "this user may not write to it",
                       path.c_str());
  }
  return os::fill_holes(file.fd(), file.path().c_str());
}

// A pool's other devices are found by way of device 0 alone.
Status check_first(const Header& first, const std::string& path) {
  if (first.device_index == 0) return {};
  if (first.device_index == kExpansionIndex) return is_no_first_device(path);
  const std::string suffix = "." + std::to_string(first.device_index);
  const std::string base =
      path.ends_with(suffix) ? path.substr(0, path.size() - suffix.size()) : "";
  return Error::make(Code::kInvalidArgument,
                     "%s: is device %u of its pool: give its devices in order, device 0%s%s first",
                     path.c_str(), first.device_index, base.empty() ? "" : ", ",
                     base.empty() ? "" : (base + ",").c_str());
}

// Device `index` says that it is one, of the pool that device 0 says it is.
Status check_device(const Header& first, const Header& other, std::uint32_t index,
                    const char* name) {
  if (other.id == first.id && other.device_index == index) return {};
  if (!(other.id == first.id)) {
    return Error::make(Code::kInvalidArgument, "%s: is a device of another pool than the first one",
                       name);
  }
  return Error::make(Code::kInvalidArgument,
                     "%s: is device %u of its pool, not %u: give the devices in order", name,
                     other.device_index, index);
}

}  // namespace

std::vector<std::string> device_paths(const std::vector<std::string>& paths,
                                      std::uint32_t devices) {
  std::vector<std::string> all = paths;
  const auto part = paths.size() == 1 ? os::parse_file_part(paths[0])
                                      : Result<std::optional<os::FilePart>>(std::nullopt);
  if (paths.size() != 1 || !part || part->has_value()) return all;
  for (std::uint32_t i = 1; i < devices; ++i) all.push_back(paths[0] + "." + std::to_string(i));
  return all;
}

Result<MappedPool> MappedPool::create(const CreateOptions& options,
                                      std::function<void(int fd)> first_named) {
  Geometry geometry = options.geometry;
  if (options.paths.empty()) {
    return Error::make(Code::kInvalidArgument, "pool: no path was given");
  }
  const std::vector<std::string> paths = device_paths(options.paths, geometry.devices);
  if (paths.size() != geometry.devices) {
    return Error::make(Code::kInvalidArgument,
                       "pool: %zu paths were given for %u devices: give one, or all", paths.size(),
                       geometry.devices);
  }
  if (geometry.device_bytes == 0) {
    CACHALOT_TRY_ASSIGN(geometry.device_bytes, device_bytes_needed(geometry));
  }
  CACHALOT_TRY_ASSIGN(const Layout layout, lay_out(geometry));
  CACHALOT_TRY_ASSIGN(const os::Uuid uuid, os::random_uuid());
  CACHALOT_TRY_ASSIGN(
      memory::DeviceSet devices,
      memory::DeviceSet::create(paths, geometry.device_bytes,
                                map_options(options.huge_pages, options.populate, false, layout),
                                std::move(first_named)));
  MappedPool pool(std::move(devices));
  const Status finished = pool.finish({uuid.low, uuid.high}, geometry, false, os::Owners::kTrusted);
  if (!finished) {
    (void)pool.devices_.remove();
    return finished.error();
  }
  pool.created_unix_s_ = static_cast<std::uint64_t>(time(nullptr));
  format_pool(*pool.access_, pool.created_unix_s_);
  return pool;
}

Result<MappedPool> MappedPool::open(const std::vector<std::string>& paths,
                                    const OpenOptions& options) {
  if (paths.empty()) return Error::make(Code::kInvalidArgument, "pool: no path was given");
  // The first device says how many there are and which domain they are read by; until then the
  // rules of the stricter domain hold, which are right in both.
  Header first;
  const std::unique_ptr<memory::Domain> strict = memory::make_noncoherent_domain();
  const os::Owners owners = options.allow_foreign ? os::Owners::kAny : os::Owners::kTrusted;
  CACHALOT_TRY(check_magic_of_sparse(paths[0], options));
  CACHALOT_TRY(fill_holes(paths[0], options));
  {
    CACHALOT_TRY_ASSIGN(
        const memory::DeviceSet probe,
        memory::DeviceSet::open({paths[0]}, map_options(false, false, options.read_only), owners));
    CACHALOT_TRY_ASSIGN(first,
                        read_header(*strict, probe.base(0), probe.bytes_each(), paths[0].c_str()));
  }
  CACHALOT_TRY(check_first(first, paths[0]));
  const std::vector<std::string> all = device_paths(paths, first.geometry.devices);
  const bool are_all = all.size() == first.geometry.devices;  // open_as() says if they are not
  for (std::size_t i = 1; are_all && i < all.size(); ++i)
    CACHALOT_TRY(check_magic_of_sparse(all[i], options));
  CACHALOT_TRY_ASSIGN(MappedPool pool, open_as(first, paths, options));
  for (std::uint32_t i = 1; i < pool.devices_.count(); ++i) {
    const char* name = pool.devices_.file(i).path().c_str();
    CACHALOT_TRY_ASSIGN(const Header other, read_header(*strict, pool.devices_.base(i),
                                                        pool.devices_.bytes_each(), name));
    CACHALOT_TRY(check_device(first, other, i, name));
  }
  return pool;
}

Result<MappedPool> MappedPool::open_as(const Header& first, const std::vector<std::string>& paths,
                                       const OpenOptions& options) {
  // Before its numbers are used.
  CACHALOT_TRY_ASSIGN(const Layout layout, lay_out(first.geometry));
  const std::vector<std::string> all = device_paths(paths, first.geometry.devices);
  if (all.size() != first.geometry.devices) {
    return Error::make(Code::kInvalidArgument,
                       "%s: its pool has %u device(s), %zu paths were given", paths[0].c_str(),
                       first.geometry.devices, all.size());
  }
  const os::Owners owners = options.allow_foreign ? os::Owners::kAny : os::Owners::kTrusted;
  for (const std::string& path : all) CACHALOT_TRY(fill_holes(path, options));
  // What lies behind the pool's bytes on its device is not mapped: those addresses are other devices'.
  const std::uint64_t most_bytes =
      first.geometry.growable ? first.geometry.device_bytes : memory::DeviceSet::kMostBytes;
  CACHALOT_TRY_ASSIGN(
      memory::DeviceSet devices,
      memory::DeviceSet::open(
          all, map_options(options.huge_pages, options.populate, options.read_only, layout), owners,
          most_bytes));
  CACHALOT_TRY(devices.require_bytes(first.geometry.device_bytes));
  MappedPool pool(std::move(devices));
  CACHALOT_TRY(pool.finish(first.id, first.geometry, options.read_only, owners));
  pool.created_unix_s_ = first.created_unix_s;
  return pool;
}

Status MappedPool::finish(const PoolId& id, const Geometry& geometry, bool read_only,
                          os::Owners owners) {
  const memory::PoolView view = devices_.view();
  CACHALOT_TRY_ASSIGN(domain_, make_domain(geometry, view, first_file().path().c_str()));
  CACHALOT_TRY_ASSIGN(Access access, make_access(id, geometry, view, *domain_));
  if (geometry.growable) {
    expansions_ = std::make_unique<MappedExpansions>(devices_.base(0), read_only, owners);
    access.expansions = expansions_.get();
  }
  access_ = std::make_unique<Access>(std::move(access));
  return {};
}

Status MappedPool::check_still_there() const {
  for (std::uint32_t device = 0; device < devices_.count(); ++device) {
    const os::SharedFile& file = devices_.file(device);
    struct stat named {
    }, mapped{};
    if (fstat(file.fd(), &mapped) != 0) continue;
    const bool is_named = stat(file.file_path().c_str(), &named) == 0;
    // Not to be allowed to look, say, is no sign of anything.
    if (!is_named && errno != ENOENT && errno != ENOTDIR) continue;
    if (is_named && named.st_dev == mapped.st_dev && named.st_ino == mapped.st_ino) continue;
    return Error::make(Code::kStale, "%.120s: this file of the pool was removed meanwhile",
                       file.path().c_str());
  }
  return {};
}

}  // namespace cachalot::pool
