#include "gpu_patterns.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "pattern_kernels.h"

namespace cachalot::apps {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint64_t kMostThreadBlocks = 1024;

}  // namespace

Result<std::unique_ptr<GpuPatterns>> GpuPatterns::open() {
  CACHALOT_TRY_ASSIGN(std::unique_ptr<Gpu> gpu, Gpu::open(pattern_kernel_image()));
  std::unique_ptr<GpuPatterns> made(new GpuPatterns(std::move(gpu)));
  CACHALOT_TRY_ASSIGN(made->write_, made->gpu_->kernel("replay_write_pattern"));
  CACHALOT_TRY_ASSIGN(made->count_, made->gpu_->kernel("replay_count_wrong"));
  CACHALOT_TRY_ASSIGN(made->wrong_, made->gpu_->allocate(sizeof(std::uint64_t)));
  CACHALOT_TRY_ASSIGN(made->read_, made->gpu_->allocate_page_locked(sizeof(std::uint64_t)));
  return made;
}

// Waits for the kernel, too: the block may be unmapped next.
Status GpuPatterns::run(gpu::Function kernel, std::uint64_t at, std::uint64_t bytes,
                        std::uint64_t number, replay::Verify verify) {
  const std::uint64_t words = replay::pattern_words(bytes, verify);
  const std::uint64_t blocks =
      std::clamp<std::uint64_t>((words + kThreads - 1) / kThreads, 1, kMostThreadBlocks);
  gpu::DevicePointer wrong = wrong_.at();
  const std::array<void*, 5> parameters = {&at, &bytes, &number, &verify, &wrong};
  std::memset(read_.host(), 0, sizeof(std::uint64_t));
  CACHALOT_TRY(gpu_->copy(wrong, read_.at(), sizeof(std::uint64_t)));
  CACHALOT_TRY(gpu_->launch(kernel, blocks, kThreads, parameters));
  CACHALOT_TRY(gpu_->copy(read_.at(), wrong, sizeof(std::uint64_t)));
  return gpu_->synchronize();
}

Status GpuPatterns::write(std::uint64_t at, std::uint64_t bytes, std::uint64_t number,
                          replay::Verify verify) {
  return run(write_, at, bytes, number, verify);
}

Result<std::uint64_t> GpuPatterns::count_wrong(std::uint64_t at, std::uint64_t bytes,
                                               std::uint64_t number, replay::Verify verify) {
  CACHALOT_TRY(run(count_, at, bytes, number, verify));
  std::uint64_t wrong = 0;
  std::memcpy(&wrong, read_.host(), sizeof wrong);
  return wrong;
}

}  // namespace cachalot::apps
