// TransferRank::open() with a function that opens GPUs: tests pass one that opens fake GPUs.
#pragma once

#include <cachalot/transfer.h>

#include "kv/cuda/gpus.h"

namespace cachalot::transfer {

Result<TransferRank> open(const TransferOptions& options, const kv::Gpus::Open& open_gpu);

}  // namespace cachalot::transfer
