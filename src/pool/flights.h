// Claims on the computation of blocks: so that of several processes that need a new one, one computes it and the
// others take it from the pool when it comes.
//
// A flight is a claim on a block's hash, held by a lock on a byte of device 0's file that no block lies
// at; it ends with its process, whatever ended that, and leaves nothing in the pool. It is advice: a
// process that does not ask, on another machine for example, computes the block too, and the keeper takes
// one of both. Two hashes may share a byte (2^48 of them): then a process waits in vain, up to its limit.
//
// There is no deadlock if no process waits while it holds a claim: claim what comes next as far as it
// is free, compute and release that, and only then look for more.
//
// @threads  one at a time
#pragma once

#include <cachalot/result.h>

#include <deque>
#include <span>

#include "block_hash/block_hash.h"
#include "os/file_lock.h"
#include "pool/pool.h"

namespace cachalot::pool {

class Flights {
 public:
  static constexpr std::size_t kMostClaims =
      1024;  // at a time: the kernel goes through them one by one

  // @errors kPermission: the pool's file cannot be opened for writing
  static Result<Flights> open(const Pool& pool);

  // Claims the leading blocks that no other process has claimed. Of these the first release() is the first.
  // @return how many, at most kMostClaims are held; 0: another process computes the first one. Where the
  //         file system has no locks: all of them.
  std::size_t claim(std::span<const BlockHash> hashes);
  // Gives up the oldest claims. A block should be published, or never be, by then.
  void release(std::size_t claims = 1);
  void release_all() { release(claims_.size()); }
  std::size_t claims() const { return claims_.size(); }

 private:
  explicit Flights(os::FileLockSet locks) : locks_(std::move(locks)) {}

  os::FileLockSet locks_;
  std::deque<std::uint64_t> claims_;  // offsets, oldest first
};

}  // namespace cachalot::pool
