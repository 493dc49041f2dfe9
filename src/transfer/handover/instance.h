// The ranks of an instance, from one rank's geometry: what the other instance needs to know for a plan.
#pragma once

#include <cachalot/result.h>
#include <cachalot/transfer.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "transfer/pair/geometry_pair.h"

namespace cachalot::transfer {

// All ranks of an instance of the model that `own` is a rank of (as a rank of `own_shape`).
// @errors kInvalidArgument: heads or layers that the shape does not divide
Result<std::vector<Rank>> ranks_of(const KvGeometry& own, const InstanceShape& own_shape,
                                   const InstanceShape& shape);

// The sizes of the model, for both sides to compare: "heads=8 head_dim=128 layers=64 dtype=bf16".
Result<std::string> model_text(const KvGeometry& own, const InstanceShape& own_shape);

// How an instance divides the model: "TP 2, PP 2, layers 24+8". It is long with many stages.
std::string division_text(const std::vector<Rank>& ranks);

// "prefill-0/3".
std::string rank_name(const std::string& instance, std::uint32_t rank);

}  // namespace cachalot::transfer
