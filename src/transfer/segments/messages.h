// What two endpoints say to each other about segments. Every message is checked as it is read: a peer may send anything.
//
//   other                                           owner
//   Open: name                               ──►
//                                            ◄──    Opened: number, size, access          or Refused: why not
//   Write: batch, segment, places            ──►
//                                            ◄──    Window: key                           or Refused
//   push into the window                     ──►
//   Read: batch, segment, places, own window ──►
//                                            ◄──    push into the window                  or Refused
//   Cancel: batch                            ──►    (at any time; Refused in the other direction)
//   Notice: text                             ◄─►
#pragma once

#include <cachalot/result.h>
#include <cachalot/transfer_endpoint.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "transfer/strided/byte_stream.h"

namespace cachalot::transfer {

inline constexpr std::size_t kMostSegmentNameBytes = 256;
// A fact of each endpoint.
inline constexpr const char* kVersionFact = "segments";
inline constexpr const char* kVersion = "1";

struct OpenMessage {
  std::uint64_t request = 0;
  std::string name;
};
struct OpenedMessage {
  std::uint64_t request = 0, segment = 0, bytes = 0;
  SegmentAccess access = SegmentAccess::kRead;
};
struct ReadMessage {
  std::uint64_t batch = 0, segment = 0, deadline_ns = 0;  // from now
  std::uint64_t window = 0;
  ByteStream places;  // addresses are offsets in the segment
};
struct WriteMessage {
  std::uint64_t batch = 0, segment = 0, deadline_ns = 0;
  ByteStream places;
};
struct WindowMessage {
  std::uint64_t batch = 0, window = 0;
};
struct RefusedMessage {
  std::uint64_t number =
      0;  // a request to open, or a batch: one endpoint gives them different numbers
  Error error = {};
};
struct CancelBatchMessage {
  std::uint64_t batch = 0;
};
struct NoticeMessage {
  std::string text;
};

using SegmentMessage =
    std::variant<OpenMessage, OpenedMessage, ReadMessage, WriteMessage, WindowMessage,
                 RefusedMessage, CancelBatchMessage, NoticeMessage>;

std::vector<std::byte> encode(const SegmentMessage& message);
// @errors kBadInput
Result<SegmentMessage> decode_segment_message(std::span<const std::byte> bytes);

}  // namespace cachalot::transfer
