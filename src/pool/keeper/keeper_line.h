// The line by which a keeper rules, twice: readers look at the first, successors at both, so that one
// damaged or torn line forgets no epoch.
//
// The copy is written and complete before the line itself: where the line was torn by its writer's
// death, the copy is whole and says the same; where the copy was torn, the line is whole and the
// change was not announced yet.
#pragma once

#include <cstdint>

#include "pool/format/access.h"

namespace cachalot::pool {

// Both complete on return.
void publish_keeper_line(const Access& access, std::uint32_t keeper, const KeeperLine& line);

// Repairs overwritten lines. @return lines that were mended
std::uint32_t mend_keeper_line(const Access& access, std::uint32_t keeper, const KeeperLine& line);

// The newer of the two; epoch 0 if neither checks, or the area was never used.
KeeperLine read_keeper_line(const Access& access, std::uint32_t keeper);

// The highest epoch that anything else says was once ruled: what its keeper wrote into its area…
std::uint32_t newest_epoch_in_area(const Access& access, std::uint32_t keeper);
// … or into the directory. @cost the whole of it
std::uint32_t newest_epoch_in_directory(const Access& access);

}  // namespace cachalot::pool
