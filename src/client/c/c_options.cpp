#include "client/c/c_options.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>

#include "base/c_boundary.h"

namespace cachalot::client {
namespace {

using base::read_struct;

Result<KvGeometry> geometry_of(const cachalot_geometry& given) {
  // The bytes after it are other fields of the outer struct
  if (given.struct_size > sizeof given) {
    return Error::make(
        Code::kInvalidArgument,
        "geometry: struct_size %u, expected at most %zu: it is part of another struct",
        given.struct_size, sizeof given);
  }
  CACHALOT_TRY_ASSIGN(const cachalot_geometry g, read_struct(&given, "geometry"));
  if (g.attention > CACHALOT_LATENT) {
    return Error::make(Code::kInvalidArgument, "geometry: attention %u is none", g.attention);
  }
  if (g.dtype > CACHALOT_I8)
    return Error::make(Code::kInvalidArgument, "geometry: dtype %u is none", g.dtype);
  KvGeometry geometry;
  geometry.layers = g.layers;
  geometry.attention = static_cast<Attention>(g.attention);
  geometry.kv_heads = g.kv_heads;
  geometry.head_dim = g.head_dim;
  geometry.kv_lora_rank = g.kv_lora_rank;
  geometry.qk_rope_head_dim = g.qk_rope_head_dim;
  geometry.dtype = static_cast<DType>(g.dtype);
  geometry.block_tokens = g.block_tokens;
  geometry.tp_rank = g.tp_rank;
  geometry.tp_size = std::max(1u, g.tp_size);
  geometry.tp_replicas = std::max(1u, g.tp_replicas);
  geometry.pp_rank = g.pp_rank;
  geometry.pp_size = std::max(1u, g.pp_size);
  return geometry;
}

std::optional<std::array<PartStrides, kParts>> strides_of(const cachalot_part_strides* given) {
  if (given == nullptr) return std::nullopt;
  std::array<PartStrides, kParts> strides;
  for (uint32_t k = 0; k < kParts; ++k) {
    const cachalot_part_strides& s = given[k];
    strides[k] = {s.tensor, s.layer_tensors, s.offset, s.layer, s.page, s.head, s.token};
  }
  return strides;
}

Status take_memory(const cachalot_cache& given, PagedCache& cache) {
  if (given.memory > CACHALOT_CUDA_MEMORY) {
    return Error::make(Code::kInvalidArgument,
                       "cache: memory %u is none, expected 0 (host) or 1 (CUDA)", given.memory);
  }
  if (given.memory == CACHALOT_CUDA_MEMORY) {
    if (given.device > INT32_MAX) {
      return Error::make(Code::kInvalidArgument, "cache: device %u is not within 0 to %d",
                         given.device, INT32_MAX);
    }
    cache.cuda_device = static_cast<int>(given.device);
  } else if (given.device != 0) {
    return Error::make(Code::kInvalidArgument,
                       "cache: device %u, of memory of the host, expected 0", given.device);
  }
  cache.cuda_stream = given.stream;
  return {};
}

}  // namespace

std::string text(const char* given, const char* otherwise) {
  return given == nullptr ? otherwise : given;
}

Result<ClientOptions> client_options_of(const cachalot_client_options* given) {
  CACHALOT_TRY_ASSIGN(const cachalot_client_options o, read_struct(given, "client options"));
  if (o.pool == nullptr) return Error::make(Code::kInvalidArgument, "client options: pool is null");
  if (o.hash > CACHALOT_XXHASH_CBOR)
    return Error::make(Code::kInvalidArgument, "client options: hash %u is none", o.hash);
  ClientOptions options;
  options.pool = {o.pool};
  options.model = text(o.model);
  options.salt = text(o.salt);
  options.block_order = text(o.block_order, options.block_order.c_str());
  CACHALOT_TRY_ASSIGN(options.geometry, geometry_of(o.geometry));
  options.share_tp = o.share_tp;
  options.hash = static_cast<HashAlgorithm>(o.hash);
  options.python_hash_seed = text(o.python_hash_seed);
  options.host = o.host;
  if (o.copy_threads != 0) options.copy_threads = o.copy_threads;
  if (o.workers != 0) options.workers = o.workers;
  if (o.grant_blocks != 0) options.grant_blocks = o.grant_blocks;
  if (o.keeper_timeout_ns != 0) options.keeper_timeout_ns = o.keeper_timeout_ns;
  if (o.recovery_ns != 0) options.recovery_ns = o.recovery_ns;
  options.record_requests = text(o.record_requests);
  options.pool_bypasses_caches = o.pool_bypasses_caches != 0;
  options.pinned_reads = o.pinned_reads != 0;
  options.allow_foreign_pool = o.allow_foreign_pool != 0;
  options.copy_cpus = text(o.copy_cpus);
  options.counts_prompts = o.counts_prompts != 0;
  options.recorded_call = o.record_loads != 0 ? RecordedCall::kLoad : RecordedCall::kLookup;
  return options;
}

Result<PagedCache> paged_cache_of(const cachalot_cache* given) {
  CACHALOT_TRY_ASSIGN(const cachalot_cache c, read_struct(given, "cache"));
  constexpr std::size_t kMostTensors = std::size_t{1} << 20;
  if (c.tensor_count > kMostTensors) {
    return Error::make(Code::kInvalidArgument, "cache: %zu tensors are more than %zu",
                       c.tensor_count, kMostTensors);
  }
  if (c.tensors == nullptr && c.tensor_count != 0)
    return Error::make(Code::kInvalidArgument, "cache: tensors: is null");
  PagedCache cache;
  cache.layout = text(c.layout);
  for (const cachalot_buffer& tensor : std::span(c.tensors, c.tensor_count))
    cache.tensors.push_back({tensor.data, tensor.bytes});
  cache.pages = c.pages;
  cache.page_tokens = c.page_tokens;
  cache.page_stride_bytes = c.page_stride_bytes;
  cache.strides = strides_of(c.strides);
  CACHALOT_TRY(take_memory(c, cache));
  return cache;
}

}  // namespace cachalot::client
