// Reading and answering the requests of pool/format/requests.h, for the parts of the keeper that serve them.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <cstring>
#include <span>

#include "pool/format/requests.h"
#include "rpc/server.h"

namespace cachalot::pool {

inline Op op_of(const rpc::Message& message) {
  return static_cast<Op>(rpc::op_of(message.lines[0]));
}

// Namespace and first block use of a kTouch message, by words (UsesPayload).
inline std::uint32_t touched_namespace(const rpc::Message& message) {
  return static_cast<std::uint32_t>(message.lines[0].words[rpc::kRequestPayloadWord]);
}
inline BlockUse first_use(const rpc::Message& message) {
  const std::uint64_t* words = message.lines[0].words + rpc::kRequestPayloadWord;
  return {static_cast<std::uint32_t>(words[0] >> 32), static_cast<std::uint32_t>(words[1])};
}

// The i-th block use of a kTouch or kGiveBack message.
inline BlockUse use_at(const rpc::Message& message, std::uint32_t i) {
  if (i < kUsesInHead) return rpc::load_payload<UsesPayload>(message.head().payload).uses[i];
  const std::uint32_t j = i - kUsesInHead;
  return rpc::load_payload<UsesFollowing>(message.following(j / kUsesInFollowing).payload)
      .uses[j % kUsesInFollowing];
}

// How many uses a message of so many lines has room for.
constexpr std::uint32_t most_uses(std::uint32_t lines) {
  return kUsesInHead + (lines - 1) * kUsesInFollowing;
}

constexpr std::uint16_t status_of(Code code) {
  return static_cast<std::uint16_t>(code);
}

inline void refuse(rpc::Server& server, std::uint32_t client, Code code) {
  server.answer(client, status_of(code));
}

// Answers with a payload; `count` is what the answer's head says.
template <class Answer>
void answer_with(rpc::Server& server, std::uint32_t client, const Answer& answer,
                 std::uint16_t count = 1, std::span<const rpc::FollowingLine> following = {}) {
  unsigned char payload[sizeof answer];
  std::memcpy(payload, &answer, sizeof answer);
  server.answer(client, 0, count, payload, following);
}

}  // namespace cachalot::pool
