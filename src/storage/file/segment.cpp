#include "storage/file/segment.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <thread>

#include "base/clock.h"
#include "base/crc32c.h"

namespace cachalot::storage {
namespace {

constexpr char kMagic[8] = {'C', 'c', 'h', 'S', 'e', 'g', 'm', '\0'};

struct SegmentHeader {
  char magic[8];
  std::uint32_t version;
  std::uint32_t slots;
  std::uint64_t slot_bytes;
  std::uint64_t crc;  // CRC-32C of the 24 bytes before
};
static_assert(sizeof(SegmentHeader) == 32);

constexpr std::uint32_t kMostSlots = 1u << 20;
constexpr std::uint64_t kMostSlotBytes = kMaxPayloadBytes + 4 * std::uint64_t{kMaxObjectTokens};

// @param bytes  a multiple of 8; 4 bytes more are followed by four of zeroes
std::uint32_t crc_of(const void* data, std::size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  std::uint32_t crc = base::kCrc32cInit;
  for (std::size_t i = 0; i < bytes; i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, at + i, std::min<std::size_t>(8, bytes - i));
    crc = base::crc32c_word(crc, word);
  }
  return crc;
}

std::uint32_t crc_of(const SegmentEntry& entry) {
  return crc_of(&entry, offsetof(SegmentEntry, crc));
}

// Transfers all of it, or says why not.
Status transfer(int fd, bool is_write, std::uint64_t offset, void* data, std::uint64_t bytes,
                const std::string& path) {
  iovec piece{data, bytes};
  IoRequest request{fd, is_write, offset, {&piece, 1}};
  IoBatch::make(1, IoBatch::Kind::kSystemCalls)->run({&request, 1});
  if (request.os_error == 0) return {};
  return Error::from_errno(request.os_error,
                           "storage file %.120s: %s %" PRIu64 " bytes at %" PRIu64, path.c_str(),
                           is_write ? "write" : "read", bytes, offset);
}

}  // namespace

bool out_of_descriptors(const Error& error) {
  return error.os_error == EMFILE || error.os_error == ENFILE;
}

Segment::Segment(const Directory& directory, std::uint32_t number)
    : directory_(directory.fd()),
      name_(Directory::segment_name(number)),
      path_(directory.path() + "/" + name_) {}

