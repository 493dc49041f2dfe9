// The devices that a growable pool got after it was made, as a keeper finds them before it rules.
#pragma once

#include <cachalot/result.h>

#include "pool/format/access.h"

namespace cachalot::pool {

// All of them, as the last keeper named them, are mapped here now. Writes nothing, so a keeper that does not begin changes
// nothing: the blocks on a device are there when the device is.
// @errors kIo: one cannot be mapped, or the last keeper's list of them cannot be read
// @cost   the lines of all keepers; where a device is not mapped yet, its opening
Status check_added_devices(const Access& access);

}  // namespace cachalot::pool
