// The copy engines that need no GPU, under the suite for all of them.
#include "testing/kv/copy_engine_suite.h"

namespace cachalot::kv {
namespace {

using memory::DomainKind;

INSTANTIATE_TEST_SUITE_P(
    Real, EveryEngine,
    testing::Combine(
        testing::Values(EngineKind::kCpu, EngineKind::kCpuThreads, EngineKind::kCpuHomes),
        testing::Values(DomainKind::kCoherent, DomainKind::kNoncoherent, DomainKind::kMixed),
        testing::Values(memory::Isa::kAvx512, memory::Isa::kAvx2, memory::Isa::kSse2)),
    name_of);
// How the host copies is nothing to a GPU.
INSTANTIATE_TEST_SUITE_P(
    FakeGpu, EveryEngine,
    testing::Combine(testing::Values(EngineKind::kFakeGpu, EngineKind::kFakeGpuBulk,
                                     EngineKind::kFakeGpuBatch, EngineKind::kFakeGpuCopies),
                     testing::Values(DomainKind::kCoherent, DomainKind::kNoncoherent,
                                     DomainKind::kMixed),
                     testing::Values(memory::Isa::kAuto)),
    name_of);
INSTANTIATE_TEST_SUITE_P(Lossy, EveryEngine,
                         testing::Values(Setting{EngineKind::kCpu, DomainKind::kLossy,
                                                 memory::Isa::kAuto}),
                         name_of);

}  // namespace
}  // namespace cachalot::kv
