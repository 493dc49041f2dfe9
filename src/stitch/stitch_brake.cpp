#include "stitch/stitch_brake.h"

#include <algorithm>
#include <cinttypes>

namespace cachalot::stitch {
namespace {

// The addresses of the twin's blocks; no memory is there.
constexpr device_memory::Address kNowhere = device_memory::Address{1} << 40;

}  // namespace

StitchBrake::TwinRange::TwinRange(gpu::StreamId stream, bool is_small)
    : blocks(kNowhere, stream, is_small) {}

StitchBrake::TwinRange& StitchBrake::range_for(Key key) {
  if (recent_ != nullptr && recent_key_ == key) return *recent_;
  std::unique_ptr<TwinRange>& range = twin_[key];
  if (range == nullptr) range = std::make_unique<TwinRange>(key.stream, key.is_small);
  recent_ = range.get();
  recent_key_ = key;
  return *recent_;
}

device_memory::Block* StitchBrake::served(std::uint64_t bytes, gpu::StreamId stream,
                                          bool is_stitched) {
  level_ -= level_ != 0;
  if (is_stitched && stitches() < kMostStitches) level_ += free_stitch_requests_;
  TwinRange& range = range_for({stream, device_memory::ExpandableRange::is_small(bytes)});
  device_memory::Block* block = range.blocks.find(bytes);
  if (block == nullptr) block = grow(range, bytes);
  return range.blocks.take(block, bytes);
}

device_memory::Block* StitchBrake::grow(TwinRange& range, std::uint64_t bytes) {
  if (!range.aside.empty()) {
    for (device_memory::Block* const block : range.aside) {
      twin_bytes_ += block->bytes;
      device_memory::ExpandableRange::free(block);
    }
    range.aside.clear();
    if (device_memory::Block* const block = range.blocks.find(bytes); block != nullptr)
      return block;
  }
  const std::uint64_t handles = range.blocks.missing_handles(bytes);
  twin_bytes_ += handles * range.blocks.handle_bytes();
  return range.blocks.extend(handles);
}

bool StitchBrake::may_buy(std::uint64_t bytes, std::uint64_t reserved_bytes) const {
  const std::uint64_t count = stitches();
  if (count == 0 || is_full_) return false;
  if (reserved_bytes + bytes > twin_bytes_) return false;
  // A program that stitches for long may have larger pieces.
  const std::uint64_t piece = reserved_bytes / growth_piece_divisor_ *
                              std::max(count, growth_piece_divisor_) / growth_piece_divisor_;
  return bytes <= piece && bought_bytes_ + bytes <= reserved_bytes / growth_divisor_ * count;
}

void StitchBrake::released() {
  for (auto& [key, range] : twin_) {
    for (device_memory::Block* const block : range->blocks.set_aside()) {
      twin_bytes_ -= block->bytes;
      range->aside.push_back(block);
    }
  }
  bought_bytes_ = 0;
  is_full_ = false;
}

std::uint64_t StitchBrake::twin_range_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [key, range] : twin_) {
    for (const device_memory::Segment* segment : range->blocks.heap().segments())
      bytes += segment->bytes;
  }
  return bytes;
}

Status StitchBrake::check() const {
  std::uint64_t held_bytes = twin_range_bytes();
  for (const auto& [key, range] : twin_) {
    CACHALOT_TRY(range->blocks.heap().check());
    for (const device_memory::Block* block : range->aside) held_bytes -= block->bytes;
  }
  if (held_bytes == twin_bytes_) return {};
  return Error::make(Code::kCorrupt, "twin: its ranges hold %" PRIu64 " bytes, expected %" PRIu64,
                     held_bytes, twin_bytes_);
}

}  // namespace cachalot::stitch
