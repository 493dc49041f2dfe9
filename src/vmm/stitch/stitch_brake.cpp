#include "vmm/stitch/stitch_brake.h"

#include <algorithm>
#include <cinttypes>

namespace cachalot::vmm {
namespace {

// Where the twin's blocks are said to lie: nobody goes there.
constexpr Address kNowhere = Address{1} << 40;

}  // namespace

ExpandableRange& StitchBrake::range_for(Key key) {
  if (recent_ != nullptr && recent_key_ == key) return *recent_;
  std::unique_ptr<ExpandableRange>& range = twin_[key];
  if (range == nullptr)
    range = std::make_unique<ExpandableRange>(kNowhere, key.stream, key.is_small);
  recent_ = range.get();
  recent_key_ = key;
  return *recent_;
}

Block* StitchBrake::served(std::uint64_t bytes, Stream stream, bool is_stitched) {
  level_ -= level_ != 0;
  if (is_stitched) level_ += free_stitch_requests_;
  ExpandableRange& range = range_for({stream, ExpandableRange::is_small(bytes)});
  Block* block = range.find(bytes);
  if (block == nullptr) {
    const std::uint64_t handles = range.missing_handles(bytes);
    twin_bytes_ += handles * range.handle_bytes();
    block = range.extend(handles);
  }
  return range.take(block, bytes);
}

bool StitchBrake::may_buy(std::uint64_t bytes, std::uint64_t reserved_bytes) const {
  const std::uint64_t count = stitches();
  if (count == 0 || is_full_) return false;
  if (reserved_bytes + bytes > twin_bytes_) return false;
  // Who goes on for long may have larger pieces.
  const std::uint64_t piece = reserved_bytes / growth_piece_divisor_ *
                              std::max(count, growth_piece_divisor_) / growth_piece_divisor_;
  return bytes <= piece && bought_bytes_ + bytes <= reserved_bytes / growth_divisor_ * count;
}

void StitchBrake::released() {
  for (auto& [key, range] : twin_) {
    range->release_free([&](std::uint64_t first, std::uint64_t end) {
      twin_bytes_ -= (end - first) * range->handle_bytes();
    });
  }
  bought_bytes_ = 0;
  is_full_ = false;
}

Status StitchBrake::check() const {
  std::uint64_t used_bytes = 0;
  for (const auto& [key, range] : twin_) {
    CACHALOT_TRY(range->heap().check());
    used_bytes += range->heap().used_bytes();
  }
  if (used_bytes <= twin_bytes_) return {};
  return Error::make(Code::kCorrupt, "twin: %" PRIu64 " bytes are used of %" PRIu64, used_bytes,
                     twin_bytes_);
}

}  // namespace cachalot::vmm
