#include "memory/cpu.h"

#include <cpuid.h>

namespace cachalot::memory {

bool isa_available(Isa isa) {
  __builtin_cpu_init();  // looks at XGETBV too: registers the system does not save do not count
  switch (isa) {
    case Isa::kAuto:
    case Isa::kSse2:
      return true;
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2");
    case Isa::kAvx512:
      return __builtin_cpu_supports("avx512f");
  }
  return false;
}

Isa usable_isa(Isa isa) {
  if ((isa == Isa::kAuto || isa == Isa::kAvx512) && isa_available(Isa::kAvx512)) {
    return Isa::kAvx512;
  }
  if (isa != Isa::kSse2 && isa_available(Isa::kAvx2)) return Isa::kAvx2;
  return Isa::kSse2;
}

bool has_clflushopt() {
  constexpr unsigned kClflushOptBit = 1u << 23;  // CPUID leaf 7, EBX
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ebx & kClflushOptBit) != 0;
}

}  // namespace cachalot::memory
