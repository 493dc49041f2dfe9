// Requests and responses as they lie in a mailbox (docs/formats/pool.md draws them).
//
// A message is one head line and any number of following lines; all are ring lines: a 64-bit
// sequence number, 52 bytes, a CRC that also covers the client's incarnation. Responses come in the
// order of the requests; one response line may answer several requests that ask for no more than a
// yes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "memory/line.h"

namespace cachalot::rpc {

// Lines of the longest message; bounds what a keeper reads ahead for one client.
inline constexpr std::uint32_t kMaxMessageLines = 64;
inline constexpr std::uint32_t kMaxOutstanding = 128;

inline constexpr std::size_t kRequestPayloadBytes = 44;
inline constexpr std::size_t kResponsePayloadBytes = 36;
inline constexpr std::size_t kFollowingPayloadBytes = 52;

struct RequestHead {
  std::uint64_t sequence;  // of this line; counts lines, from 1
  std::uint8_t op;
  std::uint8_t lines;  // of the whole message
  std::uint16_t count;
  std::uint32_t epoch;  // of the keeper this is meant for (W5)
  unsigned char payload[kRequestPayloadBytes];
  std::uint32_t crc;
};

struct ResponseHead {
  std::uint64_t sequence;  // of this line
  std::uint32_t request;   // low 32 bits of the last line of the last request answered
  std::uint16_t status;    // 0 or a Code
  std::uint8_t lines;      // of the whole response
  std::uint8_t answered;   // requests answered, 1 or more
  std::uint16_t count;
  std::uint16_t reserved;
  std::uint32_t epoch;
  unsigned char payload[kResponsePayloadBytes];
  std::uint32_t crc;
};

struct FollowingLine {
  std::uint64_t sequence;
  unsigned char payload[kFollowingPayloadBytes];
  std::uint32_t crc;
};

// The same fields as words, for the hot path: a line that is put together or taken apart word by word
// never waits for a narrow store to be read back wide.
constexpr std::uint64_t request_word(std::uint8_t op, std::uint32_t lines, std::uint16_t count,
                                     std::uint32_t epoch) {
  return op | std::uint64_t{lines & 0xff} << 8 | std::uint64_t{count} << 16 |
         std::uint64_t{epoch} << 32;
}
constexpr std::uint8_t op_of(const memory::Line& head) {
  return head.words[1] & 0xff;
}
constexpr std::uint32_t lines_of(const memory::Line& head) {
  return head.words[1] >> 8 & 0xff;
}
constexpr std::uint32_t count_of(const memory::Line& head) {
  return head.words[1] >> 16 & 0xffff;
}
constexpr std::uint32_t epoch_of(const memory::Line& head) {
  return static_cast<std::uint32_t>(head.words[1] >> 32);
}
// Where a request's payload lies in its head line, in words.
inline constexpr std::size_t kRequestPayloadWord = 2;

// A head line with nothing but its payload.
template <class T>
memory::Line request_payload(const T& value) {
  static_assert(sizeof(T) <= kRequestPayloadBytes);
  memory::Line line{};
  std::memcpy(line.words + kRequestPayloadWord, &value, sizeof value);
  return line;
}

static_assert(sizeof(RequestHead) == 64 && sizeof(ResponseHead) == 64 &&
              sizeof(FollowingLine) == 64);

// Copies a plain value in and out of a payload.
template <class T, std::size_t N>
void store_payload(unsigned char (&payload)[N], const T& value) {
  static_assert(sizeof(T) <= N);
  std::memcpy(payload, &value, sizeof value);
}
template <class T, std::size_t N>
T load_payload(const unsigned char (&payload)[N]) {
  static_assert(sizeof(T) <= N);
  T value;
  std::memcpy(&value, payload, sizeof value);
  return value;
}

}  // namespace cachalot::rpc
