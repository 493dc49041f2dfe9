// How two peers show each other that they have the cluster's key, without sending it.
//
// Each sends a random challenge and answers that of the other one by
//   HMAC-SHA256(key, "cachalot-peers 1" | challenge | both names and incarnations, the prover's first | which one called)
// The names bind the proof to these two, and the side to one of the two connections between them. So a challenge that is
// sent back proves nothing, and a process without the key that calls two hosts gets from neither what the other one wants:
// both prove as the side that was called.
//
// A process between two hosts can pass proofs on, but over TCP it cannot read or change what it passes on: transfer/link/tls.h.
// Over UCX, and with PeersOptions::is_encrypted = false, it can.
//
// @threads any
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string>

#include "node/peers/messages.h"
#include "os/secret_key.h"

namespace cachalot::node {

struct PeerIdentity {
  std::string name;
  std::uint64_t incarnation = 0;
};

// @errors kInternal: no random numbers
Result<ChallengeMessage> make_challenge();
enum class Side : std::uint64_t { kCalls = 1, kIsCalled = 2 };
// @param side  of the prover
Result<ProofMessage> prove(const os::SecretKey& key, const ChallengeMessage& challenge,
                           const PeerIdentity& prover, const PeerIdentity& verifier, Side side);
// In constant time.
bool is_equal(const ProofMessage& a, const ProofMessage& b);

}  // namespace cachalot::node
