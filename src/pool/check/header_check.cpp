#include "pool/check/header_check.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "memory/interleave.h"
#include "os/reserve.h"
#include "os/shared_file.h"
#include "pool/expansion/expansion_device.h"
#include "pool/mapped_pool.h"

namespace cachalot::pool {
namespace {

using memory::kLineBytes;
using memory::Line;

// The line itself, or the only one that differs from it in one byte and checks.
template <class Checks>
std::optional<Line> mend_byte(const Line& line, Checks&& checks) {
  std::optional<Line> found;
  for (std::size_t byte = 0; byte < kLineBytes; ++byte) {
    for (unsigned flip = 1; flip < 256; ++flip) {
      Line candidate = line;
      reinterpret_cast<unsigned char*>(&candidate)[byte] ^= static_cast<unsigned char>(flip);
      if (!checks(candidate)) continue;
      if (found) return {};
      found = candidate;
    }
  }
  return found;
}

bool is_header(const Line& line) {
  const auto header = memory::as<HeaderLine>(line);
  return header.magic == kMagic &&
         (header.version == kFormatVersion || header.version == kGrowableVersion) &&
         memory::LineSeal(header.uuid_low, header.uuid_high).checks(line, 0);
}

// Of device `index` of this pool.
bool says_the_same(const HeaderLine& line, const Header& first, std::uint32_t index) {
  const Geometry& g = first.geometry;
  return line.version == version_of(g) && line.uuid_low == first.id.low &&
         line.uuid_high == first.id.high && line.domain == static_cast<std::uint32_t>(g.domain) &&
         line.device_index == index && line.devices == g.devices &&
         line.device_bytes == g.device_bytes && line.noncoherent_devices == g.noncoherent_devices;
}

bool says_the_same(const GeometryLine& line, const Header& first) {
  HeaderLine header{};
  const Geometry& theirs = header_of(header, line).geometry;
  const Geometry& ours = first.geometry;
  return theirs.block_bytes == ours.block_bytes && theirs.blocks == ours.blocks &&
         theirs.capacity_blocks == ours.capacity_blocks &&
         theirs.directory_slots == ours.directory_slots && theirs.clients == ours.clients &&
         theirs.hosts == ours.hosts && theirs.note_bytes == ours.note_bytes &&
         theirs.growable == ours.growable && line.keeper_slots == kKeeperSlots &&
         line.ring_lines == kRingLines && line.namespaces == kMaxNamespaces;
}

constexpr std::size_t kHeaderLines = 2;

// A device's file, and a copy of the lines at its beginning.
struct Device {
  os::SharedFile file;
  std::array<Line, kHeaderLines> header;
  HeaderLines lines;

