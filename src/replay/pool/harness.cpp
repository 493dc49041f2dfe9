#include "replay/pool/harness.h"

#include <new>

namespace cachalot::replay {

Result<Harness> Harness::make() {
  CACHALOT_TRY_ASSIGN(os::SharedFile file,
                      os::SharedFile::create("memfd:cachalot-replay-state", sizeof(HarnessState),
                                             {.huge_pages = false}));
  CACHALOT_TRY_ASSIGN(os::Mapping mapping, file.map({.dont_fork = false, .huge_pages = false}));
  new (mapping.data()) HarnessState();
  return Harness(std::move(file), std::move(mapping));
}

}  // namespace cachalot::replay
