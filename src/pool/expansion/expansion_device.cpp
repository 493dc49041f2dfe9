#include "pool/expansion/expansion_device.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>

#include "os/process.h"
#include "pool/expansion/occupied.h"

namespace cachalot::pool {
namespace {

using memory::kLineBytes;
using memory::kStripeBytes;

constexpr std::uint64_t kSerialLine = 2 * kLineBytes;

Result<os::Mapping> map_header(const os::SharedFile& file, bool read_only) {
  os::MapOptions options;
  options.huge_pages = false;
  options.read_only = read_only;
  return file.map(options, kStripeBytes);
}

memory::SealedRegion region_at(const Access& access, std::byte* base) {
  return {access.domain(), base, memory::LineSeal(access.id.low, access.id.high)};
}

// What is there is never cut or extended, so it says how many bytes it has.
Result<os::SharedFile> take_or_make(const std::string& path, std::uint64_t bytes) {
  CACHALOT_TRY_ASSIGN(const auto part, os::parse_file_part(path));
  struct stat named {};
  const bool is_device = stat(path.c_str(), &named) == 0 && S_ISCHR(named.st_mode);
  if (bytes == 0 || part || is_device) {
    CACHALOT_TRY_ASSIGN(os::SharedFile there, os::SharedFile::open(path));
    CACHALOT_TRY(check_unoccupied(path, 0));
    if (there.kind() != os::FileKind::kDevdax && !there.is_part()) {
      return Error::make(Code::kInvalidArgument,
                         "%.120s: is a file, expected a device or --size with a name that is free",
                         path.c_str());
    }
    return there;
  }
  return os::SharedFile::create(path, expansion_file_bytes(bytes));
}

}  // namespace

Result<Expansion> make_expansion(const Access& access, const std::string& path,
                                 std::uint64_t bytes) {
  CACHALOT_TRY_ASSIGN(const os::SharedFile file, take_or_make(path, bytes));
  if (file.bytes() < 2 * kStripeBytes) {
    return Error::make(Code::kInvalidArgument,
                       "%.120s: %" PRIu64 " bytes, a device that is added has 4 MiB at least",
                       path.c_str(), file.bytes());
  }
  const std::uint64_t there = file.bytes() / kStripeBytes * kStripeBytes - kStripeBytes;
  Expansion made;
  made.bytes = bytes == 0 ? there : std::min(bytes, there);
  made.path = file.path();
  if (made.path.size() > kMaxPathBytes) {
    (void)file.remove();
    return Error::make(Code::kInvalidArgument, "%.80s…: a path of %zu bytes, at most %u",
                       made.path.c_str(), made.path.size(), kMaxPathBytes);
  }
  CACHALOT_TRY_ASSIGN(const os::Uuid serial, os::random_uuid());
  made.serial = {serial.low, serial.high};
  const Result<os::Mapping> header = map_header(file, false);
  if (!header) {
    (void)file.remove();
    return header.error();
  }
  SerialLine line{};
  line.serial_low = serial.low;
  line.serial_high = serial.high;
  line.bytes = made.bytes;
  region_at(access, header->data()).publish(kSerialLine, line);
  access.domain().order();
  write_header(access.domain(), header->data(), {access.id, access.geometry, kExpansionIndex, 0});
  access.domain().complete();
  return made;
}

Result<ExpansionFile> open_expansion(const Access& access, const std::string& path, os::Access may,
                                     os::Owners owners) {
  CACHALOT_TRY_ASSIGN(os::SharedFile file, os::SharedFile::open(path, may, owners));
  if (file.bytes() < 2 * kStripeBytes) {
    return Error::make(Code::kNotAPool,
                       "%.120s: %" PRIu64 " bytes, a device that was added has 4 MiB at least",
                       path.c_str(), file.bytes());
  }
  CACHALOT_TRY_ASSIGN(const os::Mapping mapping, map_header(file, may == os::Access::kReadOnly));
  CACHALOT_TRY_ASSIGN(const Header header,
                      read_header(access.domain(), mapping.data(), kStripeBytes, path.c_str()));
  SerialLine line{};
  const bool has_serial = region_at(access, mapping.data()).read_as(kSerialLine, line);
  if (!(header.id == access.id) || header.device_index != kExpansionIndex || !has_serial) {
    return Error::make(Code::kInvalidArgument, "%.120s: was not added to this pool", path.c_str());
  }
  if (line.bytes == 0 || line.bytes % kStripeBytes != 0 ||
      line.bytes > file.bytes() - kStripeBytes) {
    return Error::make(Code::kCorrupt,
                       "%.120s: has %" PRIu64 " bytes, its header says that %" PRIu64
                       " of blocks lie on it",
                       path.c_str(), file.bytes(), line.bytes);
  }
  Expansion found{{line.serial_low, line.serial_high}, line.bytes, file.path()};
  return ExpansionFile{std::move(file), std::move(found)};
}

Result<ExpansionFile> open_named(const Access& access, const Expansion& named, os::Access may,
                                 os::Owners owners) {
  CACHALOT_TRY_ASSIGN(ExpansionFile there, open_expansion(access, named.path, may, owners));
  if (there.expansion.serial == named.serial && there.expansion.bytes == named.bytes) return there;
  return Error::make(Code::kStale, "%.200s: has another use since it was added to the pool",
                     named.path.c_str());
}

std::optional<Error> find_loss(const Access& access, const Expansion& named) {
  const Result<ExpansionFile> there =
      open_named(access, named, os::Access::kReadOnly, os::Owners::kAny);
  if (there) return {};
  switch (there.error().code) {
    case Code::kInvalidArgument:
    case Code::kBadInput:
    case Code::kNotAPool:
    case Code::kVersionMismatch:
    case Code::kNotFound:
    case Code::kCorrupt:
    case Code::kStale:
      return there.error();
    default:
      return {};
  }
}

bool has_serial_of(const Access& access, const Expansion& named) {
  const auto file = os::SharedFile::open(named.path, os::Access::kReadOnly, os::Owners::kAny);
  if (!file || file->bytes() < expansion_file_bytes(named.bytes)) return false;
  const Result<os::Mapping> mapping = map_header(*file, true);
  SerialLine line{};
  return mapping && region_at(access, mapping->data()).read_as(kSerialLine, line) &&
         PoolId{line.serial_low, line.serial_high} == named.serial && line.bytes == named.bytes;
}

Status write_expansion_header(const Access& access, const Expansion& named) {
  CACHALOT_TRY_ASSIGN(const os::SharedFile file,
                      os::SharedFile::open(named.path, os::Access::kReadWrite, os::Owners::kAny));
  CACHALOT_TRY_ASSIGN(const os::Mapping mapping, map_header(file, false));
  write_header(access.domain(), mapping.data(), {access.id, access.geometry, kExpansionIndex, 0});
  access.domain().complete();
  return {};
}

Error is_no_first_device(const std::string& path) {
  return Error::make(
      Code::kInvalidArgument,
      "%.120s: was added to a pool by `cachalot pool grow`: give the pool's first device",
      path.c_str());
}

Status dispose_of_expansion(const Access& access, const Expansion& expansion) {
  CACHALOT_TRY_ASSIGN(
      const ExpansionFile there,
      open_expansion(access, expansion.path, os::Access::kReadWrite, os::Owners::kAny));
  if (!(there.expansion.serial == expansion.serial)) return {};  // it has another use by now
  const os::SharedFile& file = there.file;
  if (file.kind() == os::FileKind::kDevdax || file.is_part()) {
    CACHALOT_TRY_ASSIGN(const os::Mapping mapping, map_header(file, false));
    for (std::uint64_t at = 0; at <= kSerialLine; at += kLineBytes)
      access.domain().write_line(mapping.data() + at, memory::Line{});
    access.domain().complete();
    return {};
  }
  // A process that has it mapped reads zeros from now on, and throws them away. Not every file system can do it.
  (void)fallocate(file.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                  static_cast<off_t>(file.bytes()));
  return file.remove();
}

}  // namespace cachalot::pool
