// Names of the copy loops' instruction paths, for the names of tests.
#pragma once

#include "memory/cpu.h"

namespace cachalot::memory {

inline const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kAuto:
      return "auto";
    case Isa::kSse2:
      return "sse2";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

}  // namespace cachalot::memory
