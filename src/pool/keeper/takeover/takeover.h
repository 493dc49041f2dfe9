// How a keeper begins to rule, over an empty pool or one that another keeper left (design page
// recovery, "Takeover"): reads what the predecessor left, writes every entry and ledger line again.
//
// It is prepared with all its memory before the keeper announces itself, and lives until the keeper serves.
//
// @threads  one; it starts `takeover_threads` - 1 more
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/huge_allocator.h"
#include "pool/keeper/blocks.h"
#include "pool/keeper/directory_writer.h"
#include "pool/keeper/evictor.h"
#include "pool/keeper/keeper_options.h"
#include "pool/keeper/namespaces.h"
#include "pool/keeper/reign.h"
#include "pool/keeper/sessions.h"

namespace cachalot::pool {

// Where the time of a takeover went.
struct TakeoverTimes {
  std::uint64_t ledger_ns = 0;      // reading the predecessor's ledger
  std::uint64_t entries_ns = 0;     // reading and checking the directory
  std::uint64_t payloads_ns = 0;    // verifying payloads
  std::uint64_t tree_ns = 0;        // rebuilding the tree, and the order of use
  std::uint64_t holders_ns = 0;     // finding the holders
  std::uint64_t sweep_ns = 0;       // writing every entry again
  std::uint64_t ledger_out_ns = 0;  // queueing what is free, and writing the new ledger
  std::uint64_t total_ns() const {
    return ledger_ns + entries_ns + payloads_ns + tree_ns + holders_ns + sweep_ns + ledger_out_ns;
  }
};

class Takeover {
 public:
  Takeover(const Access& access, const KeeperOptions& options, const Reign& reign,
           base::Clock& clock, Namespaces& namespaces, Blocks& blocks, DirectoryWriter& directory,
           Evictor& evictor, Sessions& sessions);

  // Once, after the announcement. All that it wrote is complete on return.
  // @return false: another keeper has announced itself meanwhile, and this one must stop
  bool run();

  const TakeoverTimes& times() const { return times_; }

 private:
  // The last client of a slot, as far as it can be known.
  struct LastClient {
    Session session;
    bool was_admitted = false;
    bool is_view_lost = false;  // the predecessor's view of the slot cannot be read
  };

  bool take_over_predecessor();
  void read_ledger();
  // What is done with payloads that are there only if all stores of before have reached the devices.
  enum class Payloads {
    kTrust,
    kVerify,  // blocks with a wrong checksum are dropped
    kProve    // and blocks without one
  };
  Payloads choose_payloads() const;
  void drop_damaged(Payloads payloads);
  void drop(std::uint32_t block);
  void drop_orphans();
  void adopt_ledger();
  void adopt_holders();
  LastClient find_last_client(std::uint32_t client, std::uint32_t holding) const;
  bool is_blank(std::uint64_t offset) const;
  bool begin_anew();
  bool write_directory();
  void write_ledger();
  // Ends a phase: the time since the last one ended.
  std::uint64_t lap();

  const Access& access_;
  const Reign& reign_;
  base::Clock& clock_;
  Namespaces& namespaces_;
  Blocks& blocks_;
  BlockTable& table_;  // of blocks_
  DirectoryWriter& directory_;
  Evictor& evictor_;
  Sessions& sessions_;
  std::uint32_t threads_;
  const KeeperOptions& options_;
  base::HugeVector<LedgerRecord> inherited_;  // the predecessor's ledger, until it is taken over
  TakeoverTimes times_;
  std::uint64_t last_lap_ns_ = 0;
};

}  // namespace cachalot::pool
