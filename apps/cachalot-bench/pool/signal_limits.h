// The limits of signalling, made of a domain's own primitives and nothing else: a bare ping-pong of
// two lines, and a ring of lines without CRC, credit or meaning.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <vector>

#include "measure.h"
#include "memory/devices.h"
#include "peer.h"

namespace cachalot::apps::bench {

// Both sides of the limits in shared memory of their own; the far side runs in a Peer.
class SignalLimits {
 public:
  static Result<SignalLimits> start(const Cores& cores);

  // Appends the mean of every 16 round trips in a row, in ns.
  // @errors kTimeout: the peer was not heard of for seconds
  Status ping_pong(memory::DomainKind kind, std::uint32_t round_trips,
                   std::vector<double>& samples_ns);

  // How a ring is used: answers are a line for each request, or one word for all that were found;
  // lines are read 64 at a time with one pair of fences, or by plain loads up to the first that is
  // not there (coherent only, where reading ahead takes lines away from their writer).
  enum class Ring : std::uint32_t { kAnswerEach, kAnswerPerPoll, kPlain, kCount };
  // Requests with at most 128 outstanding.
  Status ring_rate(memory::DomainKind kind, Ring ring, std::uint64_t requests, RateMeter& rate);

 private:
  SignalLimits(memory::DeviceSet memory, Peer peer)
      : memory_(std::move(memory)), peer_(std::move(peer)) {}

  memory::DeviceSet memory_;
  Peer peer_;
  std::uint64_t next_ = 1;  // numbers are never used twice, so that old lines are not believed
};

// The plain ping-pong of both domains, as a note under the table and as rows.
Status note_ping_pong(SignalLimits& limits, Report& report);

}  // namespace cachalot::apps::bench
