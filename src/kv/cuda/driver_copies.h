// The driver's copies of a call: no multiprocessor is used. Runs that touch on both sides become one copy. Copies go
// to the driver one a call, or many (cuMemcpyBatchAsync, CUDA 12.8).
//
// 1. No copy crosses the border of two tensors or of two registrations, even if they touch: the driver refuses a copy
//    that lies in several.
// 2. Copies of one batch may run in any order, batches run in the stream's order. Targets are written in the stream's
//    order, whatever the order of the sources.
// 3. Sources of a gather are read in the stream's order: kernels earlier in the stream write the pages.
//    Sources of a scatter may be read at any time from add() to the end of the copy, also before earlier work of the
//    stream has ended. That is safe because nothing of this stream writes them: a scatter reads blocks that are
//    published, and a block is published only after its writer has waited for its copies. The reader has looked the
//    blocks up and flushed their lines (R3) before add(), and validates them (R6), or unpins them, after the event.
//    So each read is between the two, as in stream order. The processor's stores before add() are visible to the device.
//
// @threads one
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <vector>

#include "kv/cuda/cuda_device.h"
#include "kv/fragment.h"
#include "memory/copy_run.h"

namespace cachalot::kv {

class DriverCopies {
 public:
  // The calling thread has entered the device.
  // @param at_once  the most copies in a call of the driver's, if `stream` is not the legacy one (the first call has
  //                 fewer, kFirstBatchCopies); 0: one, and not as a batch
  DriverCopies(const CudaDevice& device, gpu::Stream stream, Direction direction,
               std::uint32_t at_once);

  // @param pool    registered
  // @param tensor  which one `device` is an address of
  // @cost  10 ns (estimate), and what the driver takes
  void add(const memory::Extent& pool, std::uint32_t tensor, std::uint64_t device);
  // Submits the rest. @errors the driver's, of all copies: the first, with the copy that was refused
  Status finish();

 private:
  void close_run();
  Status submit();
  Error error_of(int result, std::size_t failed) const;

  const CudaDevice& device_;
  const gpu::Stream stream_;
  const bool gathers_;
  const std::uint32_t at_once_;
  std::uint32_t next_at_once_;
  memory::Extent run_{};  // not among the copies yet
  std::uint32_t run_tensor_ = 0;
  std::uint64_t run_device_ = 0;
  std::vector<gpu::DevicePointer> to_, from_;
  std::vector<std::size_t> bytes_;
  Status status_;
};

}  // namespace cachalot::kv
