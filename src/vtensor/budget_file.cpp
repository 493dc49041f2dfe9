#include "vtensor/budget_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <string_view>

#include "os/reserve.h"

namespace cachalot::vtensor {
namespace {

constexpr std::uint64_t kMagic = 0x7465676475624b43;  // "CKbudget"
constexpr std::uint32_t kVersion = 1;
constexpr std::uint32_t kPatienceMs = 5000;
constexpr std::string_view kShm = "shm:";

std::uint64_t bytes_of(std::uint64_t credits) {
  return sizeof(BudgetHeader) + credits;
}

// The same fields as BudgetHeader, where they are written before any process maps them.
struct Beginning {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t slot_count;
  std::uint64_t credits;
  std::uint64_t chunk_bytes;
};

// Made without a name, and named when it is complete. That another process was first is no error.
Status make(const std::string& path, std::uint64_t credits, std::uint64_t chunk_bytes) {
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const os::FileDescriptor fd(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0660));
  if (!fd) return Error::from_errno(errno, "%.120s: making a file in it", folder.c_str());
  CACHALOT_TRY(os::reserve_space(fd.get(), path.c_str(), bytes_of(credits), false));
  const Beginning beginning{.magic = kMagic,
                            .version = kVersion,
                            .slot_count = kBudgetSlots,
                            .credits = credits,
                            .chunk_bytes = chunk_bytes};
  if (pwrite(fd.get(), &beginning, sizeof beginning, 0) != sizeof beginning) {
    return Error::from_errno(errno, "%.120s: writing", path.c_str());
  }
  const std::string name = "/proc/self/fd/" + std::to_string(fd.get());
  if (linkat(AT_FDCWD, name.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0) return {};
  if (errno == EEXIST) return {};
  return Error::from_errno(errno, "%.120s: naming the file", path.c_str());
}

}  // namespace

Result<BudgetFile> BudgetFile::open_existing(const std::string& path) {
  CACHALOT_TRY_ASSIGN(os::SharedFile file, os::SharedFile::open(path));
  if (file.bytes() < sizeof(BudgetHeader)) {
    return Error::make(Code::kCorrupt, "%.120s: %" PRIu64 " bytes; expected a budget, %zu or more",
                       path.c_str(), file.bytes(), sizeof(BudgetHeader));
  }
  CACHALOT_TRY_ASSIGN(os::Mapping mapping, file.map({.huge_pages = false}));
  BudgetFile found(std::move(file), std::move(mapping));
  CACHALOT_TRY(found.check());
  return found;
}

Result<BudgetFile> BudgetFile::open(const std::string& path, std::uint64_t credits,
                                    std::uint64_t chunk_bytes) {
  if (credits > kMostCredits) {
    return Error::make(Code::kInvalidArgument, "%.120s: %" PRIu64 " chunks, expected at most 2^30",
                       path.c_str(), credits);
  }
  Result<BudgetFile> file = open_existing(path);
  if (!file && file.error().code == Code::kNotFound && credits != 0) {
    const bool is_name = path.starts_with(kShm);
    CACHALOT_TRY(
        make(is_name ? "/dev/shm/" + path.substr(kShm.size()) : path, credits, chunk_bytes));
    file = open_existing(path);
  }
  return file;
}

Status BudgetFile::check() const {
  const BudgetHeader& found = header();
  if (found.magic != kMagic) {
    return Error::make(Code::kCorrupt, "%.120s: no budget begins like this", path().c_str());
  }
  if (found.version != kVersion) {
    return Error::make(Code::kVersionMismatch, "%.120s: version %" PRIu32 ", expected %" PRIu32,
                       path().c_str(), found.version, kVersion);
  }
  if (found.slot_count != kBudgetSlots || credits_ == 0 || credits_ > kMostCredits ||
      bytes_of(credits_) != file_.bytes()) {
    return Error::make(Code::kCorrupt, "%.120s: %" PRIu64 " chunks in %" PRIu64 " bytes",
                       path().c_str(), credits_, file_.bytes());
  }
  return {};
}

Status BudgetFile::check_sizes(std::uint64_t credits, std::uint64_t chunk_bytes) const {
  if ((credits == 0 || credits == credits_) && chunk_bytes == chunk_bytes_) return {};
  return Error::make(Code::kInvalidArgument,
                     "%.120s: a budget of %" PRIu64 " chunks of %" PRIu64
                     " bytes, expected %" PRIu64 " of %" PRIu64,
                     path().c_str(), credits_, chunk_bytes_, credits, chunk_bytes);
}

Result<os::FileLock> BudgetFile::enter() const {
  // A child that is forked meanwhile would hold the door for as long as it lives.
  return os::FileLock::lock_within(file_.fd(), kDoorLock, kPatienceMs, os::Forks::kLeave);
}

Result<os::FileLock> BudgetFile::lock_slot(std::uint32_t slot) const {
  return os::FileLock::try_lock(file_.fd(), kSlotLock + slot);
}

bool BudgetFile::is_linked() const {
  struct stat status {};
  return fstat(file_.fd(), &status) == 0 && status.st_nlink != 0;
}

}  // namespace cachalot::vtensor
