// Records in a directory: one file a peer, for the processes of one machine.
//
//   DIR/NAME.peer   the record of a live peer; NAME is percent-encoded, so it is no path
//   DIR/.new.UID    a record that is being written
//   DIR/.lock       the directory's lock: byte 0 is held while a record is made or removed
//
// 1. The owner of a record holds a kernel lock on byte 0 of its file, from before it has its name until it is removed.
//    The kernel drops the lock when the process ends, whatever ends it. A record without a lock is that of a dead peer:
//    it is not found, and the next reader removes it.
// 2. A file has all of its record before it has its name.
// 3. A record is made, replaced and removed under the directory's lock, after another look at the file's own lock.
//    So a reader that saw a dead record does not remove the live one that has replaced it.
//
// The kernel lock also works between containers that share the directory, where process ids mean different things.
#pragma once

#include <memory>
#include <optional>

#include "base/rare_line.h"
#include "os/file_lock.h"
#include "transfer/registry/record_store.h"

namespace cachalot::transfer {

class FileStore final : public RecordStore {
 public:
  // @param is_shared  other users may own or write the directory, and read the records
  // @errors kPermission: the directory is not only this user's; kNotFound, kIo: it cannot be made or opened
  static Result<std::unique_ptr<RecordStore>> open(std::string path, bool is_shared);

  Timing timing() const override;
  Status hold(const PeerRecord& record, std::uint64_t deadline_ns) override;
  Status release(std::uint64_t deadline_ns) override;
  Result<PeerRecord> find(std::string_view name, std::uint64_t deadline_ns) override;
  Result<std::vector<PeerRecord>> list(std::string_view prefix, std::uint64_t deadline_ns) override;

 private:
  // The record that is held.
  struct Held {
    os::FileDescriptor file;
    os::FileLock lock;
    std::string name;  // of the file
  };
  struct Opened {
    os::FileDescriptor file;
    bool is_alive;
  };

  FileStore(std::string path, bool is_shared) : path_(std::move(path)), is_shared_(is_shared) {}

  Result<os::FileDescriptor> open_directory() const;
  Result<os::FileLock> lock_directory(int directory, std::uint64_t deadline_ns) const;
  static bool is_in_place(int directory, const Held& held);
  Result<Held> write_record(int directory, const PeerRecord& record) const;
  Result<Opened> open_record(int directory, const std::string& file) const;
  Result<PeerRecord> read_record(const Opened& opened, std::string_view name) const;
  bool remove_dead(int directory, const std::string& file) const;
  Result<PeerRecord> find_in(int directory, std::string_view name) const;
  std::string where() const { return "registry file:" + path_.substr(0, 80); }

  const std::string path_;
  const bool is_shared_;
  std::optional<Held> held_;
  base::RareLine bad_record_line_{4};
};

}  // namespace cachalot::transfer
