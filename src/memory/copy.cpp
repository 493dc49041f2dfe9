#include "memory/copy.h"

namespace cachalot::memory {

const CopyKernels& copy_kernels(Isa isa) {
  // Asking the processor is a trap on virtual machines: once.
  static const Isa widest = usable_isa(Isa::kAuto);
  const Isa usable = isa == Isa::kAuto || isa > widest ? widest : isa;
  switch (usable) {
    case Isa::kAvx512:
      return kCopyAvx512;
    case Isa::kAvx2:
      return kCopyAvx2;
    default:
      return kCopySse2;
  }
}

}  // namespace cachalot::memory
