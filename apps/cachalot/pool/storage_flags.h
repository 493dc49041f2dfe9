// The flags that put storage behind a pool: of `cachalot serve` and `cachalot replay`.
#pragma once

#include <cachalot/result.h>

#include <memory>
#include <string>
#include <vector>

#include "flags.h"
#include "node/archive/archive_options.h"
#include "storage/backends.h"
#include "storage/catalogue.h"

namespace cachalot::apps {

struct StorageFlags {
  std::vector<std::string> uris;  // none: no storage
  std::string capacity, capacity_blocks;
  std::string write_policy = "through";
  std::string key_file;
  std::string write_budget;

  // @errors kInvalidArgument: limits that are no sizes
  Result<storage::Limits> limits() const;
  // @errors kInvalidArgument: --storage-capacity is less than a block
  Status check_holds_a_block(std::uint64_t block_bytes) const;
  // 0: no limit. @errors kInvalidArgument
  Result<std::uint64_t> write_bytes_per_day() const;
  Result<node::WritePolicy> policy() const;
  // The key file, and what the usual environment variables say.
  storage::BackendSecrets secrets() const;
};

void add_storage_flags(Command& command, StorageFlags& flags);

}  // namespace cachalot::apps
