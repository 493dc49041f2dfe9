// For tests that write the messages of a hand-over by hand: what shows that a rank knows an offer.
#pragma once

#include <string>

#include "transfer/handover/proof.h"
#include "transfer/link/frame.h"

namespace cachalot::transfer {

// The engine that has said this hello.
inline Party party_in(const Frame& hello) {
  BodyReader body(hello.body);
  Party party;
  party.name = body.text(256);
  party.incarnation = body.word();
  return party;
}

// The message, with the proof of a rank that knows the id.
template <class M>
M proven(M message, const OfferId& id, const Party& from, const Party& to,
         const Nonce& nonce = {}) {
  message.proof = proof_of(id, from, to, nonce, message);
  return message;
}

}  // namespace cachalot::transfer
