// The ways of copying the blocks of a call between a GPU and the pool that `bench cuda` compares: ours,
// and what others do. All are measured in turns, from the call to the end of its stream.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cuda_device.h"
#include "measure.h"

namespace cachalot::apps::bench {

// What one call copies.
struct CudaCall {
  Model model;
  std::uint32_t blocks = 1;
  kv::Direction direction = kv::Direction::kGather;
  std::uint32_t every_nth = 1;  // token of each block; 1: all, as whole blocks

  std::uint64_t bytes() const { return blocks * model.geometry.block_bytes() / every_nth; }
  std::string name() const;  // "gather/Qwen3-32B/16/x32"
};

inline const char* direction_name(kv::Direction direction) {
  return direction == kv::Direction::kGather ? "gather" : "scatter";
}

struct Measured {
  std::string way;
  std::vector<double> us;
  double median_us() const { return median_of(us); }
};

// Of a call, by all ways that this GPU, this driver and this call have. Names: threads, bulk, chosen,
// chosen_copied_tables (of one block), chosen_flushed (the noncoherent domain), batch, memcpy_each,
// memcpy_batch (all copies in one call, their list is made before), warp_per_token (SGLang's two thread
// blocks), warp_per_token_8; last flat: as many bytes in one copy of the driver's.
// @errors the driver's
Result<std::vector<Measured>> measure_ways(const Settings& settings, kv::CudaDevice& device,
                                           const CudaCall& call);
// Of those, by name; null: it was not measured.
const Measured* find_way(const std::vector<Measured>& ways, const std::string& name);

// The same call by one engine of these options, and by another, in turns.
Result<std::vector<Measured>> measure_options(const Settings& settings, kv::CudaDevice& device,
                                              const CudaCall& call,
                                              std::span<const kv::CudaOptions> options);

}  // namespace cachalot::apps::bench
