// Where the fields of the C ABI's structs end, of those that say how much of them their caller knows: what a
// caller knows ends where a field does.
#pragma once

#include <cachalot/c.h>
#include <cachalot/layerwise.h>
#include <cachalot/tier_c.h>
#include <cachalot/torch.h>
#include <cachalot/vmm.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace cachalot::base {

// Of fields in order that leave no gaps, from their types.
template <class T, class... Field>
constexpr auto ends_of(Field T::*...) {
  std::array<std::uint32_t, sizeof...(Field)> ends{};
  std::uint32_t at = 0;
  std::size_t i = 0;
  ((ends[i++] = at += static_cast<std::uint32_t>(sizeof(Field))), ...);
  return ends;
}

template <class T>
struct FieldEnds;  // of which T: all of its fields

template <>
struct FieldEnds<cachalot_geometry> {
  using S = cachalot_geometry;
  static constexpr auto kAll =
      ends_of(&S::struct_size, &S::layers, &S::attention, &S::kv_heads, &S::head_dim,
              &S::kv_lora_rank, &S::qk_rope_head_dim, &S::dtype, &S::block_tokens, &S::tp_rank,
              &S::tp_size, &S::tp_replicas, &S::pp_rank, &S::pp_size);
};

template <>
struct FieldEnds<cachalot_keeper_options> {
  using S = cachalot_keeper_options;
  static constexpr auto kAll =
      ends_of(&S::struct_size, &S::clients, &S::pool, &S::block_bytes, &S::capacity_blocks,
              &S::domain, &S::policy, &S::allow_foreign_pool, &S::keep_pool, &S::size_bytes,
              &S::without_lost_devices, &S::reserved);
};

template <>
struct FieldEnds<cachalot_client_options> {
  using S = cachalot_client_options;
  static constexpr auto kAll = ends_of(
      &S::struct_size, &S::host, &S::pool, &S::model, &S::salt, &S::block_order, &S::geometry,
      &S::hash, &S::copy_threads, &S::workers, &S::grant_blocks, &S::python_hash_seed,
      &S::keeper_timeout_ns, &S::recovery_ns, &S::record_requests, &S::record_loads, &S::reserved,
      &S::pool_bypasses_caches, &S::pinned_reads, &S::allow_foreign_pool, &S::reserved2,
      &S::share_tp, &S::counts_prompts, &S::copy_cpus);
};

template <>
struct FieldEnds<cachalot_cache> {
  using S = cachalot_cache;
  static constexpr auto kAll = ends_of(
      &S::struct_size, &S::pages, &S::layout, &S::tensors, &S::tensor_count, &S::page_tokens,
      &S::reserved, &S::page_stride_bytes, &S::memory, &S::device, &S::stream, &S::strides);
};

template <>
struct FieldEnds<cachalot_statistics> {
  using S = cachalot_statistics;
  static constexpr auto kAll = ends_of(
      &S::struct_size, &S::reserved, &S::lookups, &S::looked_up_blocks, &S::hit_blocks, &S::loads,
      &S::loaded_blocks, &S::loaded_bytes, &S::stores, &S::stored_blocks, &S::stored_bytes,
      &S::duplicate_blocks, &S::stale_blocks, &S::damaged_blocks, &S::reattachments,
      &S::copied_bytes, &S::prompts, &S::prompt_blocks, &S::used_pool_blocks, &S::used_peer_blocks,
      &S::used_storage_blocks, &S::gpu_threads_bytes, &S::gpu_bulk_bytes, &S::gpu_batch_bytes,
      &S::gpu_copy_engine_bytes);
};

template <>
struct FieldEnds<cachalot_vmm_options> {
  using S = cachalot_vmm_options;
  static constexpr auto kAll =
      ends_of(&S::struct_size, &S::layers, &S::part_bytes, &S::max_tokens, &S::device, &S::layout,
              &S::chunk_bytes, &S::limit_bytes, &S::budget, &S::guaranteed_bytes, &S::ready_bytes,
              &S::idle_bytes, &S::copy, &S::copy_context);
};

template <>
struct FieldEnds<cachalot_vmm_statistics> {
  using S = cachalot_vmm_statistics;
  static constexpr auto kAll =
      ends_of(&S::struct_size, &S::ranges, &S::physical_bytes, &S::used_bytes, &S::idle_bytes,
              &S::ready_bytes, &S::stuck_bytes, &S::shared_bytes, &S::shared_total_bytes,
              &S::copied_bytes, &S::asked_bytes, &S::prepared, &S::waits, &S::wait_ns, &S::creates,
              &S::maps, &S::accesses, &S::unmaps);
};

template <>
struct FieldEnds<cachalot_tier_statistics> {
  using S = cachalot_tier_statistics;
  static constexpr auto kAll = ends_of(
      &S::struct_size, &S::reserved, &S::requests, &S::prompt_tokens, &S::device_tokens,
      &S::host_tokens, &S::shared_tokens, &S::device_blocks, &S::free_device_blocks,
      &S::host_blocks, &S::free_host_blocks, &S::evicted_device_blocks, &S::evicted_host_blocks,
      &S::demoted_blocks, &S::loaded_bytes, &S::backed_up_bytes, &S::fetched_bytes,
      &S::unused_fetched_bytes, &S::written_bytes, &S::unwritten_blocks, &S::fetches,
      &S::skipped_fetches, &S::recomputed_tokens, &S::ready_wait_ns, &S::layer_wait_ns);
};

template <>
struct FieldEnds<cachalot_layerwise_options> {
  using S = cachalot_layerwise_options;
  static constexpr auto kAll = ends_of(&S::struct_size, &S::layers, &S::part_bytes, &S::max_tokens,
                                       &S::resident, &S::device, &S::layout, &S::chunk_bytes,
                                       &S::limit_bytes, &S::host_bytes, &S::copy, &S::copy_context);
};

template <>
struct FieldEnds<cachalot_layerwise_statistics> {
  using S = cachalot_layerwise_statistics;
  static constexpr auto kAll =
      ends_of(&S::struct_size, &S::requests, &S::resident, &S::device_bytes, &S::peak_device_bytes,
              &S::all_bytes, &S::host_bytes, &S::offloads, &S::offloaded_bytes, &S::offload_ns,
              &S::loads, &S::loaded_bytes, &S::load_ns, &S::map_ns, &S::waits, &S::wait_ns,
              &S::step_ns, &S::step_wait_ns);
};

template <>
struct FieldEnds<cachalot_torch_statistics> {
  using S = cachalot_torch_statistics;
  static constexpr auto kAll = ends_of(
      &S::struct_size, &S::is_open, &S::allocations, &S::frees, &S::live_bytes, &S::peak_live_bytes,
      &S::reserved_bytes, &S::peak_reserved_bytes, &S::stitches, &S::stitched_range_bytes,
      &S::driver_allocations, &S::refused, &S::device_bytes, &S::limit_bytes);
};

}  // namespace cachalot::base
