// The client slots of a pool: which of them a client of a host may take, and their locks.
//
// A process locks a slot before it attaches to it. Locks on slots do not reach other machines, so two
// machines must not try the same slot: each host has slots of its own.
#pragma once

#include <cachalot/result.h>

#include <cstdint>

#include "os/file_lock.h"
#include "os/shared_file.h"
#include "pool/pool_client.h"

namespace cachalot::pool {

class ClientSlots {
 public:
  // @param first_file  of the pool; its name is in all errors
  ClientSlots(const Access& access, const os::SharedFile& first_file)
      : access_(&access), file_(&first_file) {}

  // In the first free slot of the host. A slot that is taken, or held for a suspect, is passed over.
  // @errors kBusy: all are taken or held; as Client::attach
  Result<PoolClient> attach_anywhere(ClientOptions options) const;
  // @errors kInvalidArgument: the slot is not the host's; kBusy; as Client::attach
  Result<PoolClient> attach_at(const ClientOptions& options, std::uint32_t slot) const;

 private:
  Status check_host(std::uint32_t host) const;
  Status check_slot(std::uint32_t host, std::uint32_t slot) const;
  Result<os::FileLock> lock(std::uint32_t slot) const;
  const char* pool_name() const { return file_->path().c_str(); }

  const Access* access_;
  const os::SharedFile* file_;
};

}  // namespace cachalot::pool
