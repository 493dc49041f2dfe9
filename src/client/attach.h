// Client::attach(), with a way to open GPUs that the caller brings: tests bring fake ones.
#pragma once

#include <cachalot/client.h>

#include "client/gpus.h"

namespace cachalot::client {

Result<Client> attach(const ClientOptions& options, Gpus::Open open_gpu);

}  // namespace cachalot::client
