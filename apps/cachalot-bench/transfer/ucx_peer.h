// ucx_perftest (of Debian's package ucx-utils) over TCP on this machine: what UCX itself reaches.
#pragma once

#include <cachalot/result.h>

#include <cstdint>

#include "measure.h"

namespace cachalot::apps::bench {

// A stream of messages of one size, by rendezvous between two processes that sleep when nothing comes:
// ucx_perftest -t tag_bw -E sleep.
// @param cores  the receiver runs on its own one only, the sender on the other one; null: where the system says
// @return bytes per second. @errors kUnsupported: the program is not installed; kIo: it failed
Result<double> run_ucx_perftest(std::uint64_t message_bytes, std::uint64_t messages,
                                const Cores* cores = nullptr);

// There and back: ucx_perftest -t tag_lat -E sleep. @return nanoseconds. @errors as above
Result<double> run_ucx_round_trips(std::uint64_t message_bytes, std::uint64_t count);

}  // namespace cachalot::apps::bench