  const std::byte* data() const { return reinterpret_cast<const std::byte*>(header.data()); }
};

// A hole is not touched in a mapping: where no space is left, that is death by SIGBUS.
Status read_header_lines(const os::SharedFile& file, const char* path, memory::Domain& domain,
                         std::array<Line, kHeaderLines>& lines) {
  if (os::has_holes(file.fd())) {
    const ssize_t bytes =
        pread(file.fd(), lines.data(), sizeof lines, static_cast<off_t>(file.offset()));
    if (bytes == static_cast<ssize_t>(sizeof lines)) return {};
    return Error::from_errno(errno, "%.120s: reading its header", path);
  }
  os::MapOptions map;
  map.read_only = true;
  map.huge_pages = false;
  CACHALOT_TRY_ASSIGN(const os::Mapping mapping, file.map(map, memory::kStripeBytes));
  domain.read_lines(mapping.data(), kHeaderLines, lines.data());
  return {};
}

Result<Device> open_device(const std::string& path) {
  CACHALOT_TRY_ASSIGN(os::SharedFile file, os::SharedFile::open(path, os::Access::kReadOnly));
  if (file.bytes() < memory::kStripeBytes) {
    return Error::make(Code::kNotAPool, "%.120s: has %llu bytes, no pool is smaller than 2 MiB",
                       path.c_str(), static_cast<unsigned long long>(file.bytes()));
  }
  const std::unique_ptr<memory::Domain> strict = memory::make_noncoherent_domain();
  Device device{std::move(file), {}, {}};
  CACHALOT_TRY(read_header_lines(device.file, path.c_str(), *strict, device.header));
  device.lines = look_at_header(*strict, device.data());
  return device;
}

bool exists(const std::string& path) {
  return os::SharedFile::peek(path).ok();
}

// One path is the first of PATH, PATH.1, …
std::vector<std::string> find_devices(const std::vector<std::string>& paths) {
  if (paths.size() != 1) return paths;
  std::uint32_t devices = 1;
  while (devices < kMaxDevices && exists(device_paths(paths, devices + 1).back())) ++devices;
  return device_paths(paths, devices);
}

// What a device's own lines say of its pool.
std::optional<Header> header_of_pool(const Device& device) {
  if (!device.lines.header || !device.lines.geometry) return {};
  Header header = header_of(*device.lines.header, *device.lines.geometry);
  if (!lay_out(header.geometry)) return {};
  header.device_index = 0;
  return header;
}

void add_header_faults(const Device& device, std::uint32_t index, const Header& first,
                       bool& is_good, FaultLog& log) {
  const HeaderLines& lines = device.lines;
  const std::string of = "device " + std::to_string(index);
  const auto add = [&](FaultKind kind, std::uint64_t offset, const std::string& what) {
    log.add({kind, index, offset, kNoBlock, kNoBlock, of + ": " + what});
    is_good = false;
  };
  if (!lines.is_header_good) add(FaultKind::kHeaderLine, 0, "its header line has a wrong CRC");
  if (!lines.is_geometry_good) {
    add(FaultKind::kGeometryLine, kLineBytes, "its geometry line has a wrong CRC");
  }
  if (lines.is_header_good && !says_the_same(*lines.header, first, index)) {
    add(FaultKind::kHeaderContent, 0,
        "its header says device " + std::to_string(lines.header->device_index) + " of " +
            std::to_string(lines.header->devices) + ", or is of another pool");
  }
  if (lines.is_geometry_good && !says_the_same(*lines.geometry, first)) {
    add(FaultKind::kHeaderContent, kLineBytes, "its geometry is another than that of the pool");
  }
}

}  // namespace

HeaderLines look_at_header(memory::Domain& domain, const std::byte* base) {
  Line lines[2];
  domain.read_lines(base, 2, lines);
  HeaderLines found;
  found.is_header_good = is_header(lines[0]);
  const std::optional<Line> header =
      found.is_header_good ? lines[0] : mend_byte(lines[0], is_header);
  found.is_pool = header || memory::as<HeaderLine>(lines[0]).magic == kMagic;
  if (!header) return found;
  found.header = memory::as<HeaderLine>(*header);
  const memory::LineSeal seal(found.header->uuid_low, found.header->uuid_high);
  const auto is_geometry = [&](const Line& line) {
    const auto geometry = memory::as<GeometryLine>(line);
    return geometry.keeper_slots == kKeeperSlots && geometry.ring_lines == kRingLines &&
           geometry.namespaces == kMaxNamespaces && seal.checks(line, kLineBytes);
  };
  found.is_geometry_good = is_geometry(lines[1]);
  const std::optional<Line> geometry =
      found.is_geometry_good ? lines[1] : mend_byte(lines[1], is_geometry);
  if (geometry) found.geometry = memory::as<GeometryLine>(*geometry);
  return found;
}

Result<HeaderReport> check_headers(const std::vector<std::string>& paths, FaultLog& log) {
  if (paths.empty()) return Error::make(Code::kInvalidArgument, "pool: no path was given");
  HeaderReport report;
  report.paths = find_devices(paths);
  std::vector<Device> devices;
  bool is_pool = false;
  for (const std::string& path : report.paths) {
    CACHALOT_TRY_ASSIGN(Device device, open_device(path));
    if (device.lines.header && device.lines.header->device_index == kExpansionIndex)
      return is_no_first_device(path);
    devices.push_back(std::move(device));
    is_pool |= devices.back().lines.is_pool;
  }
  // The first device that knows: device 0, if it does.
  for (const Device& device : devices) {
    if (!report.first) report.first = header_of_pool(device);
  }
  if (!report.first) {
    const std::unique_ptr<memory::Domain> strict = memory::make_noncoherent_domain();
    const Result<Header> read =
        read_header(*strict, devices[0].data(), memory::kStripeBytes, paths[0].c_str());
    if (!read && (!is_pool || read.error().code == Code::kVersionMismatch)) return read.error();
    log.add({FaultKind::kHeaderLine, 0, 0, kNoBlock, kNoBlock,
             "more than one byte of a header line is wrong, and no other device has it"});
    return report;
  }
  const Geometry& geometry = report.first->geometry;
  // Files after the pool's last device are not its own.
  if (paths.size() == 1 && devices.size() > geometry.devices) {
    devices.erase(devices.begin() + geometry.devices, devices.end());
    report.paths.resize(geometry.devices);
  }
  if (devices.size() != geometry.devices) {
    return Error::make(Code::kInvalidArgument, "%.120s: its pool has %u device(s), found %zu",
                       paths[0].c_str(), geometry.devices, devices.size());
  }
  for (std::uint32_t i = 0; i < geometry.devices; ++i) {
    bool is_good = true;
    add_header_faults(devices[i], i, *report.first, is_good, log);
    report.is_good.push_back(is_good);
    if (devices[i].file.bytes() >= geometry.device_bytes) continue;
    report.has_all_bytes = false;
    log.add({FaultKind::kShortDevice, i, devices[i].file.bytes(), kNoBlock, kNoBlock,
             "device " + std::to_string(i) + " has " + std::to_string(devices[i].file.bytes()) +
                 " bytes, its header says " + std::to_string(geometry.device_bytes)});
  }
  return report;
}

void mend_headers(const Access& access, const HeaderReport& report) {
  for (std::uint32_t i = 0; i < report.is_good.size(); ++i) {
    if (report.is_good[i]) continue;
    Header header = *report.first;
    header.device_index = i;
    write_header(access.domain(), access.view.bases[i], header);
  }
  access.domain().complete();
}

}  // namespace cachalot::pool
