// The active messages of UCX that engines exchange. docs/formats/transfer.md draws the bytes.
//
//   kSegment  header | data: the next bytes of the stream of frames and small payloads (FrameReader)
//   kSlice    header | encoded kChunk frame, only at offset 0 | data: bytes of a large payload
//   kVoid     header: a large payload ends before its last slice, because its owner has taken the memory back
//
// 1. `sequence` counts the messages of one direction, from 0, whatever their kind. A gap ends the link.
// 2. The first message of both sides is an empty segment. All others wait for the one of the peer.
// 3. The slices of a payload come in the order of their offsets. The last one carries the trailer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transfer/link/frame.h"

namespace cachalot::transfer {

enum class UcxMessage : std::uint16_t { kSegment = 17, kSlice = 18, kVoid = 19 };

struct SegmentHeader {
  std::uint32_t magic;
  std::uint32_t bytes;
  std::uint64_t sequence;
};
static_assert(sizeof(SegmentHeader) == 16);

struct SliceHeader {
  std::uint32_t magic;
  std::uint32_t frame_bytes;  // that follow this header
  std::uint64_t sequence;
  std::uint64_t payload;  // which one: numbers of the sender, from 1
  std::uint64_t offset, bytes;
  FrameTrailer trailer;  // of the last slice; zeros before
};
static_assert(sizeof(SliceHeader) == 56);

struct VoidHeader {
  std::uint32_t magic;
  std::uint32_t reserved;
  std::uint64_t sequence;
  std::uint64_t payload;
};
static_assert(sizeof(VoidHeader) == 24);

inline constexpr std::uint32_t kUcxMagic = 0x55465243u;  // "CRFU"

inline constexpr std::size_t kSegmentBytes = 64 << 10;  // header and data
inline constexpr std::size_t kPackedBytes = 256 << 10;  // of a slice
// Large payloads that a link has begun and not ended.
inline constexpr unsigned kMostBegun = 8;
// A kChunk frame that is larger goes through the stream, with its payload.
inline constexpr std::size_t kMostSliceFrameBytes = 1024;

}  // namespace cachalot::transfer
