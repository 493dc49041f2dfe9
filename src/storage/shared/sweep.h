// What keeps a directory that several hosts use within its limit, and clean, without an agreement between them.
//
// A sweep visits one folder after the other. A folder has a 4096th of the objects, by digits of their hashes, so the last
// folders are a sample of all: of the bytes, and of the ages. If all objects have more bytes than the limit, the sample says
// how old the oldest are that have room, and a visit removes what is older. Two hosts that do so at the same time find the
// same, and ages are compared with each other, not with a clock of this host.
//
// Files that were never finished are removed an hour after their last change, by this host's clock. A clock that is wrong
// does no harm: the writer's rename then fails, its put is one that has failed, and no reader opens an unfinished file.
//
// @threads one at a time; space() and free_some(): any
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <random>
#include <string>
#include <unordered_set>
#include <vector>

#include "storage/backend.h"
#include "storage/shared/object_files.h"

namespace cachalot::storage {

class Sweep {
 public:
  // @param limit  bytes; 0: none
  explicit Sweep(std::uint64_t limit) : limit_(limit) {}

  // Visits the next folder.
  void visit(const Directory& root);
  // How many visits are due after so many bytes were put: sixteen of each folder while the limit is put once.
  double visits_after(std::uint64_t bytes) const;
  // No limit as long as too little was seen.
  Space space() const;

  // Removes the oldest of some folders, until they had `bytes`: for a file system that is full.
  // @param kept  names that stay
  static void free_some(const Directory& root, std::uint64_t bytes,
                        const std::unordered_set<std::string>& kept, std::uint64_t deadline_ns);

 private:
  struct Object {
    std::int64_t changed_ns;
    std::uint64_t bytes;
  };
  std::int64_t oldest_with_room() const;
  double share() const;  // of all folders that the sample has
  void keep(std::vector<Object> folder);

  const std::uint64_t limit_;
  std::uint32_t next_ = std::random_device{}() % kObjectFolders;
  std::deque<std::vector<Object>> sample_;  // the folders of the last visits
  std::size_t objects_ = 0;                 // of the sample
  std::uint64_t bytes_ = 0;                 // of the sample
  std::atomic<std::uint64_t> used_{
      0};  // of all; 0: not known yet. Relaxed: a figure that orders nothing
};

}  // namespace cachalot::storage
