// The flag --metrics of `cachalot serve`.
#pragma once

#include <memory>
#include <string>

#include "flags.h"
#include "node/metrics/metrics_server.h"
#include "pool_flags.h"

namespace cachalot::apps {

using Metrics = std::unique_ptr<node::MetricsServer>;  // null: not wanted

void add_metrics_flag(Command& command, std::string& address);

// Listens at `address`, which gets the port that was found. "": does nothing.
// @errors kInvalidArgument, kBusy, kPermission, kIo
Result<Metrics> listen_for_metrics(std::string& address, const Paths& paths);

// " metrics=ADDRESS" for a line that says what the process does; "" where no metrics are wanted.
std::string metrics_field(const std::string& address);

}  // namespace cachalot::apps
