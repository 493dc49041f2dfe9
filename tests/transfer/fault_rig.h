// A prefill and a decode process on two hosts that a link joins, and one fault after the other: what must hold after
// each is checked here.
//
// A fault of the product is one of these, and ends the run:
//   1. a page that is reported as received has a wrong byte, also a layer of a request that still runs;
//   2. memory outside of the receiving pages has changed, or the pages themselves after their request has ended;
//   3. a request or an offer has not ended at its deadline (and a second for a loaded machine), or a process hangs;
//   4. an offer, request, window or push is left when all is over; an offer has ended twice;
//   5. an offer was taken a second time;
//   6. the two do not work together any more when the fault is over.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/rng.h"
#include "fault_peer.h"

namespace cachalot::transfer {

enum class Fault {
  kPrefillDies,
  kDecodeDies,
  kLinkCut,
  kLinkHalfOpen,
  kPrefillStalls,
  kDecodeStalls,
  kPrefillRestarts,
  kDecodeRestarts,
  kDecodeCancels,
  kPrefillCancels,
};
inline constexpr std::uint32_t kFaults = 10;
enum class Phase { kBefore, kDuring, kAfter };
inline constexpr std::uint32_t kPhases = 3;

const char* name_of(Fault fault);
const char* name_of(Phase phase);

struct Cell {
  std::uint64_t injections = 0, running = 0, done = 0, failed = 0, gone = 0;
};
struct Totals {
  std::uint64_t damaged = 0, received = 0, retries = 0, longest_over_ns = 0;
};

class FaultRig {
 public:
  // @param stall_ns  not 0: the deadline, and only stalls are injected
  FaultRig(NetnsLink& link, FaultPeer prefill, FaultPeer decode, std::uint64_t slack_ns,
           std::uint64_t stall_ns)
      : link_(link),
        p_(std::move(prefill)),
        d_(std::move(decode)),
        slack_ns_(slack_ns),
        stall_ns_(stall_ns) {}

  // @errors kInternal: one of the faults above; others: the rig does not work
  Status inject(Fault fault, Phase phase, std::uint64_t seed);

  const std::map<std::pair<Fault, Phase>, Cell>& cells() const { return cells_; }
  const Totals& totals() const { return totals_; }

 private:
  struct Request {
    OfferId id;
    std::array<std::uint32_t, kMostPages> from = {}, to = {};
    std::uint32_t pages = 0;
    std::uint64_t tokens = 0, seed = 0, deadline_ns = 0;
    std::uint32_t layers = kLayers;  // ready at once
    bool asks_early = false;
    std::uint64_t offered_ns = 0, asked_ns = 0, ask = 0;
    bool is_offered = false;  // the prefill process has it
    bool was_offered = false, has_offer_ended = false, was_taken = false;
    bool is_asked = false;  // the decode process has it
    bool has_ask_ended = false, was_done = false;
    bool was_done_before = false;  // by a process that was killed
    Error error = {};
    std::uint64_t bytes = 0;
    std::uint32_t checked_layers = 0;
  };

  Status begin(std::uint64_t seed);
  Status run(Fault fault, Phase phase);
  Status apply(Fault fault, Phase phase);
  Status kill(FaultPeer& peer, bool restarts);
  Status restore();
  Status end(Fault fault, Phase phase);
  Status use_again();

  Status start_prefill();
  Status start_decode();
  Status offer(Request& request);
  Status ask(Request& request, bool waits_for_offer);
  Status finish_ask(Request& request, const Reply& reply);
  Status look_at_decode(Request& request);
  Status look_at_prefill(Request& request);
  Status wait_for_bytes(bool to_the_end);
  Status wait_for_ends();
  Status wait_for_empty();

  Command command(const Request& request, Command::Op op) const;
  Request any_request(std::uint64_t deadline_ns);
  void fill_source(const Request& request);
  Status check_layers(const Request& request, std::uint32_t layers) const;
  void overwrite(FaultPeer& peer, const std::array<std::uint32_t, kMostPages>& pages,
                 std::uint32_t count, std::uint64_t seed);
  Status use_pages_again(const Request& request);
  Status check_memory() const;

  NetnsLink& link_;
  FaultPeer p_, d_;
  const std::uint64_t slack_ns_, stall_ns_;
  base::Rng rng_{0};
  std::uint64_t seed_ = 0, peer_timeout_ns_ = 0, memory_seed_ = 0;
  std::uint32_t until_new_ = 0;  // injections until both processes start anew
  Request request_;
  bool is_broken_ = false, is_throttled_ = false;
  std::map<std::uint32_t, std::uint64_t> seeds_;  // of pages of decode that were used again
  std::uint64_t last_damaged_ = 0, last_received_ = 0;
  std::map<std::pair<Fault, Phase>, Cell> cells_;
  Totals totals_;
};

}  // namespace cachalot::transfer
