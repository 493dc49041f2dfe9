// What shows that a rank has read the reference of an offer. The id of an offer is its secret: it is never sent. Asks
// carry a name that is made of it, and both sides prove that they know it:
//
//   name    HMAC-SHA256(id, "cachalot offer"), the first 128 bits
//   proof   HMAC-SHA256(id, the sender and the receiver, by name and incarnation; the nonce of the ask; the message)
//
// The nonce is random, new for each ask, and incarnations are random: no proof is good for another ask, direction,
// message or process. A host that relays all bytes between two ranks is not noticed: links are not encrypted.
#pragma once

#include <cachalot/result.h>
#include <cachalot/transfer.h>

#include <cstddef>
#include <span>

#include "transfer/engine/engine.h"
#include "transfer/handover/messages.h"

namespace cachalot::transfer {

OfferName name_of(const OfferId& id);

// One end of a connection.
struct Party {
  std::string name;
  std::uint64_t incarnation = 0;
};

// @param message  encoded, with a proof of zeros
Proof prove(const OfferId& id, const Party& from, const Party& to, const Nonce& nonce,
            std::span<const std::byte> message);

// In a time that does not depend on the values.
bool equals(const Proof& a, const Proof& b);

// The proof of a message that has one.
template <class M>
Proof proof_of(const OfferId& id, const Party& from, const Party& to, const Nonce& nonce,
               M message) {
  message.proof = {};
  return prove(id, from, to, nonce, encode(std::move(message)));
}

}  // namespace cachalot::transfer
