// The files of a directory that several hosts use: one for each object, written under another name and renamed.
//
//   cachalot-storage               the mark: "cachalot shared 1\n"
//   3f2/0a17…d3f2                  an object: the 64 digits of its key; in the folder with the last three of them
//   3f2/0a17…d3f2.9c0e…41.new      one that is being written: 16 random digits
//
// A rename replaces a file as a whole, so a reader finds all of an object or nothing. There is no owner and no lock: two
// hosts that write an object at the same time write the same. A file with these names that is a link, a device or another
// user's (Directory::check_owner) is no object. Other names are left alone.
//
// @threads any  @cost each call waits for the file system, however long that takes
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "storage/file/directory.h"
#include "storage/object.h"

namespace cachalot::storage {

inline constexpr std::uint32_t kObjectFolders = 4096;

// Bytes that a job owns.
struct Value {
  std::shared_ptr<std::byte[]> bytes = {};
  std::uint64_t size = 0;

  static Value unset(std::uint64_t size) {
    return {std::make_shared_for_overwrite<std::byte[]>(size), size};
  }
  Bytes view() const { return {bytes.get(), size}; }
};

// @errors kNoSpace, also of descriptors; kPermission; kIo …
Status write_object(const Directory& root, const ObjectKey& key, Bytes value);

// All of it, or only a head if it has more than `most_bytes`. What is read, and was written an hour ago or more, gets the
// present time: the order of eviction.
// @errors kNotFound; kNoSpace: of descriptors; kIo …
Result<Value> read_object(const Directory& root, const ObjectKey& key, std::uint64_t most_bytes);

// Nothing: it is not there, or has not the size that its head says.
// @param is_use  it gets the present time, as above
Result<std::optional<ObjectHead>> read_head(const Directory& root, const ObjectKey& key,
                                            bool is_use);

// That it is not there is no error.
Status remove_object(const Directory& root, const ObjectKey& key);

// A file of a folder.
struct StoredFile {
  std::string name;
  bool is_object = false;  // else it was to be one
  // Of an unfinished file, and of an object if that was asked for; 0: it is gone, or no file.
  std::uint64_t bytes = 0;
  std::int64_t changed_ns = 0;  // by the clock of the file system
};
std::string folder_name(std::uint32_t number);
// @errors kNotFound: nothing was put there yet
Result<std::vector<StoredFile>> read_folder(const Directory& root, std::uint32_t number,
                                            bool looks_at_objects);
Status remove_file(const Directory& root, std::uint32_t folder, const std::string& name);

}  // namespace cachalot::storage
