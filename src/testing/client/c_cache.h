// A small client and its cache by the C ABI alone, for tests of that.
#pragma once

#include <cachalot/c.h>

#include <cstddef>
#include <vector>

namespace cachalot::client {

// Two layers, four tokens a block: 2048 bytes a block.
inline cachalot_client_options small_c_options(const char* pool) {
  cachalot_client_options options{};
  options.struct_size = sizeof options;
  options.pool = pool;
  options.model = "m";
  cachalot_geometry& g = options.geometry;
  g.struct_size = sizeof g;
  g.layers = 2;
  g.kv_heads = 1;
  g.head_dim = 64;
  g.dtype = CACHALOT_F16;
  g.block_tokens = 4;
  return options;
}

// A cache of four pages in these two tensors, a layer each, of 4096 bytes.
inline cachalot_cache small_c_cache(const cachalot_buffer (&tensors)[2]) {
  cachalot_cache cache{};
  cache.struct_size = sizeof cache;
  cache.pages = 4;
  cache.layout = "vllm_bknhc";
  cache.tensors = tensors;
  cache.tensor_count = 2;
  return cache;
}

// The two tensors, in this process's memory.
class SmallTensors {
 public:
  cachalot_cache cache() const { return small_c_cache(buffers_); }

 private:
  std::vector<std::byte> memory_[2] = {std::vector<std::byte>(4096), std::vector<std::byte>(4096)};
  const cachalot_buffer buffers_[2] = {{memory_[0].data(), 4096}, {memory_[1].data(), 4096}};
};

}  // namespace cachalot::client
