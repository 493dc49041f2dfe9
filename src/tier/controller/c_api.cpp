// The C ABI of the tiers: implements include/cachalot/tier_c.h with include/cachalot/tier.h.
#include <cachalot/tier.h>
#include <cachalot/tier_c.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>

#include "base/c_boundary.h"
#include "client/c/c_options.h"

using namespace cachalot;  // NOLINT: this file is nothing but a translation

struct cachalot_tier {
  TieredCache cache;
  TieredCacheOptions options;  // as set last
  std::uint32_t pages_per_block = 1;
  std::mutex mutex = {};  // of options, but for what does not change
};

namespace {

using base::code_of;
using base::fail;
using base::guarded;
using base::missing;

Status set_options(TieredCacheOptions& to, const cachalot_tier_option* options, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (options[i].name == nullptr || options[i].value == nullptr)
      return Error::make(Code::kInvalidArgument, "option %zu: its name or value is null", i);
    CACHALOT_TRY(set_tier_option(to, options[i].name, options[i].value));
  }
  return {};
}

Result<TieredCacheOptions> options_of(const cachalot_cache* device,
                                      const cachalot_client_options* shared,
                                      const cachalot_tier_option* options, size_t count,
                                      const char* ranks) {
  TieredCacheOptions result;
  CACHALOT_TRY_ASSIGN(result.device, client::paged_cache_of(device));
  CACHALOT_TRY_ASSIGN(result.shared, client::client_options_of(shared));
  if (result.shared.pool[0].empty()) result.shared.pool.clear();
  CACHALOT_TRY(set_options(result, options, count));
  if (ranks != nullptr) {
    const KvGeometry& geometry = result.shared.geometry;
    CACHALOT_TRY_ASSIGN(result.ranks, join_ranks(ranks, geometry.tp_rank, geometry.tp_size));
  }
  return result;
}

cachalot_code give_pages(const std::vector<PageId>& pages, uint32_t* to, size_t room,
                         size_t* count) {
  *count = pages.size();
  std::copy_n(pages.begin(), std::min(pages.size(), room), to);
  return CACHALOT_OK;
}

// Whether the pages of so many tokens fit.
Status check_room(const cachalot_tier& tier, std::uint64_t tokens, size_t room, size_t* count) {
  const std::uint64_t block = tier.options.shared.geometry.block_tokens;
  const std::uint64_t pages =
      (tokens / block + (tokens % block != 0 ? 1 : 0)) * tier.pages_per_block;
  *count = pages;
  if (pages <= room) return {};
  return Error::make(Code::kInvalidArgument, "pages: room for %zu; expected room for %llu", room,
                     static_cast<unsigned long long>(pages));
}

}  // namespace

