// Objects in files of a local directory, many objects a file (segment.h).
//
// A put writes the body into a free slot, then the entry that names it, and reports success after both. So an
// object that was reported as stored survives the death of the process byte for byte. With `sync` it also survives
// the loss of power, at the cost of a flush a batch.
//
// A put writes bodies directly (O_DIRECT) out of the caller's memory, as far as their pieces are aligned; the rest, and all
// that a get reads, goes through a buffer of this process.
//
// Invariants
//   1. A slot is free, being written, or named by exactly one key of the index.
//   2. A slot that a get reads is not written: it becomes free after the last reader.
//   3. Of two entries on disk with one key, the later one counts.
//   4. A segment that is read or written is open. Of the others only the last used stay open. A put or get of one that
//      cannot be opened for want of descriptors is kNoSpace.
//   5. The kernel writes only into memory that no other process has. After a kill io_uring completes what was in flight, when
//      the block of a pool that it was for may be another client's.
//
// @threads any
// @cost   memory: about 250 bytes an object, and a buffer of at most 64 MiB for each get in progress, which is kept
#pragma once

#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "storage/aligned_bytes.h"
#include "storage/backend.h"
#include "storage/file/directory.h"
#include "storage/file/io_batch.h"
#include "storage/file/segment.h"

namespace cachalot::storage {

struct FileOptions {
  std::string directory;
  // A segment has as many slots as fit into this, but 16 at least and 16,384 at most. The first ones are smaller: each
  // has as many slots as there are before it.
  std::uint64_t segment_bytes = std::uint64_t{256} << 20;
  std::uint32_t depth = 32;  // I/O requests in flight, of one call
  IoBatch::Kind io = IoBatch::Kind::kUring;
  // A segment is made only if so many bytes of the file system stay free.
  std::uint64_t min_free_bytes = 0;
  bool sync = false;                         // each put also survives the loss of power
  os::Owners owners = os::Owners::kTrusted;  // of the directory and its files
  // Segments that stay open though no call uses them; at most a quarter of the process's limit of descriptors.
  std::uint64_t most_open = 256;
};

class FileBackend final : public Backend {
 public:
  // Reads the tables of all segments. What stands in the place of one and is none, is damaged, of another version or of
  // another user, is left alone, and logged.
  // @errors as Directory::open; kBusy: requests of a killed process are in flight; kNoSpace: no descriptor is left
  // @cost   about 2 GB/s of tables, which are 0.2 % of blocks of 64 KiB
  static Result<std::unique_ptr<FileBackend>> open(const FileOptions& options);

  const BackendTraits& traits() const override { return traits_; }
  Status exists(std::span<const ObjectKey> keys, std::span<bool> is_there, std::uint64_t) override;
  Status get(std::span<Get> gets, std::uint64_t deadline_ns) override {
    return get_each(
        gets, [](Get&) {}, deadline_ns);
  }
  Status get_each(std::span<Get> gets, const Arrived& arrived, std::uint64_t) override;
  Status put(std::span<Put> puts, std::uint64_t) override;
  Status remove(std::span<const ObjectKey> keys, std::uint64_t) override;
  Status list(const Lister& each, std::uint64_t) override;

  // The directory, and each segment.
  Status check() override;

  // "io_uring", and whether bodies bypass the page cache: for reports.
  std::string describe_io() const;
  // No slot is lost, and the index and the tables agree. For tests, while no call is in progress.
  bool is_valid() const;

 private:
  struct Place {
    std::uint32_t segment;
    std::uint32_t slot;
  };
  struct SlotUse {
    std::uint16_t readers = 0;
    bool is_condemned = false;  // becomes free after its last reader
  };
  // A segment and what its slots are used for. Its entries: under `table_mutex`.
  struct Shelf {
    explicit Shelf(Segment opened) : segment(std::move(opened)), uses(segment.slots()) {}
    Segment segment;
    std::mutex table_mutex;
    std::vector<SlotUse> uses;
    std::uint32_t taken = 0;  // slots that are not free
    std::uint32_t pins = 0;   // reads and writes that need it open
    std::list<Shelf*>::iterator in_open;
  };
  struct Tools {
    std::unique_ptr<IoBatch> io;
    AlignedBytes buffer;
  };
  class Lease;
  struct Write;
  struct Read;

  FileBackend(FileOptions options, Directory directory);

  Status scan();
  Status pin(Shelf& shelf);  // under mutex_
  void unpin(Shelf& shelf);  // under mutex_
  bool close_coldest();      // under mutex_
  void remove_empty_shelf(std::uint64_t slot_bytes);
  void adopt(std::uint32_t number, Segment segment);
  Result<Place> take_slot(std::uint64_t slot_bytes);
  Status add_segment(std::uint64_t slot_bytes);
  Status make_segment(std::uint64_t slot_bytes, std::uint32_t slots);
  Status check_free(std::uint64_t more_bytes) const;
  void free_slot(const Place& place);  // under mutex_
  void condemn(const Place& place);    // under mutex_
  Status write_tables(std::span<Write> writes, IoBatch& io);
  void finish(std::span<Write> writes, const Status& tables);
  std::optional<Read> begin_read(Get& get);
  void end_read(const Place& place);
  void end_get(const Read& read, int os_error) const;

  const FileOptions options_;
  Directory directory_;
  BackendTraits traits_;
  mutable std::mutex mutex_;  // all below
  std::unordered_map<ObjectKey, Place> index_;
  std::map<std::uint32_t, std::unique_ptr<Shelf>> shelves_;  // by number of the segment
  std::list<Shelf*> open_;                                   // the last used first
  std::map<std::uint64_t, std::vector<Place>> free_;         // by slot_bytes
  std::vector<Tools> idle_tools_;
  std::uint64_t next_sequence_ = 1;
};

}  // namespace cachalot::storage
