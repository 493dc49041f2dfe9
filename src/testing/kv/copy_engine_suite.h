// For tests: the parameters of the suite for copy engines, which a program instantiates.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "testing/kv/conformance.h"
#include "testing/memory/isa_name.h"

namespace cachalot::kv {

using Setting = std::tuple<EngineKind, memory::DomainKind, memory::Isa>;

class EveryEngine : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    const memory::Isa isa = std::get<2>(GetParam());
    if (!memory::isa_available(isa)) GTEST_SKIP() << "there is no " << memory::isa_name(isa);
    std::string why;
    if (needs_gpu(std::get<0>(GetParam())) && first_gpu(&why) == nullptr) {
      GTEST_SKIP() << "there is no GPU: " << why;
    }
    if (std::get<0>(GetParam()) == EngineKind::kGpuBulk && !first_gpu()->has_bulk_copies()) {
      GTEST_SKIP() << "this GPU has no bulk transfers";
    }
    if (std::get<0>(GetParam()) == EngineKind::kGpuBatch && !first_gpu()->has_batched_copies()) {
      GTEST_SKIP() << "this driver has no batched copies";
    }
  }
};

inline std::string name_of(const testing::TestParamInfo<Setting>& of) {
  const auto [engine, domain, isa] = of.param;
  const char* const names[] = {"cpu",           "cpu_threads",    "cpu_homes",       "fake_gpu",
                               "fake_gpu_bulk", "fake_gpu_batch", "fake_gpu_copies", "gpu",
                               "gpu_bulk",      "gpu_batch",      "gpu_copies"};
  return std::string(names[static_cast<int>(engine)]) + "_" + memory::domain_name(domain) + "_" +
         memory::isa_name(isa);
}

}  // namespace cachalot::kv
