// Whether a keeper hangs (stopped, in a debugger, in a driver): it says that it serves, and does not.
#pragma once

#include "pool/keeper_pulse.h"
#include "pool/pool.h"

namespace cachalot::apps {

// So long without a publication: a request to such a keeper times out.
inline constexpr unsigned kHangsAfterS = 3;

// Whether the keeper has published nothing for kHangsAfterS, as far as the calls with this pulse saw it. False where no
// keeper serves. @cost does not wait
bool keeper_hangs(const pool::Pool& pool, pool::KeeperPulse& pulse);

// The same in one call. @cost some milliseconds; kHangsAfterS if it hangs
bool wait_for_keeper(const pool::Pool& pool, pool::KeeperPulse& pulse);
bool keeper_hangs(const pool::Pool& pool);

}  // namespace cachalot::apps
