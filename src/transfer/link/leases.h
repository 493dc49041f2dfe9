// Leases of memory that peers of this machine read by themselves: a word a push, in memory that they map.
//
// A peer copies, then looks at the word. The owner changes the word before it uses the memory for anything else. So a
// peer either has the right bytes, or knows that it has not (as rule R6 of the pool). The owner waits for nothing: a
// peer that is stopped in mid-copy learns it when it goes on.
//
// A peer in the owner's own process loads from addresses that the owner may unmap next. There, and only there, it says
// that it reads, and the owner waits for its slice: a second word a push counts such readers.
//
// Memory order. The owner: word = ended, then a store fence, then its stores into the memory. The peer: its loads
// from the memory, then a load fence, then its load of the word. If a load saw a later store of the owner, the load of
// the word sees the end.
#pragma once

#include <cachalot/result.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "os/mapping.h"
#include "os/shared_file.h"

namespace cachalot::transfer {

struct LeaseId {
  std::uint32_t slot = 0;
  std::uint64_t term = 0;  // 0: none
};

// This engine's leases. @threads any
class Leases {
 public:
  // @errors kNoSpace, kIo
  static Result<std::unique_ptr<Leases>> create();

  // The descriptor that peers of this user open through /proc.
  int fd() const { return file_.fd(); }
  // @errors kBusy: all slots are taken
  Result<LeaseId> begin();
  // After it returns, the memory may be used for anything. Waits for readers of this process.
  void end(LeaseId lease);

 private:
  Leases(os::SharedFile file, os::Mapping mapping)
      : file_(std::move(file)), mapping_(std::move(mapping)) {}

  os::SharedFile file_;
  os::Mapping mapping_;
  std::mutex mutex_;
  std::vector<std::uint32_t> free_;
  std::uint64_t last_term_ = 0;
};

// A peer's leases, mapped read-only; those of this process also to count readers.
class PeerLeases {
 public:
  // @param is_own  of this process: readers are counted
  // @errors kNotFound, kPermission, kBadInput: not a file of leases
  static Result<PeerLeases> open(const std::string& path, bool is_own = false);
  PeerLeases() = default;

  // Of this process: until leave() the memory stays. @return false: the lease has ended. Of others: true, nothing is done
  bool enter(LeaseId lease) const;
  void leave(LeaseId lease) const;
  // Whether all loads of the memory before this call saw it under the lease.
  bool holds(LeaseId lease) const;
  bool is_open() const { return words_ != nullptr; }

 private:
  os::Mapping mapping_;
  const std::atomic<std::uint64_t>* words_ = nullptr;
  std::atomic<std::uint64_t>* readers_ = nullptr;  // of leases of this process
};

}  // namespace cachalot::transfer
