// A model of PyTorch's expandable segments, to compare with: a range a stream and size class that
// grows at its end, so that only holes inside it are lost.
//
// 1. Requests of at most 1 MiB come from the stream's small range, which grows by 2 MiB; others from
//    its large range, which grows by 20 MiB.
// 2. Blocks are chosen and split as the caching allocator does. Where none fits, the free block at
//    the range's end, if there is one, is made large enough.
// 3. Free whole handles go back to the driver when memory cannot be had; where they were, the range
//    stays empty.
//
// @source PyTorch 2.x, c10/cuda/CUDACachingAllocator.cpp, expandable_segments:True. Differs: a hole
//         that 3 left is not filled again, the range grows instead
#pragma once

#include <map>
#include <memory>

#include "device_memory/baseline/expandable_range.h"
#include "device_memory/mapped_range.h"
#include "device_memory/tracked_allocator.h"

namespace cachalot::device_memory {

class ExpandableAllocator final : public TrackedAllocator {
 public:
  // @param range_bytes  of addresses for each range; PyTorch takes 9/8 of the device's memory
  ExpandableAllocator(Backend& backend, gpu::StreamEvents& events,
                      std::uint64_t range_bytes = std::uint64_t{1} << 40)
      : TrackedAllocator(backend, events), range_bytes_(range_bytes) {}

  const char* name() const override { return "expandable"; }

 private:
  struct Range {
    MappedRange memory;
    ExpandableRange blocks;
    Range(MappedRange range, gpu::StreamId stream, bool is_small)
        : memory(std::move(range)), blocks(memory.base(), stream, is_small) {}
  };
  struct Key {
    gpu::StreamId stream;
    bool is_small;
    auto operator<=>(const Key&) const = default;
  };

  Result<Placed> do_allocate(std::uint64_t bytes, gpu::StreamId stream) override;
  void do_free(const Placed& placed) override;
  Status do_release_cached() override;
  Status do_check() const override;
  std::uint64_t do_reserved_bytes() const override;
  std::uint64_t do_used_bytes() const override;

  Result<Range*> range_for(Key key);
  Result<Block*> expand(Range& range, std::uint64_t bytes);

  std::uint64_t range_bytes_;
  std::map<Key, std::unique_ptr<Range>> ranges_;
};

}  // namespace cachalot::device_memory