// The kernel may still execute requests of an owner that was killed (io_uring does so after the process is gone).
// They hold its open file, and so its lock: without it they could overwrite what the next owner writes.
Status Segment::lock(std::uint64_t patience_ns) {
  constexpr auto kPause = std::chrono::milliseconds(1);
  const std::uint64_t until_ns = base::SteadyClock::read() + patience_ns;
  while (::flock(fd(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EOPNOTSUPP || errno == ENOLCK) return {};  // a file system without such locks
    if (errno != EWOULDBLOCK && errno != EINTR)
      return Error::from_errno(errno, "storage file %.120s: lock", path_.c_str());
    if (base::SteadyClock::read() >= until_ns) {
      return Error::make(Code::kBusy, "storage file %.120s: a process that is gone still writes it",
                         path_.c_str());
    }
    std::this_thread::sleep_for(kPause);
  }
  return {};
}

void Segment::lay_out(std::uint64_t slot_bytes, std::uint32_t slots) {
  slot_bytes_ = slot_bytes;
  slots_ = slots;
  table_ = AlignedBytes(whole_pages(slots * sizeof(SegmentEntry)));
  first_slot_ = kPageBytes + table_.size();
}

Status Segment::open_file(const std::string& name, int flags) {
  flags |= O_CLOEXEC | O_NOFOLLOW;
  int fd = ::openat(directory_, name.c_str(), flags | O_DIRECT, 0600);
  is_direct_ = fd >= 0;
  if (fd < 0 && errno == EINVAL) {
    // Some kernels make the file before they refuse O_DIRECT.
    if ((flags & O_EXCL) != 0) (void)::unlinkat(directory_, name.c_str(), 0);
    fd = ::openat(directory_, name.c_str(), flags, 0600);
  }
  if (fd < 0) {
    Error error = Error::from_errno(errno, "storage file %.120s: open", path_.c_str());
    if (out_of_descriptors(error)) error.code = Code::kNoSpace;
    return error;
  }
  fd_ = os::FileDescriptor(fd);
  return {};
}

Status Segment::identify() {
  struct stat status {};
  if (::fstat(fd(), &status) != 0)
    return Error::from_errno(errno, "storage file %.120s: stat", path_.c_str());
  device_ = status.st_dev;
  inode_ = status.st_ino;
  return {};
}

Status Segment::check() const {
  struct stat status {};
  const bool is_there = ::fstatat(directory_, name_.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
                        status.st_dev == device_ && status.st_ino == inode_;
  if (is_there) return {};
  return Error::make(Code::kNotFound,
                     "storage file %.160s: was removed or replaced while it was used; start this "
                     "process again",
                     path_.c_str());
}

void Segment::remove() const {
  if (check()) (void)::unlinkat(directory_, name_.c_str(), 0);
}

Status Segment::reopen() {
  CACHALOT_TRY(check());
  CACHALOT_TRY(open_file(name_, O_RDWR));
  const Status locked = lock(0);
  if (!locked) fd_.close();
  return locked;
}

void Segment::close() {
  // A forked child may share the open file, and with it the lock.
  (void)::flock(fd(), LOCK_UN);
  fd_.close();
}

Result<Segment> Segment::create(const Directory& directory, std::uint32_t number,
                                std::uint64_t slot_bytes, std::uint32_t slots) {
  Segment segment(directory, number);
  segment.lay_out(slot_bytes, slots);
  const std::string unfinished = segment.name_ + ".new";
  (void)::unlinkat(segment.directory_, unfinished.c_str(), 0);
  CACHALOT_TRY(segment.open_file(unfinished, O_RDWR | O_CREAT | O_EXCL));
  Status made = segment.lock(0);
  if (made) made = segment.write_all();
  if (made) made = segment.identify();
  // A link replaces nothing, as a rename would.
  if (made && ::linkat(segment.directory_, unfinished.c_str(), segment.directory_,
                       segment.name_.c_str(), 0) != 0) {
    made = Error::from_errno(errno, "storage file %.120s: give it its name", segment.path_.c_str());
  }
  (void)::unlinkat(segment.directory_, unfinished.c_str(), 0);
  if (!made) return made.error();
  return segment;
}

Status Segment::write_all() {
  const int os_error = posix_fallocate(fd(), 0, static_cast<off_t>(file_bytes()));
  if (os_error != 0) {
    return Error::from_errno(os_error, "storage file %.120s: reserve %" PRIu64 " bytes",
                             path_.c_str(), file_bytes());
  }
  AlignedBytes page(kPageBytes);
  SegmentHeader header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kSegmentVersion;
  header.slots = slots_;
  header.slot_bytes = slot_bytes_;
  header.crc = crc_of(&header, offsetof(SegmentHeader, crc));
  std::memcpy(page.data(), &header, sizeof header);
  CACHALOT_TRY(transfer(fd(), true, 0, page.data(), page.size(), path_));
  return transfer(fd(), true, kPageBytes, table_.data(), table_.size(), path_);
}

Result<Segment> Segment::open(const Directory& directory, std::uint32_t number) {
  constexpr std::uint64_t kPatienceNs = 30'000'000'000;
  Segment segment(directory, number);
  // Looked at before it is opened: opening alone can hang (a FIFO) or do something (a tape).
  struct stat status {};
  if (::fstatat(directory.fd(), segment.name_.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0)
    return Error::from_errno(errno, "storage file %.120s", segment.path_.c_str());
  if (!S_ISREG(status.st_mode)) {
    return Error::make(Code::kCorrupt, "storage file %.120s: is %s, expected a file",
                       segment.path_.c_str(),
                       S_ISLNK(status.st_mode)   ? "a link"
                       : S_ISDIR(status.st_mode) ? "a directory"
                                                 : "a device, a pipe or a socket");
  }
  CACHALOT_TRY(directory.check_owner(status, segment.name_));
  CACHALOT_TRY(segment.open_file(segment.name_, O_RDWR));
  CACHALOT_TRY(segment.lock(kPatienceNs));
  CACHALOT_TRY(segment.identify());
  CACHALOT_TRY(segment.read_all());
  return segment;
}

Status Segment::read_all() {
  struct stat info {};
  if (fstat(fd(), &info) != 0)
    return Error::from_errno(errno, "storage file %.120s: its size", path_.c_str());
  if (static_cast<std::uint64_t>(info.st_size) < kPageBytes) {
    return Error::make(Code::kCorrupt, "storage file %.120s: %lld bytes, expected a header of %llu",
                       path_.c_str(), static_cast<long long>(info.st_size),
                       static_cast<unsigned long long>(kPageBytes));
  }
  AlignedBytes page(kPageBytes);
  CACHALOT_TRY(transfer(fd(), false, 0, page.data(), page.size(), path_));
  SegmentHeader header;
  std::memcpy(&header, page.data(), sizeof header);
  const bool is_ours = std::memcmp(header.magic, kMagic, sizeof kMagic) == 0;
  if (is_ours && header.version != kSegmentVersion) {
    return Error::make(Code::kVersionMismatch, "storage file %.120s: version %u, expected %u",
                       path_.c_str(), header.version, kSegmentVersion);
  }
  if (!is_ours || header.crc != crc_of(&header, offsetof(SegmentHeader, crc)) ||
      header.slots == 0 || header.slots > kMostSlots || header.slot_bytes == 0 ||
      header.slot_bytes > whole_pages(kMostSlotBytes) || header.slot_bytes % kPageBytes != 0) {
    return Error::make(Code::kCorrupt, "storage file %.120s: its header is damaged", path_.c_str());
  }
  lay_out(header.slot_bytes, header.slots);
  if (static_cast<std::uint64_t>(info.st_size) < file_bytes()) {
    return Error::make(Code::kCorrupt,
                       "storage file %.120s: is cut off, expected %" PRIu64 " bytes", path_.c_str(),
                       file_bytes());
  }
  CACHALOT_TRY(transfer(fd(), false, kPageBytes, table_.data(), table_.size(), path_));
  for (std::uint32_t slot = 0; slot < slots_; ++slot) {
    const SegmentEntry& found = entry(slot);
    if (found.is_used == 0) continue;
    const bool is_sound = found.crc == crc_of(found) && found.is_used == 1 &&
                          check_head(found.head, found.head.key) &&
                          found.head.body_bytes() <= slot_bytes_;
    if (is_sound) continue;
    ++damaged_entries_;
    clear_entry(slot);
  }
  return {};
}

void Segment::set_entry(std::uint32_t slot, const ObjectHead& head, std::uint64_t sequence) {
  SegmentEntry entry{head, sequence, 1, 0};
  entry.crc = crc_of(entry);
  table()[slot] = entry;
}

void Segment::clear_entry(std::uint32_t slot) {
  table()[slot] = SegmentEntry{};
  table()[slot].head.magic = 0;
}

Segment::Pages Segment::copy_pages(std::span<const std::uint32_t> slots) const {
  constexpr std::uint32_t kEntriesPerPage = kPageBytes / sizeof(SegmentEntry);
  Pages pages;
  for (const std::uint32_t slot : slots) pages.numbers.push_back(slot / kEntriesPerPage);
  std::sort(pages.numbers.begin(), pages.numbers.end());
  pages.numbers.erase(std::unique(pages.numbers.begin(), pages.numbers.end()), pages.numbers.end());
  pages.bytes = AlignedBytes(pages.numbers.size() * kPageBytes);
  for (std::size_t i = 0; i < pages.numbers.size(); ++i) {
    std::memcpy(pages.bytes.data() + i * kPageBytes, table_.data() + pages.numbers[i] * kPageBytes,
                kPageBytes);
  }
  return pages;
}

Status Segment::write_pages(Pages& pages, IoBatch& io) const {
  std::vector<iovec> pieces(pages.numbers.size());
  std::vector<IoRequest> requests;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    pieces[i] = {pages.bytes.data() + i * kPageBytes, kPageBytes};
    requests.push_back({fd(), true, kPageBytes + pages.numbers[i] * kPageBytes, {&pieces[i], 1}});
  }
  io.run(requests);
  for (const IoRequest& request : requests) {
    if (request.os_error == 0) continue;
    return Error::from_errno(request.os_error, "storage file %.120s: write its table",
                             path_.c_str());
  }
  return {};
}

}  // namespace cachalot::storage
