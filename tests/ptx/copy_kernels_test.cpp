// The copy engine on the PTX that nvcc makes of kv/cuda/kernels.cu, under the suite for all engines. What
// differs between architectures is the code, so each has its program.
#include "ptx/copy_kernels.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "kv/fused/copy_bulk.h"
#include "ptx/block.h"
#include "ptx/violation.h"
#include "testing/kv/copy_engine_suite.h"

namespace cachalot::kv {
namespace {

using memory::DomainKind;

#if CACHALOT_PTX_ARCHITECTURE >= 90
const auto kKinds = testing::Values(EngineKind::kFakeGpu, EngineKind::kFakeGpuBulk);
#else
const auto kKinds = testing::Values(EngineKind::kFakeGpu);
#endif
INSTANTIATE_TEST_SUITE_P(
    Ptx, EveryEngine,
    testing::Combine(kKinds, testing::Values(DomainKind::kCoherent, DomainKind::kNoncoherent),
                     testing::Values(memory::Isa::kAuto)),
    name_of);

// How much was run, so that silence is not taken for a pass.
class Count final : public testing::Environment {
 public:
  void TearDown() override {
    std::printf("%llu instructions of PTX for sm_%d\n",
                static_cast<unsigned long long>(ptx::instructions_run()),
                CACHALOT_PTX_ARCHITECTURE);
  }
};
[[maybe_unused]] testing::Environment* const kCount = testing::AddGlobalTestEnvironment(new Count);

// The launch's argument, as nvcc lays it out and as the host does.
TEST(PtxOfTheKernels, TakesACallOfTheHostsSize) {
  ASSERT_EQ(ptx::copy_kernels().kernels.size(), 4u);
  for (const ptx::Kernel& kernel : ptx::copy_kernels().kernels) {
    EXPECT_EQ(kernel.parameter_bytes, sizeof(FusedLaunch)) << kernel.source.name;
    ASSERT_EQ(kernel.source.parameters.size(), 1u);
    EXPECT_GE(kernel.source.parameters[0].alignment, alignof(FusedLaunch));
  }
  EXPECT_EQ(ptx::copy_kernels().target, "sm_" + std::to_string(CACHALOT_PTX_ARCHITECTURE));
}

#if CACHALOT_PTX_ARCHITECTURE < 90
// The host does not launch it there, but if it did, silence would not pass for a copy.
TEST(PtxOfTheKernels, TrapsWhereThereAreNoBulkTransfers) {
  const FusedLaunch call{};
  for (const char* const name : {"cachalot_gather_bulk", "cachalot_scatter_bulk"}) {
    const auto nowhere = [](std::uint64_t, std::uint64_t) -> std::byte* { return nullptr; };
    ptx::Shape shape;
    shape.block[0] = 32;
    EXPECT_THROW(
        ptx::launch(ptx::copy_kernels().kernel(name), shape, &call, nowhere, 1, ptx::Mood::kRandom),
        ptx::Violation);
  }
}
#endif

}  // namespace
}  // namespace cachalot::kv
