// Client::attach() with a function that opens GPUs: tests pass one that opens fake GPUs.
#pragma once

#include <cachalot/client.h>

#include "client/gpu/gpus.h"

namespace cachalot::client {

Result<Client> attach(const ClientOptions& options, Gpus::Open open_gpu);

}  // namespace cachalot::client
