// What travels between two transfer engines: frames. docs/formats/transfer.md draws the bytes.
//
//   header (32 bytes) | body: 64-bit words | payload | trailer (16 bytes, only after a payload)
//
// 1. A frame whose CRC does not match, or whose sizes exceed the limits, ends the connection: what follows it cannot
//    be found.
// 2. A payload counts only if the trailer behind it says so.
#pragma once

#include <cachalot/result.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transfer/strided/byte_stream.h"

namespace cachalot::transfer {

inline constexpr std::uint16_t kWireVersion = 4;
inline constexpr std::uint32_t kMostBodyBytes = 4u << 20;
// Of a peer that is not trusted yet: the largest ask fits.
inline constexpr std::uint32_t kMostStrangerBodyBytes = 512u << 10;
inline constexpr std::uint64_t kMostPayloadBytes = 64u << 20;  // of one frame

enum class FrameType : std::uint16_t {
  kHello = 1,  // the first frame of both sides
  kReads,      // the second one: whether this side reads the memory of the other one by itself
  kRefusal,    // why the connection ends
  kMessage,    // bytes for the layer above
  kBegin,      // a push begins: where it goes, how large it is
  kChunk,      // bytes of a push, as the payload
  kReady,      // bytes of a push, in memory that the receiver reads itself
  kTaken,      // the receiver has these bytes
  kEnd,        // a push has ended early, on either side
  kPing,
  kPong,
};

struct FrameHeader {
  std::uint32_t magic;
  std::uint16_t type;
  std::uint16_t version;
  std::uint32_t body_bytes;
  std::uint32_t crc;  // CRC-32C over the other words and the body
  std::uint64_t payload_bytes;
  std::uint64_t reserved;
};
static_assert(sizeof(FrameHeader) == 32);

enum class PayloadState : std::uint32_t { kValid = 1, kVoid = 2 };

struct FrameTrailer {
  std::uint64_t checksum;  // XXH3-64 of the payload; 0 if the push has no checksums
  std::uint32_t state;
  std::uint32_t magic;
};
static_assert(sizeof(FrameTrailer) == 16);

struct Frame {
  FrameType type = FrameType::kMessage;
  std::vector<std::byte> body;
};

// The bytes of a frame: header and body.
std::vector<std::byte> encode(const Frame& frame, std::uint64_t payload_bytes);
// @param  bytes  of a header, as far as they are there. @errors kPermission: those of a peer that encrypts
Status check_beginning(std::span<const std::byte> bytes);
// @errors kBadInput: not a frame, or sizes beyond the limits; kVersionMismatch
Status check_header(const FrameHeader& header, std::uint32_t most_body_bytes = kMostBodyBytes);
// @errors kCorrupt
Status check_body(const FrameHeader& header, std::span<const std::byte> body);

FrameTrailer make_trailer(PayloadState state, std::uint64_t checksum);
// @errors kBadInput
Status check_trailer(const FrameTrailer& trailer);

// Appends words to a body.
class BodyWriter {
 public:
  BodyWriter& word(std::uint64_t value);
  BodyWriter& text(std::string_view value);
  BodyWriter& bytes(std::span<const std::byte> value);
  BodyWriter& words(std::span<const std::uint64_t> values);
  BodyWriter& stream(const ByteStream& value);
  BodyWriter& error(const Error& value);  // code, text
  std::vector<std::byte> take() { return std::move(body_); }

 private:
  std::vector<std::byte> body_;
};

// Reads them back. After the first fault all reads give zeros, and status() says what was wrong.
class BodyReader {
 public:
  explicit BodyReader(std::span<const std::byte> body) : rest_(body) {}

  std::uint64_t word();
  std::string text(std::uint64_t most_bytes);
  std::vector<std::byte> bytes(std::uint64_t most_bytes);
  std::vector<std::uint64_t> words(std::uint64_t most);
  ByteStream stream();
  // @return kRefused where the code is none that this engine knows
  Error error();
  // @errors kBadInput: too short, or a value out of range
  const Status& status() const { return status_; }
  // As status(), and kBadInput if bytes are left.
  Status end();

 private:
  Strided strided();
  void fail(const char* what);

  std::span<const std::byte> rest_;
  Status status_;
};

}  // namespace cachalot::transfer
