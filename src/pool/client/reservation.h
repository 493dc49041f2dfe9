// Blocks to be written in place. The type says how far a reservation is:
//
//   Client::reserve() → Reservation         granted to this client, nothing is written
//     begin()         → OpenReservation     the caller stores into its blocks, by any threads
//     end()           → WrittenReservation  every store is done and ordered (rule R4)
//     Client::commit()                      the keeper publishes them
//
// A WrittenReservation may begin() again, for a block that is written in portions.
//
// Dropping one does what is safe: blocks that nothing stores into go back to the client, which uses them for
// other payloads. Blocks of an open reservation are withheld: a copy may still store into them for as long
// as this process lives, as a device that failed in a copy may. They are not used again; their client
// does not attach again, and does not say at its detachment that it stores no more.
//
// A reservation is valid for the attachment that it came from. After that one is over, its blocks are the
// keeper's, whatever becomes of the reservation.
//
// @threads  a reservation: one at a time, of any
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "pool/format/requests.h"

namespace cachalot::pool {

// What a client and its reservations share: how many are open, and the blocks that came back.
// @threads any
class ReservationBook {
 public:
  // From here on reservations of this attachment may begin; incarnations are never 0.
  void admit(std::uint32_t incarnation);
  // From here on none may begin, and what came back is void.
  void close();

  // A copy may be in flight. If not, the stores of all that ended happened before.
  bool has_open() const;
  bool withholds() const;
  bool may_still_store() const;  // one of both

  // The blocks that came back.
  std::size_t returned() const;
  void take_returned(std::deque<BlockUse>& to);

 private:
  friend class OpenReservation;
  friend struct HeldBlocks;

  bool begin(std::uint32_t incarnation);
  void end();
  void withhold();
  void give_back(std::uint32_t incarnation, std::span<const BlockUse> uses);

  mutable std::mutex mutex_;
  std::uint32_t incarnation_ = 0;  // 0: closed
  std::uint32_t open_ = 0;
  bool withholds_ = false;
  std::vector<BlockUse> returned_;
};

// What a reservation consists of, in any state.
struct HeldBlocks {
  std::shared_ptr<ReservationBook> book;
  std::uint32_t incarnation = 0;
  std::vector<BlockUse> uses;

  struct GiveBack {
    void operator()(HeldBlocks* held) const;
  };
  struct Withhold {
    void operator()(HeldBlocks* held) const;
  };
  using Closed = std::unique_ptr<HeldBlocks, GiveBack>;
  using Open = std::unique_ptr<HeldBlocks, Withhold>;

  static std::span<const BlockUse> uses_of(const HeldBlocks* held) {
    return held == nullptr ? std::span<const BlockUse>() : held->uses;
  }
  static Result<Open> begin(Closed& held);
};

Error void_reservation();

class OpenReservation;

class Reservation {
 public:
  Reservation() = default;  // of no blocks
  std::span<const BlockUse> uses() const { return HeldBlocks::uses_of(held_.get()); }
  // @errors kStale: its attachment is over, or it is of no blocks; it stays as it is then
  Result<OpenReservation> begin() &&;

 private:
  friend class BlockWriter;
  explicit Reservation(HeldBlocks::Closed held) : held_(std::move(held)) {}
  HeldBlocks::Closed held_;
};

class WrittenReservation {
 public:
  std::span<const BlockUse> uses() const { return HeldBlocks::uses_of(held_.get()); }
  // @errors as Reservation::begin()
  Result<OpenReservation> begin() &&;

 private:
  friend class BlockWriter;
  friend class OpenReservation;
  explicit WrittenReservation(HeldBlocks::Closed held) : held_(std::move(held)) {}
  HeldBlocks::Closed held_;
};

// At Access::for_each_extent(use.block, …), in whole lines, through the domain.
class OpenReservation {
 public:
  std::span<const BlockUse> uses() const { return HeldBlocks::uses_of(held_.get()); }
  // Every thread that stored has ordered its stores, and none stores any more.
  WrittenReservation end() &&;
  // As dropping it, in so many words.
  void withhold() && { held_.reset(); }

 private:
  friend class Reservation;
  friend class WrittenReservation;
  explicit OpenReservation(HeldBlocks::Open held) : held_(std::move(held)) {}
  HeldBlocks::Open held_;
};

}  // namespace cachalot::pool
