// What the environment says to libcachalot_torch.so. Sizes are written as for the command line: 64KiB,
// 1.5GB, 65536.
//
//   CACHALOT_TORCH_LIMIT            no more memory of each device than that; 0, the default: what there is
//   CACHALOT_TORCH_FRAG_LIMIT       smaller requests are stitched only in need, 2MiB
//   CACHALOT_TORCH_STITCHED_LIMIT   addresses of stitched blocks that are kept: eight times what is held, 256GiB at least
//   CACHALOT_TORCH_SMALL_REQUEST    up to that, requests are served from slabs of a chunk, 64KiB
//   CACHALOT_TORCH_PEERS            devices that reach each other's memory: 0,1,2,3; none
//   CACHALOT_TORCH_RDMA             1: network cards read and write the memory, 0
//
// What they mean for an allocation: stitch/stitch_options.h.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "stitch/stitch_options.h"

namespace cachalot::torch {

struct Settings {
  stitch::StitchOptions stitch = {};
  std::uint64_t limit_bytes = 0;
  std::vector<int> peers = {};
  bool rdma = false;
};

// @param  get  the value of a variable, null: it is not set
// @errors kInvalidArgument: names the variable, its value and what was expected
Result<Settings> read_settings(const std::function<const char*(const char*)>& get);

}  // namespace cachalot::torch
