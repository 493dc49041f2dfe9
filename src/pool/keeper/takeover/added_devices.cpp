#include "pool/keeper/takeover/added_devices.h"

#include <optional>

#include "pool/expansion/expansion_memory.h"
#include "pool/keeper/predecessor.h"

namespace cachalot::pool {

Status check_added_devices(const Access& access) {
  if (access.expansions == nullptr) return {};
  const Predecessor predecessor = find_predecessor(access);
  if (predecessor.epoch == 0) return {};  // nothing was added, or nothing of the pool is left
  const std::optional<ExpansionTable> table =
      read_table(access, predecessor.area, predecessor.epoch);
  if (!table) {
    return Error::make(Code::kIo,
                       "the last keeper's list of added devices cannot be read: give them up, with "
                       "their blocks, by --without-lost-devices; `cachalot pool grow` adds them "
                       "again");
  }
  Status why_not;
  if (access.expansions->map(access, table->expansions, why_not) == table->expansions.size())
    return {};
  return Error::make(
      Code::kIo,
      "an added device cannot be used (put it back, or give it up, with its blocks, by "
      "--without-lost-devices): %.130s",
      why_not.error().message);
}

}  // namespace cachalot::pool
