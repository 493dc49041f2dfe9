// A directory that belongs to one storage: a mark, the segments, and an owner.
//
//   cachalot-storage      the mark: text, one line: "cachalot storage 1\n"; of other kinds "cachalot KIND 1\n"
//   segment-00000042      segments, by number
//
// Invariants
//   1. One process owns the directory: a lock on the mark, which ends with the process. A stopped process keeps it.
//   2. A directory that has other files and no mark is never taken.
//   3. What open() made is removed at the end if nothing was put into it, and it is still in its place.
//
// @threads one at a time
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "os/file_descriptor.h"
#include "os/file_lock.h"

namespace cachalot::storage {

class Directory {
 public:
  // Makes the directory if only its last part is missing.
  // @param  kind  "storage": of segments. A directory is used by one kind only
  // @errors kBusy: another process owns it; kVersionMismatch; kBadInput: its mark is damaged; kInvalidArgument: other
  //         files are in it, or it is of another kind; kPermission, kNotFound, kIo
  static Result<Directory> open(const std::string& path, const std::string& kind = "storage");

  Directory(Directory&&) noexcept = default;
  Directory& operator=(Directory&&) = delete;
  ~Directory();

  const std::string& path() const { return path_; }
  // Whether the directory and its mark are still in their place.
  // @errors kNotFound: they were removed or moved; others are not theirs
  Status check() const;
  std::string segment_path(std::uint32_t number) const;
  // The segments that are there, in order. Removes files that were never finished.
  Result<std::vector<std::uint32_t>> segments() const;

 private:
  // By open().
  struct Made {
    bool folder = false, mark = false;
  };
  Directory(std::string path, Made made, os::FileDescriptor mark, os::FileLock owner)
      : path_(std::move(path)), made_(made), mark_(std::move(mark)), owner_(std::move(owner)) {}

  std::string path_;
  Made made_;
  os::FileDescriptor mark_;
  os::FileLock owner_;
};

}  // namespace cachalot::storage
