// Reads every entry that counts under the predecessor's rule into the keeper's own table and directory, also
// those that a keeper wrote again which died before it finished its takeover.
//
// Several threads share nothing but the blocks' states: each bucket is one thread's, and a block is
// the first thread's that claims it. Two entries for one block are rare (a keeper that woke up, or
// damage); they are settled afterwards.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pool/format/access.h"
#include "pool/keeper/block_table.h"
#include "pool/keeper/directory_writer.h"
#include "pool/keeper/namespaces.h"
#include "pool/keeper/predecessor.h"
#include "pool/reader/directory.h"

namespace cachalot::pool {

class EntryScan {
 public:
  // `inherited`: the predecessor's ledger, a record for each block. `usable`: entries of blocks from there on do not
  // count. All must outlive the scan.
  EntryScan(const Access& access, const Predecessor& predecessor,
            std::span<const LedgerRecord> inherited, const Namespaces& namespaces,
            BlockTable& blocks, std::uint32_t usable, DirectoryWriter& directory);

  // Afterwards each block whose entry counts is live in the table and stands in the directory.
  void run(std::uint32_t threads);

 private:
  void read_slots(std::uint32_t first, std::uint32_t end, std::vector<std::uint32_t>& contested);
  bool counts(const Entry& entry, std::uint32_t slot) const;
  void adopt(const Entry& entry, std::uint32_t slot);
  void settle(std::uint32_t slot);

  const Access& access_;
  KeeperView view_;
  std::span<const LedgerRecord> inherited_;
  const Namespaces& namespaces_;
  BlockTable& blocks_;
  const std::uint32_t usable_;
  DirectoryWriter& directory_;
};

}  // namespace cachalot::pool
