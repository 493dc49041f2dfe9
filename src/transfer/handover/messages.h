// What the ranks of two instances say to each other about a hand-over. Every message is checked as it is read: a peer
// may send anything.
//
//   decode rank                                   prefill rank
//   Ask: offer, own rank, shapes of its memory ──►
//                                              ◄── Plan: the order of each stream     or  Refusal: why not
//   Go: a window for each fetch                ──►
//                                              ◄── pushes into the windows; Note, when the prefill is finished
//   Cancel                                     ──►    (at any time)
//   Decline: this instance will not ask        ──►
//   Nothing: this pair needs no byte of yours  ──►
//
// An offer goes by a name that is made of its id. The sender of Ask, Plan, Decline or Nothing proves that it knows the id
// (proof.h).
//
// Between ranks of one instance and machine: Ask (is_copy), Plan, Go, pushes, Note, Cancel, in the same way.
#pragma once

#include <cachalot/result.h>
#include <cachalot/transfer.h>

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "transfer/pair/stream_order.h"

namespace cachalot::transfer {

struct OfferName {
  std::uint64_t high = 0, low = 0;
  auto operator<=>(const OfferName&) const = default;
};
struct Nonce {
  std::uint64_t high = 0, low = 0;
};
using Proof = std::array<std::uint64_t, 4>;

struct AskMessage {
  std::uint64_t ask = 0;  // of the decode rank
  OfferName offer;
  Nonce nonce;
  InstanceShape shape;  // of the decode instance
  std::uint32_t rank = 0;
  std::uint64_t first_token = 0, tokens = 0;
  bool waits_for_offer = false;
  bool is_copy =
      false;  // to a rank of the same instance: from the pages of its own ask for this offer
  std::optional<BlockHash> hash;     // of the last page of the tokens
  std::vector<StreamShape> fetches;  // of the memory of each fetch, in the order of the pair's plan
  Proof proof = {};
};

struct PlanMessage {
  std::uint64_t ask = 0;
  std::vector<StreamOrder> orders;  // of each fetch
  Proof proof = {};                 // with the nonce of the ask
};

struct GoMessage {
  std::uint64_t ask = 0;
  std::vector<std::uint64_t> windows;  // of each fetch
};

struct RefusalMessage {
  std::uint64_t ask = 0;
  Error error;
};

struct NoteMessage {
  std::uint64_t ask = 0;
  std::vector<std::byte> note;
};

struct CancelMessage {
  std::uint64_t ask = 0;
};

struct NothingMessage {
  OfferName offer;
  InstanceShape shape;
  Proof proof = {};
};

struct DeclineMessage {
  OfferName offer;
  Proof proof = {};
};

using Message = std::variant<AskMessage, PlanMessage, GoMessage, RefusalMessage, NoteMessage,
                             CancelMessage, NothingMessage, DeclineMessage>;

inline constexpr std::uint64_t kMostNoteBytes = 1u << 20;
inline constexpr std::uint32_t kMostRanks = 4096;
inline constexpr std::uint64_t kMostFetches = 4096;

std::vector<std::byte> encode(const Message& message);
// @errors kBadInput
Result<Message> decode(std::span<const std::byte> bytes);

// Whether an instance can have this shape. @errors kInvalidArgument
Status check(const InstanceShape& shape);

}  // namespace cachalot::transfer
