// The copy engine on a real GPU, under the suite for all of them. Skipped, with the reason, where there
// is none.
#include "testing/kv/copy_engine_suite.h"

namespace cachalot::kv {
namespace {

using memory::DomainKind;

INSTANTIATE_TEST_SUITE_P(
    Gpu, EveryEngine,
    testing::Combine(testing::Values(EngineKind::kGpu, EngineKind::kGpuBulk, EngineKind::kGpuBatch,
                                     EngineKind::kGpuCopies),
                     testing::Values(DomainKind::kCoherent, DomainKind::kNoncoherent),
                     testing::Values(memory::Isa::kAuto)),
    name_of);

}  // namespace
}  // namespace cachalot::kv
