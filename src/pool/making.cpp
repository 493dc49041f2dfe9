#include "pool/making.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>

#include "memory/line.h"
#include "os/shared_file.h"
#include "pool/format/lock_bytes.h"
#include "pool/mapped_pool.h"

namespace cachalot::pool {
namespace {

// Whether its first bytes are zeros; also if there are none.
template <std::size_t kBytes>
bool begins_blank(const os::SharedFile& file) {
  std::array<unsigned char, kBytes> first{};
  const ssize_t bytes =
      pread(file.fd(), first.data(), first.size(), static_cast<off_t>(file.offset()));
  return bytes >= 0 &&
         std::all_of(first.begin(), first.end(), [](unsigned char c) { return c == 0; });
}

// Far more than a header has.
constexpr std::size_t kHeadBytes = 64 << 10;

bool can_be_left_of_pool(const os::SharedFile& file, std::uint64_t device_bytes) {
  return file.kind() == os::FileKind::kFile && !file.is_part() &&
         (file.bytes() == 0 || file.bytes() == device_bytes) && begins_blank<kHeadBytes>(file);
}

}  // namespace

Result<os::FileLock> lock_as_maker(int fd) {
  return os::FileLock::try_lock(fd, kMakerLock, os::Forks::kLeave);
}

bool has_maker(const os::SharedFile& file) {
  const auto holder = find_lock_holder(file, kMakerLock);
  return holder && holder->has_value();
}

bool is_taken_as_it_is(const std::string& path) {
  const Result<os::SharedFile> file = os::SharedFile::peek(path);
  return file && (file->kind() == os::FileKind::kDevdax || file->is_part());
}

Making look_for_maker(const std::string& path) {
  const Result<os::SharedFile> file = os::SharedFile::peek(path);
  if (!file) {
    return file.error().code == Code::kNotFound ? Making::kAbsent : Making::kNone;
  }
  // First for the lock: a maker writes the header before it lets go of it.
  const bool is_locked = has_maker(*file);
  if (!begins_blank<memory::kLineBytes>(*file)) return Making::kNone;
  return is_locked ? Making::kUnderWay : Making::kAbandoned;
}

Status remove_abandoned(const std::vector<std::string>& paths, Geometry geometry) {
  if (geometry.device_bytes == 0) {
    CACHALOT_TRY_ASSIGN(geometry.device_bytes, device_bytes_needed(geometry));
  }
  std::vector<os::SharedFile> left;
  std::optional<os::FileLock>
      lock;  // no other process takes the first file for abandoned meanwhile
  for (const std::string& path : device_paths(paths, geometry.devices)) {
    Result<os::SharedFile> file = os::SharedFile::peek(path);
    if (!file && file.error().code == Code::kNotFound && lock) continue;
    if (!file) return file.error();
    if (!lock) {
      CACHALOT_TRY_ASSIGN(os::FileLock first, lock_as_maker(file->fd()));
      lock.emplace(std::move(first));
    }
    if (!can_be_left_of_pool(*file, geometry.device_bytes)) {
      return Error::make(Code::kNotAPool,
                         "%.120s: has %llu bytes, expected %llu or none, the first ones zero: not "
                         "what is left of a pool",
                         path.c_str(), static_cast<unsigned long long>(file->bytes()),
                         static_cast<unsigned long long>(geometry.device_bytes));
    }
    left.push_back(*std::move(file));
  }
  // The pool that was there may have had more devices.
  const std::string next = paths[0] + "." + std::to_string(geometry.devices);
  if (paths.size() == 1 && os::SharedFile::peek(next)) {
    return Error::make(Code::kNotAPool, "%.120s: is there, expected %u devices", next.c_str(),
                       geometry.devices);
  }
  for (const os::SharedFile& file : left) CACHALOT_TRY(file.remove());
  return {};
}

}  // namespace cachalot::pool
