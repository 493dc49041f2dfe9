// Client::attach() with a function that opens GPUs: tests pass one that opens fake GPUs.
#pragma once

#include <cachalot/client.h>

#include "kv/cuda/gpus.h"

namespace cachalot::client {

Result<Client> attach(const ClientOptions& options, kv::Gpus::Open open_gpu);

}  // namespace cachalot::client
