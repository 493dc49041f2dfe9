// Stores chains of blocks: takes granted blocks, copies payloads in, and posts commits. When the keeper changes
// meanwhile, continues with the next one.
//
// Invariant: a block is written only while this client holds its use, from a grant of the ruling keeper; from
// the post of its commit to the answer it is not touched (W1).
//
// @threads one at a time
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <span>

#include "pool/client/attachment.h"
#include "pool/client/call_time.h"
#include "pool/client/client_options.h"
#include "pool/client/commits_in_flight.h"
#include "pool/client/granted_blocks.h"
#include "pool/client/hit_reports.h"
#include "pool/client/reservation.h"
#include "pool/format/statistics.h"

namespace cachalot::pool {

// A block to be stored.
struct PutItem {
  BlockHash hash;
  std::span<const std::byte> bytes;
};

class BlockWriter {
 public:
  // All of them outlive this.
  BlockWriter(const ClientContext& context, CallTime& time, Attachment& attachment,
              HitReports& reports, GrantedBlocks& grants, CommitsInFlight& commits,
              LiveClientCounters& counters);

  bool writes_checksums() const { return writes_checksums_; }

  // See Client for these.
  Status put(const BlockHash* parent, std::span<const PutItem> items, std::span<Verdict> verdicts);
  Status post_put(const BlockHash* parent, const PutItem& item);
  Status drain();
  Result<Reservation> reserve(std::uint32_t blocks);
  Status commit(const BlockHash* parent, WrittenReservation reservation,
                std::span<const WrittenBlock> blocks, std::span<Verdict> verdicts, bool goes_on);

 private:
  Status check_items(std::span<const PutItem> items) const;
  Status put_once(const BlockHash* parent, std::span<const PutItem> items,
                  std::span<Verdict> verdicts);
  Status post_commit(const BlockHash* parent, std::span<const PutItem> items, Verdict* verdicts,
                     bool goes_on);
  Status begin_commit();
  Result<BlockUse> take_grant(std::uint32_t needed);
  Result<Reservation> reserve_once(std::uint32_t blocks);

  const ClientContext& context_;
  CallTime& time_;
  Attachment& attachment_;
  HitReports& reports_;
  GrantedBlocks& grants_;
  CommitsInFlight& commits_;
  LiveClientCounters& counters_;
  const bool writes_checksums_;
};

}  // namespace cachalot::pool
