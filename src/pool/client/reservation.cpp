#include "pool/client/reservation.h"

namespace cachalot::pool {

void ReservationBook::admit(std::uint32_t incarnation) {
  const std::lock_guard lock(mutex_);
  incarnation_ = incarnation;
}

void ReservationBook::close() {
  const std::lock_guard lock(mutex_);
  incarnation_ = 0;
  returned_.clear();
}

bool ReservationBook::has_open() const {
  const std::lock_guard lock(mutex_);
  return open_ != 0;
}

bool ReservationBook::withholds() const {
  const std::lock_guard lock(mutex_);
  return withholds_;
}

bool ReservationBook::may_still_store() const {
  const std::lock_guard lock(mutex_);
  return withholds_ || open_ != 0;
}

std::size_t ReservationBook::returned() const {
  const std::lock_guard lock(mutex_);
  return returned_.size();
}

void ReservationBook::take_returned(std::deque<BlockUse>& to) {
  const std::lock_guard lock(mutex_);
  to.insert(to.end(), returned_.begin(), returned_.end());
  returned_.clear();
}

bool ReservationBook::begin(std::uint32_t incarnation) {
  const std::lock_guard lock(mutex_);
  if (incarnation != incarnation_) return false;
  ++open_;
  return true;
}

void ReservationBook::end() {
  const std::lock_guard lock(mutex_);
  --open_;
}

void ReservationBook::withhold() {
  const std::lock_guard lock(mutex_);
  withholds_ = true;
  --open_;
}

void ReservationBook::give_back(std::uint32_t incarnation, std::span<const BlockUse> uses) {
  const std::lock_guard lock(mutex_);
  if (incarnation != incarnation_) return;  // void: the keeper knows what they are
  returned_.insert(returned_.end(), uses.begin(), uses.end());
}

void HeldBlocks::GiveBack::operator()(HeldBlocks* held) const {
  held->book->give_back(held->incarnation, held->uses);
  delete held;
}

void HeldBlocks::Withhold::operator()(HeldBlocks* held) const {
  held->book->withhold();
  delete held;
}

Error void_reservation() {
  return Error::make(Code::kStale,
                     "blocks were reserved by an attachment that is over: write them again");
}

Result<HeldBlocks::Open> HeldBlocks::begin(Closed& held) {
  if (held == nullptr || !held->book->begin(held->incarnation)) return void_reservation();
  return Open(held.release());
}

Result<OpenReservation> Reservation::begin() && {
  CACHALOT_TRY_ASSIGN(HeldBlocks::Open held, HeldBlocks::begin(held_));
  return OpenReservation(std::move(held));
}

Result<OpenReservation> WrittenReservation::begin() && {
  CACHALOT_TRY_ASSIGN(HeldBlocks::Open held, HeldBlocks::begin(held_));
  return OpenReservation(std::move(held));
}

WrittenReservation OpenReservation::end() && {
  held_->book->end();
  return WrittenReservation(HeldBlocks::Closed(held_.release()));
}

}  // namespace cachalot::pool
