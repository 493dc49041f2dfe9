// How two peers show each other that they have the cluster's key, without sending it.
//
// Each sends a random challenge and answers that of the other one by
//   HMAC-SHA256(key, "cachalot-peers 1" | challenge | both names and incarnations, the prover's first)
// The names bind the proof to these two, so that a proof for one peer is none for another, and a challenge that is sent back
// proves nothing. What comes after it is not encrypted: a machine between two hosts can still change bytes,
// which the seal detects as damage only.
//
// @threads any
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string>

#include "node/peers/messages.h"
#include "storage/encrypted.h"

namespace cachalot::node {

struct PeerIdentity {
  std::string name;
  std::uint64_t incarnation = 0;
};

// @errors kInternal: no random numbers
Result<ChallengeMessage> make_challenge();
Result<ProofMessage> prove(const storage::StorageKey& key, const ChallengeMessage& challenge,
                           const PeerIdentity& prover, const PeerIdentity& verifier);
// In constant time.
bool is_equal(const ProofMessage& a, const ProofMessage& b);

}  // namespace cachalot::node
