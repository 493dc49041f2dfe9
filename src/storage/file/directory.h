// A directory that belongs to one storage: a mark, the segments, and an owner.
//
//   cachalot-storage      the mark: text, one line: "cachalot storage 1\n"; of other kinds "cachalot KIND 1\n"
//   segment-00000042      segments, by number
//
// Invariants
//   1. All of it belongs to this process's user or to root, and no others may write to it (os/owner.h), unless the
//      caller allows others. Its files are opened below the directory that was looked at, and never through a link.
//   2. One process owns the directory: a lock on the mark, which ends with the process. A stopped process keeps it.
//      A directory that processes use together (Use) has no owner.
//   3. A directory that has other files and no mark is never taken.
//   4. What open() made is removed at the end if nothing was put into it, and it is still in its place.
//
// @threads one at a time
#pragma once

#include <cachalot/result.h>
#include <sys/stat.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "os/file_descriptor.h"
#include "os/file_lock.h"
#include "os/shared_file.h"

namespace cachalot::storage {

inline constexpr std::string_view kUnfinished =
    ".new";  // the end of the name of a file that is being written

class Directory {
 public:
  enum class Use {
    kAlone,     // makes the directory if only its last part is missing, and locks it
    kTogether,  // it is there; no lock
    kAgain,     // as kTogether, and so is the mark
    kRestored,  // as kTogether, and it is known to be the same: the mark is made whatever else is in it
  };
  // @param  kind  "storage": of segments. A directory is used by one kind only
  // @errors kBusy: another process owns it; kVersionMismatch; kBadInput: its mark is damaged, or no file;
  //         kInvalidArgument: other files are in it, or it is of another kind; kPermission, also of an owner that is
  //         not trusted; kNotFound, kIo
  static Result<Directory> open(const std::string& path, os::Owners owners,
                                const std::string& kind = "storage", Use use = Use::kAlone);

  Directory(Directory&&) noexcept = default;
  Directory& operator=(Directory&&) = delete;
  ~Directory();

  const std::string& path() const { return path_; }
  int fd() const { return folder_.get(); }
  // Whether a file or directory in it may be used. @errors kPermission: its owner is not trusted
  Status check_owner(const struct stat& status, const std::string& name) const;
  // Of files and folders that are made in it: of this user only, unless it is used together and its group or others may
  // write to it.
  mode_t file_mode() const { return 0600 | (shared_bits_ & 0044); }
  mode_t folder_mode() const { return 0700 | shared_bits_; }
  bool has_shared_modes() const { return shared_bits_ != 0; }
  // Whether this is what the path leads to now.
  bool is_at_path() const;
  // Whether the directory and its mark are still in their place.
  // @errors kNotFound: they were removed or moved; others are not theirs
  Status check() const;
  static std::string segment_name(std::uint32_t number);
  // The numbers that segments have, in order, whatever stands under the names. Removes files that were never finished.
  Result<std::vector<std::uint32_t>> segments() const;
  // What is in it, or in a folder of it that is no link. @errors kNotFound
  Result<std::vector<std::string>> names(const std::string& folder = ".") const;

 private:
  // By open().
  struct Made {
    bool folder = false, mark = false;
  };
  Directory(std::string path, os::Owners owners, os::FileDescriptor folder)
      : path_(std::move(path)), owners_(owners), folder_(std::move(folder)) {}
  Status take_mark(const std::string& kind, Use use);
  Status make_mark(const std::string& kind, Use use);
  Status check_mark(const std::string& kind) const;
  Status lock();

  std::string path_;
  os::Owners owners_;
  Made made_;
  mode_t shared_bits_ = 0;
  os::FileDescriptor folder_, mark_;
  std::optional<os::FileLock> lock_;
};

}  // namespace cachalot::storage
