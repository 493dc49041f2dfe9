// One file of objects: a header, a table of entries, and as many slots of equal size.
//
//      0  header                      4096
//   4096  table: 128 bytes a slot     whole pages
//      …  slots                       slot_bytes each
//
// Entry: the object's head (112), sequence (8), state (4: 0 free, 1 used), CRC-32C (4) of the entry's 128 bytes with
// these four zero.
//
// A segment may be closed while no slot is read or written: a storage has more of them than a process descriptors.
//
// Invariants
//   1. A body is complete in its slot before the entry that names it is written.
//   2. The file has all its space from its creation on: a write never fails for lack of it.
//   3. An entry on disk that names a slot with another body is possible after a crash. The seal tells.
//   4. No link is followed, and no file is replaced or removed that is not this one.
//
// @threads one at a time, but slots may be read and written meanwhile, and write_pages() may run
#pragma once

#include <cachalot/result.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "os/file_descriptor.h"
#include "storage/aligned_bytes.h"
#include "storage/file/directory.h"
#include "storage/file/io_batch.h"
#include "storage/object.h"

namespace cachalot::storage {

inline constexpr std::uint64_t kPageBytes = 4096;
inline constexpr std::uint32_t kSegmentVersion = 1;

constexpr std::uint64_t whole_pages(std::uint64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

struct SegmentEntry {
  ObjectHead head;
  std::uint64_t sequence = 0;  // grows with each put of a directory
  std::uint32_t is_used = 0;
  std::uint32_t crc = 0;
};
static_assert(sizeof(SegmentEntry) == 128);

// Whether an error says that this process, or the machine, has no descriptor left.
bool out_of_descriptors(const Error& error);

class Segment {
 public:
  // Makes the file under a temporary name, and gives it its name when it is complete. It is open.
  // @param directory  outlives the segment
  // @errors kNoSpace, also of descriptors (out_of_descriptors()); kBusy: something has the name; kPermission, kIo
  static Result<Segment> create(const Directory& directory, std::uint32_t number,
                                std::uint64_t slot_bytes, std::uint32_t slots);
  // Reads header and table. Entries that do not check are free. Waits for I/O of a killed process that is in flight.
  // @errors kCorrupt: the header, or no file; kVersionMismatch; kPermission, also of an owner that is not trusted;
  //         kBusy: it was in flight for half a minute; kNoSpace: out_of_descriptors(); kIo
  static Result<Segment> open(const Directory& directory, std::uint32_t number);

  // Opens it again after a close(). @errors as open(), at once; kNotFound: another file has its name, or none
  Status reopen();
  void close();
  bool is_open() const { return static_cast<bool>(fd_); }
  // Whether the file has still its name. @errors kNotFound
  Status check() const;
  // Removes the file, if it has still its name.
  void remove() const;

  const std::string& path() const { return path_; }
  int fd() const { return fd_.get(); }
  bool is_direct() const { return is_direct_; }
  std::uint64_t slot_bytes() const { return slot_bytes_; }
  std::uint32_t slots() const { return slots_; }
  std::uint64_t slot_offset(std::uint32_t slot) const { return first_slot_ + slot * slot_bytes_; }
  std::uint64_t file_bytes() const { return slot_offset(slots_); }
  // Table entries that were used and did not check.
  std::uint32_t damaged_entries() const { return damaged_entries_; }

  const SegmentEntry& entry(std::uint32_t slot) const { return table()[slot]; }
  // Changes the table in memory. The disk has it after copy_pages() and write_pages().
  void set_entry(std::uint32_t slot, const ObjectHead& head, std::uint64_t sequence);
  void clear_entry(std::uint32_t slot);
  struct Pages {
    std::vector<std::uint32_t> numbers;
    AlignedBytes bytes;
  };
  // The pages of the table that hold these entries, as they are now.
  Pages copy_pages(std::span<const std::uint32_t> slots) const;
  // Copies that were taken later are written later.
  Status write_pages(Pages& pages, IoBatch& io) const;

 private:
  Segment(const Directory& directory, std::uint32_t number);
  void lay_out(std::uint64_t slot_bytes, std::uint32_t slots);
  Status open_file(const std::string& name, int flags);
  Status identify();
  Status lock(std::uint64_t patience_ns);
  Status write_all();
  Status read_all();
  SegmentEntry* table() { return reinterpret_cast<SegmentEntry*>(table_.data()); }
  const SegmentEntry* table() const { return reinterpret_cast<const SegmentEntry*>(table_.data()); }

  int directory_;     // its descriptor
  std::string name_;  // in it
  std::string path_;  // for messages
  os::FileDescriptor fd_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  bool is_direct_ = false;
  std::uint64_t slot_bytes_ = 0;
  std::uint32_t slots_ = 0;
  std::uint64_t first_slot_ = 0;
  std::uint32_t damaged_entries_ = 0;
  AlignedBytes table_;
};

}  // namespace cachalot::storage
