// Finds blocks and copies their payloads out, without the keeper; counts what it did.
//
// Invariant: a payload is handed out only if its directory entry was the same before and after it was read
// (R6), and, if checksums are verified, if its bytes match.
//
// @threads one at a time
#pragma once

#include <cachalot/result.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "pool/client/client_namespace.h"
#include "pool/client/client_options.h"
#include "pool/format/statistics.h"
#include "pool/reader/directory.h"

namespace cachalot::pool {

class BlockReader {
 public:
  // All of them outlive this.
  BlockReader(const ClientContext& context, const ClientNamespace& name_space,
              LiveClientCounters& counters);

  bool verifies_checksums() const { return verifies_; }

  // See Client for these.
  std::size_t lookup(std::span<const BlockHash> hashes, std::span<Found> found);
  std::size_t read(std::span<const Found> found, std::span<std::byte* const> to);
  // @param found  the block whose bytes were copied
  Result<std::uint32_t> get(const BlockHash& hash, std::span<std::byte> to, Found& found);

 private:
  const ClientContext& context_;
  const ClientNamespace& namespace_;
  LiveClientCounters& counters_;
  const DirectoryReader directory_;
  const bool verifies_;
  KeeperView view_;  // as of the last lookup
};

}  // namespace cachalot::pool
