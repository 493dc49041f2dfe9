// Client::attach(), with a way to open GPUs that the caller brings: tests bring fake ones.
#pragma once

#include <cachalot/client.h>

#include "engine/gpus.h"

namespace cachalot::engine {

Result<Client> attach(const ClientOptions& options, Gpus::Open open_gpu);

}  // namespace cachalot::engine
