// Tells a damaged mailbox from a slow keeper, by counting and not by a clock.
//
// A line that was damaged on its way into a ring is never taken, and all lines after it wait for it.
// The keeper shows that it is at work by its echo of the client's heartbeat: between two echoes it has
// read all mailboxes, and it writes answers before the echo. So a client that wrote its requests, then
// counted its heartbeat up, and then saw several new echoes without one answer, has a damaged mailbox.
// A keeper that stands still sends no echo, and a client that stands still does not look.
//
// @threads one
#pragma once

#include <cstdint>

namespace cachalot::pool {

class MailboxWatch {
 public:
  // Forgets what it saw: a new attachment has new rings.
  void restart() { *this = {}; }

  // To be called while requests are without answer.
  // @param answered   requests answered so far
  // @param next_beat  number of the next heartbeat; the requests are ordered before it
  // @param echo       the last heartbeat that the keeper has seen
  // @return true if the keeper has passed over the oldest request
  bool is_passed_over(std::uint64_t answered, std::uint64_t next_beat, std::uint64_t echo) {
    if (since_beat_ == 0 || answered != answered_) {
      *this = {};
      answered_ = answered;
      since_beat_ = next_beat;
      return false;
    }
    if (echo < since_beat_ || echo == last_echo_) return false;
    last_echo_ = echo;
    return ++echoes_ >= kEnoughEchoes;
  }

 private:
  // A message takes a keeper two polls, one for its head and one for the rest. Two more for safety.
  static constexpr std::uint32_t kEnoughEchoes = 5;

  std::uint64_t answered_ = 0;
  std::uint64_t since_beat_ = 0;  // 0: nothing is watched
  std::uint64_t last_echo_ = 0;
  std::uint32_t echoes_ = 0;
};

}  // namespace cachalot::pool
