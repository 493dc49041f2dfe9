// The memory of a peer on this machine, which the receiver of a push reads by itself: one copy from the peer's pages
// into its own, no frame carries the bytes.
//
//   same process        plain loads, for which the owner waits (leases.h)
//   registered memory   a file that both map: plain loads
//   other memory        process_vm_readv: the kernel copies
//
// A peer's addresses are only read, and only by the ways above: a wrong one is an error of this push, never a fault.
// (Registered memory is mapped: loads outside of the mapping are refused.)
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <vector>

#include "os/mapping.h"
#include "transfer/link/leases.h"
#include "transfer/strided/byte_stream.h"

namespace cachalot::transfer {

// Memory that this engine has in a shared file, as peers of this machine hear of it.
struct SharedSegment {
  std::uint64_t at = 0, bytes = 0;  // in the address space of its owner
  std::uint64_t fd = 0, file_offset = 0;
};

// What a peer says of itself.
struct PeerMemoryOffer {
  std::uint64_t lease_fd = 0;
  std::uint64_t probe_at = 0, probe = 0;  // an address of the peer, and the word that is there
  std::vector<SharedSegment> segments;
};

class PeerMemory {
 public:
  // @param process  of the peer, as the kernel says it (Link::peer_process())
  // @errors kUnsupported: this process may not read the other one; kPermission, kNotFound
  static Result<PeerMemory> open(std::uint32_t process, const PeerMemoryOffer& offer);

  // Around copies. @return false: the lease has ended
  bool enter(LeaseId lease) const { return leases_.enter(lease); }
  void leave(LeaseId lease) const { leases_.leave(lease); }
  // Copies [offset, offset + bytes) of a stream of the peer into one of this process.
  // @errors kIo: an address that cannot be read
  Status copy(const ByteStream& from, const ByteStream& to, std::uint64_t offset,
              std::uint64_t bytes) const;
  bool holds(LeaseId lease) const { return leases_.holds(lease); }

 private:
  struct Mapped {
    SharedSegment segment;
    os::Mapping mapping;
  };
  PeerMemory() = default;
  const std::byte* mapped(const Piece& piece) const;

  std::uint32_t process_ = 0;
  bool is_own_ = false, can_copy_ = false;
  PeerLeases leases_;
  std::vector<Mapped> mapped_;
};

}  // namespace cachalot::transfer
