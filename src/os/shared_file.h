// A file that several processes map: what a device of a pool is made of.
//
//   path               | kind      | create                            | remove
//   memfd:NAME         | kMemfd    | anonymous, sealed against resize  | nothing to do
//   shm:NAME           | kFile     | /dev/shm/NAME                     | unlink
//   a path             | kFile     | file on any file system           | unlink
//   /dev/daxX.Y        | kDevdax   | taken as it is, never resized     | nothing to do
//   …@OFFSET+LENGTH    | as before | a part of a device, or of a file that is there, likewise
//
// OFFSET and LENGTH are sizes as "2GiB", multiples of 2 MiB and of the device's alignment. All byte numbers of this class
// count from OFFSET. A path that ends so and exists by its whole name is that file.
//
// 1. A file made by create() has all its space: touching it is never SIGBUS, unless another process
//    truncates it. (A memfd cannot be truncated.)
// 2. create() that fails leaves no file behind.
// 3. bytes() was true at create() or open(); require_bytes() looks again.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "os/file_descriptor.h"
#include "os/mapping.h"

namespace cachalot::os {

enum class FileKind { kMemfd, kFile, kDevdax };
enum class Access { kReadWrite, kReadOnly };

// Whose files are opened. kTrusted: those of this process's user and of root that no others may write
// to (the group may: that is how a pool is shared). Looked at is the file that is open, so it does not
// matter what a name, or a symbolic link in a folder that every user may write to, leads to by then.
enum class Owners { kAny, kTrusted };

// A part of a file or device, as a path names it.
struct FilePart {
  std::string path;  // of the whole
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};
// Nothing: the path names a whole file. @errors kInvalidArgument: a number that no part can have
Result<std::optional<FilePart>> parse_file_part(const std::string& path);

struct CreateOptions {
  unsigned mode = 0660;    // permission bits, reduced by the umask
  bool huge_pages = true;  // tmpfs, memfd: transparent huge pages, as far as there are any
  // Called of a new file, as soon as it has its name and before it has any bytes.
  std::function<void(int fd)> named = {};
};

class SharedFile {
 public:
  // Makes a file of `bytes` zero bytes and reserves all of them. A devdax device is opened instead
  // and must have at least `bytes`; its old content stays.
  // @errors kInvalidArgument: 0 or more bytes than a file can have, a name that cannot be;
  //         kBusy: the file exists; kNoSpace: with the bytes wanted and available; kPermission
  // @cost   all of it is allocated and zeroed: about 0.06 s per GiB of tmpfs in huge pages, 0.25 s
  //         in small ones; more where the machine itself has to fetch the memory
  static Result<SharedFile> create(const std::string& path, std::uint64_t bytes,
                                   const CreateOptions& options = {});

  // Opens what is there: a regular file, a devdax device, or a memfd by its path().
  // @errors kNotFound; kPermission, also of an owner that is not trusted; kBadInput: empty;
  //         kInvalidArgument: a directory, a socket, …
  static Result<SharedFile> open(const std::string& path, Access access = Access::kReadWrite,
                                 Owners owners = Owners::kAny);

  // open(), for reading only, and of an empty file too: for looking at what is being made.
  static Result<SharedFile> peek(const std::string& path);

  // Maps the first `bytes` bytes (0: all) shared.
  // @errors kInvalidArgument: more than bytes(); kNoSpace: no address space, or `populate` met a
  //         page that cannot be had
  // @cost   with huge_pages, 1 to 2 ms for each 2 MiB that is not in a huge page yet
  Result<Mapping> map(const MapOptions& options = {}, std::uint64_t bytes = 0) const;

  // Maps `bytes` bytes from `from` on at addresses that a Mapping keeps; see os::map_at().
  // @errors kInvalidArgument: bytes that the file does not have, or no whole pages; as map()
  Status map_at(std::byte* where, std::uint64_t from, std::uint64_t bytes,
                const MapOptions& options) const;

  // Looks at the size again. @errors kCorrupt: there are fewer bytes now
  Status require_bytes(std::uint64_t bytes) const;

  // Removes the name (memfd, devdax: nothing). Mappings and descriptors live on. A name that
  // belongs to another file by now is left alone. @errors kPermission, kIo
  Status remove() const;

  // By which any process of this user can open it while it exists; /proc/PID/fd/N for a memfd.
  const std::string& path() const { return path_; }
  FileKind kind() const { return kind_; }
  std::uint64_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }
  // Where its first byte lies in the file or device.
  std::uint64_t offset() const { return offset_; }
  // The file's own name, without a part.
  const std::string& file_path() const { return file_path_; }
  bool is_part() const { return is_part_; }
  // Both have a byte in common.
  bool overlaps(const SharedFile& other) const;

 private:
  SharedFile(FileDescriptor fd, std::string path, FileKind kind, Access access)
      : fd_(std::move(fd)),
        path_(std::move(path)),
        file_path_(path_),
        kind_(kind),
        access_(access) {}
  static Result<SharedFile> open_named(const std::string& path, Access access);
  // What create() does after it made an empty file.
  Status fill(std::uint64_t bytes, const CreateOptions& options);
  // Finds out sizes and kind of what is open.
  Status inspect();
  Status check_owner() const;
  Status narrow(const FilePart& part);
  Result<std::uint64_t> current_bytes() const;

  FileDescriptor fd_;
  std::string path_;
  std::string file_path_;
  bool is_part_ = false;
  std::uint64_t offset_ = 0;
  FileKind kind_;
  Access access_;
  std::uint64_t bytes_ = 0;
  std::uint64_t page_bytes_ = kSmallPageBytes;  // mappings are whole pages of this size
  PageMode pages_ = PageMode::kSmall;
};

}  // namespace cachalot::os
