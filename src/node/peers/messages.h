// What two peers say to each other: keepers that let each other read their pools. Every message is checked as it is read: a
// peer may send anything.
//
//   both, if there is a cluster key: Challenge, then Proof of the other's challenge (proof.h)
//
//   reader                                        owner
//   Follow                                 ──►
//                                          ◄──    News: anew, blocks      the whole pool, then each change
//   Get: request, window, blocks           ──►
//                                          ◄──    Got: heads, tokens      of the leading blocks that are there
//                                          ◄──    a push into the window  if all of them are there
//                                          ◄──    Refused: why not        instead of Got
#pragma once

#include <cachalot/hash.h>
#include <cachalot/result.h>

#include <array>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "storage/object.h"

namespace cachalot::node {

// A fact of each peer.
inline constexpr const char* kPeersFact = "cachalot-peers";
inline constexpr const char* kPeersVersion = "1";

inline constexpr std::size_t kMostNews = 8192;      // blocks of a message
inline constexpr std::size_t kMostGetBlocks = 128;  // of a message

struct ChallengeMessage {
  std::array<std::uint64_t, 2> nonce = {};
};
struct ProofMessage {
  std::array<std::uint64_t, 4> proof = {};
};

struct FollowMessage {};

// A block that the owner has published, or (length 0) has no more.
struct BlockNews {
  storage::ObjectKey key;
  BlockHash parent;  // zero: a root
  std::uint32_t length = 0;
};
struct NewsMessage {
  bool is_anew = false;  // what was said before counts no more
  std::vector<BlockNews> blocks;
};

struct WantedBlock {
  BlockHash hash, parent;
  std::uint32_t length = 0;
};
struct GetMessage {
  std::uint64_t request = 0, window = 0, deadline_ns = 0;  // from now
  BlockHash space;
  std::vector<WantedBlock> blocks;
};
struct GotBlock {
  storage::ObjectHead head;
  std::vector<std::uint32_t> tokens;
};
struct GotMessage {
  std::uint64_t request = 0;
  std::vector<GotBlock> blocks;  // fewer than were wanted: nothing is pushed
};
struct RefusedGetMessage {
  std::uint64_t request = 0;
  Error error = {};
};

using PeerMessage = std::variant<FollowMessage, NewsMessage, GetMessage, GotMessage,
                                 RefusedGetMessage, ChallengeMessage, ProofMessage>;

std::vector<std::byte> encode(const PeerMessage& message);
// @errors kBadInput
Result<PeerMessage> decode_peer_message(std::span<const std::byte> bytes);

}  // namespace cachalot::node