extern "C" {

cachalot_code cachalot_tier_make(const cachalot_cache* device,
                                 const cachalot_client_options* shared,
                                 const cachalot_tier_option* options, size_t option_count,
                                 const char* ranks, cachalot_tier** tier) {
  if (tier == nullptr) return missing("tier");
  *tier = nullptr;
  if (device == nullptr) return missing("device");
  if (shared == nullptr) return missing("shared");
  if (options == nullptr && option_count != 0) return missing("options");
  return guarded([&] {
    const Result<TieredCacheOptions> given =
        options_of(device, shared, options, option_count, ranks);
    if (!given) return fail(given.error());
    Result<TieredCache> made = TieredCache::make(*given);
    if (!made) return fail(made.error());
    const std::uint32_t block = given->shared.geometry.block_tokens;
    const std::uint32_t page = given->device.page_tokens == 0 ? block : given->device.page_tokens;
    *tier = new cachalot_tier{*std::move(made), *given, block / page};
    return CACHALOT_OK;
  });
}

void cachalot_tier_destroy(cachalot_tier* tier) {
  delete tier;
}

cachalot_code cachalot_tier_attach_pool(cachalot_tier* tier, const char* pool) {
  if (tier == nullptr) return missing("tier");
  if (pool == nullptr) return missing("pool");
  return guarded([&] {
    const std::vector<std::string> paths = {pool};
    return code_of(tier->cache.attach_pool(paths));
  });
}

cachalot_code cachalot_tier_detach_pool(cachalot_tier* tier) {
  if (tier == nullptr) return missing("tier");
  return guarded([&] { return code_of(tier->cache.detach_pool()); });
}

cachalot_code cachalot_tier_set(cachalot_tier* tier, const cachalot_tier_option* options,
                                size_t option_count) {
  if (tier == nullptr) return missing("tier");
  if (options == nullptr && option_count != 0) return missing("options");
  return guarded([&] {
    const std::lock_guard lock(tier->mutex);
    TieredCacheOptions changed = tier->options;
    const Status set = set_options(changed, options, option_count);
    if (!set) return fail(set.error());
    for (size_t i = 0; i < option_count; ++i) {
      std::string name = options[i].name;
      std::replace(name.begin(), name.end(), '-', '_');
      if (name.find("prefetch_") == std::string::npos &&
          name.find("write_policy") == std::string::npos && name != "selective_uses") {
        return fail(Error::make(Code::kUnsupported, "%s is set once, when the tiers are made",
                                name.c_str()));
      }
    }
    const Status writes = tier->cache.set_writes(changed.writes, changed.selective_uses);
    if (!writes) return fail(writes.error());
    tier->cache.set_prefetch(changed.prefetch);
    tier->options.prefetch = changed.prefetch;
    tier->options.writes = changed.writes;
    tier->options.selective_uses = changed.selective_uses;
    return CACHALOT_OK;
  });
}

cachalot_code cachalot_tier_open(cachalot_tier* tier, const uint32_t* tokens, size_t count,
                                 const void* extra, size_t extra_bytes, int32_t priority,
                                 uint64_t round, uint64_t* request) {
  if (tier == nullptr) return missing("tier");
  if (tokens == nullptr && count != 0) return missing("tokens");
  if (extra == nullptr && extra_bytes != 0) return missing("extra");
  if (request == nullptr) return missing("request");
  return guarded([&] {
    const Result<RequestId> opened =
        tier->cache.open({tokens, count}, {.extra = {static_cast<const char*>(extra), extra_bytes},
                                           .priority = priority,
                                           .round = round});
    if (!opened) return fail(opened.error());
    *request = static_cast<uint64_t>(*opened);
    return CACHALOT_OK;
  });
}

cachalot_code cachalot_tier_wait_ready(cachalot_tier* tier, uint64_t request, uint64_t timeout_ns,
                                       int* is_ready) {
  if (tier == nullptr) return missing("tier");
  return guarded([&] {
    const Result<bool> ready = tier->cache.wait_ready(RequestId{request}, timeout_ns);
    if (!ready) return fail(ready.error());
    if (is_ready != nullptr) *is_ready = *ready ? 1 : 0;
    return CACHALOT_OK;
  });
}

cachalot_code cachalot_tier_start(cachalot_tier* tier, uint64_t request,
                                  cachalot_tier_start_result* result, uint32_t* pages, size_t room,
                                  size_t* page_count) {
  if (tier == nullptr) return missing("tier");
  if (result == nullptr) return missing("result");
  if (pages == nullptr && room != 0) return missing("pages");
  if (page_count == nullptr) return missing("page_count");
  return guarded([&] {
    const Result<std::uint64_t> tokens = tier->cache.prompt_tokens(RequestId{request});
    if (!tokens) return fail(tokens.error());
    const Status fits = check_room(*tier, *tokens, room, page_count);
    if (!fits) return fail(fits.error());
    const Result<TierStart> start = tier->cache.start(RequestId{request});
    if (!start) return fail(start.error());
    *result = {start->cached_tokens, start->device_tokens, start->host_tokens,
               start->shared_tokens};
    return give_pages(start->pages, pages, room, page_count);
  });
}

cachalot_code cachalot_tier_wait_layer(cachalot_tier* tier, uint64_t request, uint32_t layer) {
  if (tier == nullptr) return missing("tier");
  return guarded([&] { return code_of(tier->cache.wait_layer(RequestId{request}, layer)); });
}

cachalot_code cachalot_tier_grow(cachalot_tier* tier, uint64_t request, uint64_t tokens,
                                 uint32_t* pages, size_t room, size_t* page_count) {
  if (tier == nullptr) return missing("tier");
  if (pages == nullptr && room != 0) return missing("pages");
  if (page_count == nullptr) return missing("page_count");
  return guarded([&] {
    const Status fits = check_room(*tier, tokens, room, page_count);
    if (!fits) return fail(fits.error());
    const Result<std::vector<PageId>> all = tier->cache.grow(RequestId{request}, tokens);
    if (!all) return fail(all.error());
    if (all->size() > room) {
      *page_count = all->size();
      return fail(Error::make(Code::kInvalidArgument, "pages: room for %zu; expected room for %zu",
                              room, all->size()));
    }
    return give_pages(*all, pages, room, page_count);
  });
}

cachalot_code cachalot_tier_commit(cachalot_tier* tier, uint64_t request, const uint32_t* tokens,
                                   size_t count) {
  if (tier == nullptr) return missing("tier");
  if (tokens == nullptr && count != 0) return missing("tokens");
  return guarded([&] { return code_of(tier->cache.commit(RequestId{request}, {tokens, count})); });
}

cachalot_code cachalot_tier_close(cachalot_tier* tier, uint64_t request) {
  if (tier == nullptr) return missing("tier");
  return guarded([&] { return code_of(tier->cache.close(RequestId{request})); });
}

cachalot_code cachalot_tier_flush(cachalot_tier* tier, uint64_t timeout_ns) {
  if (tier == nullptr) return missing("tier");
  return guarded([&] { return code_of(tier->cache.flush(timeout_ns)); });
}

cachalot_code cachalot_tier_clear(cachalot_tier* tier) {
  if (tier == nullptr) return missing("tier");
  return guarded([&] { return code_of(tier->cache.clear()); });
}

cachalot_code cachalot_tier_get_statistics(cachalot_tier* tier,
                                           cachalot_tier_statistics* statistics) {
  if (tier == nullptr) return missing("tier");
  if (statistics == nullptr) return missing("statistics");
  return guarded([&] {
    const Result<cachalot_tier_statistics> known = base::read_struct(statistics, "statistics");
    if (!known) return fail(known.error());
    const TierStatistics s = tier->cache.statistics();
    static_assert(sizeof(TierStatistics) + 8 == sizeof(cachalot_tier_statistics));
    cachalot_tier_statistics all{};
    std::memcpy(&all.requests, &s, sizeof s);
    base::write_struct(all, statistics);
    return CACHALOT_OK;
  });
}

const char* cachalot_tier_option_name(size_t index) {
  return index < tier_options().size() ? tier_options()[index].name : nullptr;
}
const char* cachalot_tier_option_values(size_t index) {
  return index < tier_options().size() ? tier_options()[index].values : nullptr;
}
const char* cachalot_tier_option_default(size_t index) {
  return index < tier_options().size() ? tier_options()[index].default_value : nullptr;
}
const char* cachalot_tier_option_meaning(size_t index) {
  return index < tier_options().size() ? tier_options()[index].meaning : nullptr;
}

}  // extern "C"
