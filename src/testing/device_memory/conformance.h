// For tests: every backend, to run one suite against all of them; a GPU in a program of its own
// (CACHALOT_ON_GPU), which says what it skips.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "device_memory/cuda/cuda_backend.h"
#include "device_memory/memfd/memfd_backend.h"
#include "device_memory/model/model_backend.h"
#include "testing/gpu/fake_gpu.h"

namespace cachalot::device_memory {

enum class Subject { kModel, kHugetlb, kTmpfs, kCollapse, kSmall, kCudaOnFakeGpu, kCudaOnGpu };

#ifdef CACHALOT_ON_GPU
inline const auto kSubjects = testing::Values(Subject::kCudaOnGpu);
#else
inline const auto kSubjects =
    testing::Values(Subject::kModel, Subject::kHugetlb, Subject::kTmpfs, Subject::kCollapse,
                    Subject::kSmall, Subject::kCudaOnFakeGpu);
#endif

inline std::string subject_name(const testing::TestParamInfo<Subject>& of) {
  switch (of.param) {
    case Subject::kModel:
      return "model";
    case Subject::kHugetlb:
      return "memfd_hugetlb";
    case Subject::kTmpfs:
      return "memfd_tmpfs";
    case Subject::kCollapse:
      return "memfd_collapse";
    case Subject::kSmall:
      return "memfd_small";
    case Subject::kCudaOnFakeGpu:
      return "cuda_on_fake_gpu";
    case Subject::kCudaOnGpu:
      return "cuda_on_gpu";
  }
  return "unknown";
}

// A backend, and what it stands on.
class Rig {
 public:
  explicit Rig(Subject subject) {
    if (subject == Subject::kModel) {
      backend_ = *ModelBackend::open();
    } else if (subject == Subject::kCudaOnFakeGpu) {
      machine_ = std::make_unique<gpu::FakeMachine>();
      backend_ = *CudaBackend::open(machine_->driver(), {});
    } else if (subject == Subject::kCudaOnGpu) {
      // A context takes some fraction of a second to make, and would end with each backend.
      static const auto* const keeps_the_context = new auto(CudaBackend::open());
      (void)keeps_the_context;
      auto opened = CudaBackend::open();
      if (opened) {
        backend_ = *std::move(opened);
      } else {
        missing_ = opened.error().message;
      }
    } else {
      open_memfd(subject);
    }
  }
  // A call that the driver refused is a rule that the book forgot; what is left is a leak.
  ~Rig() {
    backend_.reset();
    if (!machine_) return;
    EXPECT_EQ(machine_->refused, 0u);
    EXPECT_EQ(machine_->ranges() + machine_->handles() + machine_->mappings(), 0u);
  }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  // Null: this machine has it not, for this reason.
  Backend* backend() const { return backend_.get(); }
  const std::string& missing() const { return missing_; }
  // Its addresses are those of this process.
  bool has_bytes() const { return has_bytes_; }

 private:
  void open_memfd(Subject subject) {
    const PageSource source = subject == Subject::kHugetlb    ? PageSource::kHugetlb
                              : subject == Subject::kTmpfs    ? PageSource::kTmpfs
                              : subject == Subject::kCollapse ? PageSource::kCollapse
                                                              : PageSource::kSmall;
    auto opened = MemfdBackend::open({.source = source, .tmpfs_directory = "/dev/shm"});
    if (opened) {
      backend_ = *std::move(opened);
      has_bytes_ = true;
    } else {
      missing_ = opened.error().message;
    }
  }

  std::unique_ptr<gpu::FakeMachine> machine_;
  std::unique_ptr<Backend> backend_;
  std::string missing_;
  bool has_bytes_ = false;
};

// What a backend says about itself; a call that is refused must not change it.
struct Totals {
  explicit Totals(const Backend& backend)
      : counts(backend.counts()),
        physical_bytes(backend.physical_bytes()),
        reserved_bytes(backend.reserved_bytes()),
        mapped_bytes(backend.mapped_bytes()) {}
  bool operator==(const Totals&) const = default;

  CallCounts counts;
  std::uint64_t physical_bytes, reserved_bytes, mapped_bytes;
};

}  // namespace cachalot::device_memory
