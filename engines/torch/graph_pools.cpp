#include "graph_pools.h"

#include <algorithm>
#include <cinttypes>

namespace cachalot::torch {

void GraphPools::begin(PoolId id) {
  const std::lock_guard lock(mutex_);
  Pool& pool = pools_[id];
  ++pool.begun;
  ++pool.open;
  has_pools_.store(true, std::memory_order_release);  // read in note() and keep()
}

void GraphPools::end(PoolId id) {
  const std::lock_guard lock(mutex_);
  const auto pool = pools_.find(id);
  if (pool != pools_.end() && pool->second.open > 0) --pool->second.open;
}

bool GraphPools::has_open() {
  const std::lock_guard lock(mutex_);
  return std::any_of(pools_.begin(), pools_.end(),
                     [](const auto& each) { return each.second.open > 0; });
}

std::vector<device_memory::Address> GraphPools::release(PoolId id) {
  std::vector<device_memory::Address> freed;
  const std::lock_guard lock(mutex_);
  const auto pool = pools_.find(id);
  if (pool == pools_.end() || --pool->second.begun > 0) return freed;
  pools_.erase(pool);
  for (auto each = noted_.begin(); each != noted_.end();) {
    std::vector<PoolId>& pools = each->second.pools;
    std::erase(pools, id);
    if (!pools.empty()) {
      ++each;
      continue;
    }
    if (each->second.is_freed) freed.push_back(each->first);
    each = noted_.erase(each);
  }
  has_pools_.store(!pools_.empty(), std::memory_order_release);
  return freed;
}

void GraphPools::note(device_memory::Address address) {
  if (!has_pools_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  std::vector<PoolId> open;
  for (const auto& [id, pool] : pools_) {
    if (pool.open > 0) open.push_back(id);
  }
  if (!open.empty()) noted_[address] = {.pools = std::move(open), .is_freed = false};
}

Result<bool> GraphPools::keep(device_memory::Address address) {
  if (!has_pools_.load(std::memory_order_acquire)) return false;
  const std::lock_guard lock(mutex_);
  const auto noted = noted_.find(address);
  if (noted == noted_.end()) return false;
  if (noted->second.is_freed) {
    return Error::make(Code::kInvalidArgument,
                       "free: 0x%" PRIx64
                       ", expected an address that is allocated, and it was freed "
                       "and waits for a graph",
                       address);
  }
  noted->second.is_freed = true;
  return true;
}

}  // namespace cachalot::torch
