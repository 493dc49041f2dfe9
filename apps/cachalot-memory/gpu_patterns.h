// The patterns of a replay, written and counted by a GPU in memory of its own.
#pragma once

#include <cachalot/result.h>

#include <memory>

#include "gpu.h"
#include "replay/pattern/block_pattern.h"

namespace cachalot::apps {

// @threads belongs to the one that made it
// @cost    a launch and the wait for it each time, 20 us (estimate), and the bytes once
class GpuPatterns final : public replay::PatternMemory {
 public:
  // On the first device. @errors kUnsupported: no GPU, or a binary without kernels; the driver's
  static Result<std::unique_ptr<GpuPatterns>> open();

  Status write(std::uint64_t at, std::uint64_t bytes, std::uint64_t number,
               replay::Verify verify) override;
  Result<std::uint64_t> count_wrong(std::uint64_t at, std::uint64_t bytes, std::uint64_t number,
                                    replay::Verify verify) override;

 private:
  explicit GpuPatterns(std::unique_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}

  Status run(gpu::Function kernel, std::uint64_t at, std::uint64_t bytes, std::uint64_t number,
             replay::Verify verify);

  const std::unique_ptr<Gpu> gpu_;
  gpu::Function write_ = nullptr, count_ = nullptr;
  GpuMemory wrong_;  // the count, where kernels add to it
  GpuMemory read_;   // and where the host reads it
};

}  // namespace cachalot::apps
