// The allocation trace in a memory snapshot of PyTorch, as torch.cuda.memory._dump_snapshot() writes it.
//
// Of the snapshot's dict these are read, and everything else is passed over:
//
//   device_traces[device][]   action, addr, size, stream   what happened while history was recorded
//   segments[]                device, address, stream, blocks[]: size, requested_size, state, address
//
// 1. alloc allocates `size` bytes, as the program asked for them.
// 2. A free is free_completed: from then on the memory may be used again. free_requested, which comes
//    earlier where other streams use the block, is the alternative; the other one is passed over.
// 3. A block that was allocated before the recording began stands at the beginning of the trace, by
//    address: it is known because the recording frees it, or because the segments show it in use at the
//    end and the recording says nothing of it.
// 4. Streams, which are pointers, become 0, 1, 2 … in the order in which the trace names them.
//
// @source PyTorch's torch/csrc/cuda/memory_snapshot.cpp and c10/cuda/CUDACachingAllocator.cpp
#pragma once

#include <cachalot/result.h>

#include "trace/allocation/alloc_script.h"
#include "trace/allocation/pickle_value.h"
#include "trace/allocation/snapshot_recording.h"

namespace cachalot::trace {

struct ConvertedSnapshot {
  AllocScript script;
  SnapshotCounts counts;
};

// @errors kBadInput: "device_traces[0][7]: addr: what stands there and what was expected"; a block that
//         is allocated where one lives, or freed twice; kInvalidArgument: no such device, or no events of it
Result<ConvertedSnapshot> convert_snapshot(const PickleDocument& snapshot,
                                           const SnapshotOptions& options);

}  // namespace cachalot::trace
