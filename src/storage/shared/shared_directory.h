// Objects in a directory that several hosts use at the same time: of NFS, or another file system that all of them mount.
//
// One file an object (object_files.h), no owner, no lock, and no list of what is there: a store asks for what it wants to
// know. Files of the system are used in threads of its own (workers.h), because a server that is gone lets calls hang.
//
// Invariants
//   1. Nothing is written below a path that leads elsewhere: the directory is held open, and has a mark.
//   2. After the mark or the directory was lost, another one at the path is used as soon as it has the mark; and the one that
//      is open, if it was emptied.
//
// @threads any
// @cost   a put and a get copy once; 16 threads
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "os/shared_file.h"
#include "storage/backend.h"
#include "storage/file/directory.h"
#include "storage/shared/workers.h"

namespace cachalot::storage {

struct SharedDirectoryOptions {
  std::string directory;
  os::Owners owners = os::Owners::kTrusted;
  std::uint64_t limit_bytes = 0;              // 0: none
  std::uint64_t patience_ns = 5'000'000'000;  // for a file system that does not answer
};

class SharedDirectory final : public Backend {
 public:
  // @errors as Directory::open. A file system that does not answer is none: the storage is out of use until it does
  static Result<std::unique_ptr<Backend>> open(const SharedDirectoryOptions& options);

  const BackendTraits& traits() const override { return traits_; }
  Status exists(std::span<const ObjectKey> keys, std::span<bool> is_there,
                std::uint64_t deadline_ns) override;
  Status heads(std::span<const ObjectKey> keys, std::span<std::optional<ObjectHead>> heads,
               std::uint64_t deadline_ns) override;
  Status get(std::span<Get> gets, std::uint64_t deadline_ns) override {
    return get_each(
        gets, [](Get&) {}, deadline_ns);
  }
  Status get_each(std::span<Get> gets, const Arrived& arrived, std::uint64_t deadline_ns) override;
  Status put(std::span<Put> puts, std::uint64_t deadline_ns) override;
  Status remove(std::span<const ObjectKey> keys, std::uint64_t deadline_ns) override;
  // Reads all folders. A store does not: is_listed.
  Status list(const Lister& each, std::uint64_t deadline_ns) override;
  Result<Space> space(std::uint64_t) override;
  // Also goes on with the sweep. Answers what was found the last time.
  Status check() override;
  std::shared_ptr<CancelSignal> cancel_signal() const override { return workers_.cancel_signal(); }

 private:
  struct Place;

  explicit SharedDirectory(const SharedDirectoryOptions& options);
  template <class T>
  Status ask_each(std::span<const ObjectKey> keys,
                  Result<T> (*ask)(const Directory& root, const ObjectKey& key),
                  const std::function<void(std::size_t i, const T& answer)>& take,
                  std::uint64_t deadline_ns);
  Status put_each(std::span<Put* const> puts, std::uint64_t deadline_ns);
  void make_room(std::span<const Put> puts, std::uint64_t bytes, std::uint64_t deadline_ns);
  void begin_upkeep();

  const BackendTraits traits_;
  const std::shared_ptr<Place> place_;  // also of jobs that outlive the backend
  // Put calls for which the file system had no room, in a row. Relaxed: they order nothing.
  std::atomic<std::uint32_t> full_puts_{0};
  std::atomic<std::uint64_t> next_room_ns_{0};  // when room is made again
  Workers workers_;
};

}  // namespace cachalot::storage
