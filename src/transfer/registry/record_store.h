// Where a registry keeps records: what each kind of registry implements. It has no threads of its own.
//
// @threads hold() and release() one at a time; find() and list() any
#pragma once

#include "transfer/registry/peer_record.h"

namespace cachalot::transfer {

inline constexpr std::size_t kMostPeers = 4096;  // in one registry

class RecordStore {
 public:
  struct Timing {
    std::uint64_t renew_ns;  // hold() is called so often
    std::uint64_t
        lapse_ns;  // the record stays at least so long after the begin of a hold() that succeeded
  };

  virtual ~RecordStore() = default;
  virtual Timing timing() const = 0;

  // Makes the record the one of its name and keeps it there for a while. Is called again with the same record, also
  // after the store lost it.
  // @errors kBusy: another live peer has the name; kTimeout, kIo, kPermission
  virtual Status hold(const PeerRecord& record, std::uint64_t deadline_ns) = 0;
  // Removes what hold() made. Nothing, if it made none.
  virtual Status release(std::uint64_t deadline_ns) = 0;

  virtual Result<PeerRecord> find(std::string_view name, std::uint64_t deadline_ns) = 0;
  // Leaves out records that cannot be read, and logs them.
  virtual Result<std::vector<PeerRecord>> list(std::string_view prefix,
                                               std::uint64_t deadline_ns) = 0;
};

}  // namespace cachalot::transfer
