#include "pool/expansion/occupied.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "os/shared_file.h"
#include "pool/expansion/expansion_header.h"

namespace cachalot::pool {
namespace {

using memory::kLineBytes;
using memory::kStripeBytes;

constexpr std::size_t kLines = 3;  // header, geometry, and of an added device its serial

// Regular files are read, because touching a hole in a mapping would fill it; a devdax device can only be mapped.
class Reader {
 public:
  static Result<Reader> open(const std::string& path, std::uint64_t bytes) {
    CACHALOT_TRY_ASSIGN(os::SharedFile file, os::SharedFile::open(path, os::Access::kReadOnly));
    os::Mapping mapping;
    if (file.kind() == os::FileKind::kDevdax) {
      os::MapOptions options;
      options.read_only = true;
      options.huge_pages = false;
      CACHALOT_TRY_ASSIGN(mapping, file.map(options, std::min(bytes, file.bytes())));
    }
    return Reader(std::move(file), std::move(mapping));
  }
  bool read(std::uint64_t at, std::array<memory::Line, kLines>& lines) const {
    if (at + sizeof lines > file_.bytes()) return false;
    if (mapping_.data() == nullptr) {
      return pread(file_.fd(), lines.data(), sizeof lines, static_cast<off_t>(at)) ==
             static_cast<ssize_t>(sizeof lines);
    }
    if (at + sizeof lines > mapping_.bytes()) return false;
    std::memcpy(lines.data(), mapping_.data() + at, sizeof lines);
    return true;
  }
  std::uint64_t bytes() const { return file_.bytes(); }

 private:
  Reader(os::SharedFile file, os::Mapping mapping)
      : file_(std::move(file)), mapping_(std::move(mapping)) {}
  os::SharedFile file_;
  os::Mapping mapping_;
};

std::optional<Occupant> occupant_at(const Reader& reader, std::uint64_t at) {
  std::array<memory::Line, kLines> lines;
  std::uint64_t magic = 0;
  if (!reader.read(at, lines)) return {};
  std::memcpy(&magic, lines.data(), sizeof magic);
  if (magic != kMagic) return {};
  const std::unique_ptr<memory::Domain> strict = memory::make_noncoherent_domain();
  const Result<Header> header = read_header(
      *strict, reinterpret_cast<const std::byte*>(lines.data()), kStripeBytes, "header");
  if (!header) return {};
  Occupant found;
  found.offset = at;
  found.header = *header;
  found.bytes = header->geometry.device_bytes;
  if (header->device_index == kExpansionIndex) {
    const auto serial = memory::as<SerialLine>(lines[2]);
    if (!memory::LineSeal(header->id.low, header->id.high).checks(lines[2], 2 * kLineBytes))
      return {};
    found.bytes = expansion_file_bytes(serial.bytes);
  }
  return found;
}

}  // namespace

Status for_each_occupant(const std::string& path, std::uint64_t bytes,
                         const std::function<Status(const Occupant&)>& f) {
  CACHALOT_TRY_ASSIGN(const auto part, os::parse_file_part(path));
  const std::string whole = part ? part->path : path;
  if (!os::SharedFile::peek(whole).ok()) return {};
  const std::uint64_t first = part ? part->offset : 0;
  CACHALOT_TRY_ASSIGN(const os::SharedFile file, os::SharedFile::open(path, os::Access::kReadOnly));
  const std::uint64_t end = first + (bytes == 0 ? file.bytes() : std::min(bytes, file.bytes()));
  CACHALOT_TRY_ASSIGN(const Reader reader, Reader::open(whole, end));
  for (std::uint64_t at = 0; at < end; at += kStripeBytes) {
    std::optional<Occupant> found = occupant_at(reader, at);
    if (!found || found->bytes > reader.bytes() || at + found->bytes <= first) continue;
    found->begins_here = at == first;
    found->path = whole + "@" + std::to_string(at) + "+" + std::to_string(found->bytes);
    CACHALOT_TRY(f(*found));
  }
  return {};
}

Status check_unoccupied(const std::string& path, std::uint64_t bytes) {
  return for_each_occupant(path, bytes, [&](const Occupant& found) -> Status {
    const bool is_added = found.header.device_index == kExpansionIndex;
    return Error::make(
        Code::kBusy,
        "%.120s: holds %s, at %.120s: expected a range that is free. If that pool is not "
        "wanted any more, write zeros over its first 4 KiB",
        path.c_str(), is_added ? "a device that was added to a pool" : "a pool",
        found.path.c_str());
  });
}

}  // namespace cachalot::pool
