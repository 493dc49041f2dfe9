// Checks ledger, directory, the tree of blocks, payloads and notes against each other, as the next keeper would read
// them (keeper/takeover), and names what it would drop.
//
// @threads one; it starts others for payloads
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pool/check/fault.h"
#include "pool/format/access.h"
#include "pool/keeper/predecessor.h"
#include "pool/reader/directory.h"

namespace cachalot::pool {

// What each block is, by ledger and directory. Blocks in limbo are free there.
struct BlockCounts {
  std::uint32_t free = 0, granted = 0, quarantined = 0, live = 0, bad = 0;
  std::uint32_t sum() const { return free + granted + quarantined + live + bad; }
};

class EntryCheck {
 public:
  struct Figures {
    BlockCounts blocks;
    std::uint32_t lost_blocks = 0;  // with an entry that the next keeper, or --repair, drops
    std::uint64_t payloads = 0;     // verified
    std::uint64_t payload_bytes = 0;
    std::uint64_t without_checksum = 0;
    std::uint64_t notes = 0;  // that name their block's use
  };

  // @param is_known  as check_keeper_area(); all must outlive the check
  EntryCheck(const Access& access, const Predecessor& predecessor,
             const std::vector<bool>& is_known, FaultLog& log);

  // @param threads  0: payloads are not read
  Figures run(std::uint32_t threads);

 private:
  // A block's entry that counts, if it has one.
  struct Block {
    std::uint32_t slot = kNoBlock;  // none: it has no entry
    std::uint32_t parent = kNoBlock;
    std::uint32_t generation = 0;
  };

  void read_ledger();
  void check_bucket(std::uint32_t first);
  bool counts(const Entry& entry, std::uint32_t slot);
  void claim(const Entry& entry, std::uint32_t slot);
  void check_hashes(std::uint32_t first, const Entry* entries, const bool* live);
  void check_reach(std::uint32_t first, const Entry* entries, const bool* is_sealed,
                   const bool* live);
  void check_payloads(std::uint32_t threads);
  void check_tree();
  void count_blocks();
  void tell(FaultKind kind, std::uint32_t slot, const Entry& entry, const std::string& what);

  const Access& access_;
  const KeeperView view_;
  const bool is_taken_over_;  // a keeper finished its takeover: its ledger and entries count
  const bool is_lost_;        // nothing counts
  const std::uint32_t area_;
  const std::vector<bool>& is_known_;
  FaultLog& log_;
  const std::uint32_t accessible_;  // blocks whose memory is mapped here
  const std::uint32_t named_;  // and those that may be on a lost device: check_added() names it
  std::vector<LedgerRecord> ledger_;
  std::vector<Block> blocks_;
  std::vector<std::uint8_t> has_bad_payload_;
  Figures figures_;
};

}  // namespace cachalot::pool
