// The C ABI: implements include/cachalot/c.h with include/cachalot/client.h.
#include <cachalot/c.h>
#include <cachalot/client.h>
#include <cachalot/keeper.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>

#include "base/c_boundary.h"
#include "client/c/c_options.h"

using namespace cachalot;  // NOLINT: this file is nothing but a translation

struct cachalot_client {
  Client client;
};
struct cachalot_keeper {
  EmbeddedKeeper keeper;
};
struct cachalot_layer_load {
  Client::LayerLoad load;
};
struct cachalot_layer_store {
  Client::LayerStore store;
};

namespace {

static_assert(static_cast<int>(Code::kInvalidArgument) == CACHALOT_INVALID_ARGUMENT);
static_assert(static_cast<int>(Code::kStale) == CACHALOT_STALE);
static_assert(static_cast<int>(Code::kNoKeeper) == CACHALOT_NO_KEEPER);
static_assert(static_cast<int>(Code::kTimeout) == CACHALOT_TIMEOUT);
static_assert(static_cast<int>(Code::kInternal) == CACHALOT_INTERNAL);
static_assert(static_cast<int>(Code::kCancelled) == CACHALOT_CANCELLED);
static_assert(sizeof(cachalot_block_hash) == sizeof(BlockHash) &&
              alignof(cachalot_block_hash) == alignof(BlockHash));
static_assert(sizeof(cachalot_token_range) == sizeof(TokenRange));
static_assert(sizeof(cachalot_buffer) == sizeof(Buffer) &&
              alignof(cachalot_buffer) == alignof(Buffer));

using base::code_of;
using base::fail;
using base::guarded;
using base::missing;
using base::read_struct;
using base::write_struct;
using client::text;

// Writes the value to *to unless `to` is null.
template <class T, class U>
cachalot_code give(const Result<T>& result, U* to) {
  if (!result) return fail(result.error());
  if (to != nullptr) *to = static_cast<U>(*result);
  return CACHALOT_OK;
}

// Whether the error's detail is the number of finished leading blocks.
bool says_how_many(const Error& error) {
  return error.code == Code::kTimeout || error.code == Code::kCancelled;
}

cachalot_code give_loaded(const Result<std::size_t>& loaded, size_t* blocks) {
  if (!loaded && blocks != nullptr && says_how_many(loaded.error()))
    *blocks = loaded.error().detail;
  return give(loaded, blocks);
}

thread_local cachalot_code last_reason = CACHALOT_OK;

void keep_reason(const std::optional<Code>& reason) {
  last_reason = reason ? static_cast<cachalot_code>(*reason) : CACHALOT_OK;
}

// Clears the outputs of a store.
void give_nothing(size_t* blocks) {
  keep_reason(std::nullopt);
  if (blocks != nullptr) *blocks = 0;
}

cachalot_code give_blocks(const Result<Stored>& stored, size_t* blocks) {
  keep_reason(stored ? stored->reason : std::nullopt);
  if (blocks != nullptr) {
    *blocks = stored ? stored->blocks : says_how_many(stored.error()) ? stored.error().detail : 0;
  }
  return stored ? CACHALOT_OK : fail(stored.error());
}

std::span<const BlockHash> hashes_of(const cachalot_block_hash* hashes, size_t count) {
  return {reinterpret_cast<const BlockHash*>(hashes), hashes == nullptr ? 0 : count};
}
const BlockHash* parent_of(const cachalot_block_hash* parent) {
  return reinterpret_cast<const BlockHash*>(parent);
}
std::span<const PageId> pages_of(const uint32_t* pages, size_t count) {
  return {pages, pages == nullptr ? 0 : count};
}
std::span<const Buffer> buffers_of(const cachalot_buffer* parts, size_t count) {
  return {reinterpret_cast<const Buffer*>(parts), parts == nullptr ? 0 : count};
}
std::string_view key_of(const cachalot_key& key) {
  return {static_cast<const char*>(key.data), key.data == nullptr ? 0 : key.bytes};
}

CopyOptions within(uint64_t timeout_ns) {
  CopyOptions options;
  options.timeout_ns = timeout_ns;
  return options;
}

// The argument that a load or store of blocks needs and that is null; null: none.
const char* missing_of(const cachalot_client* client, const cachalot_block_hash* hashes,
                       size_t count, const uint32_t* pages, size_t page_count) {
  if (client == nullptr) return "client";
  if (hashes == nullptr && count != 0) return "hashes";
  if (pages == nullptr && page_count != 0) return "pages";
  return nullptr;
}

cachalot_code begin_load(cachalot_client* client, uint32_t cache_id,
                         const cachalot_block_hash* hashes, size_t count, const uint32_t* pages,
                         size_t page_count, const LayerOptions& options, cachalot_layer_load** load,
                         size_t* blocks) {
  return guarded([&] {
    if (const char* const name = missing_of(client, hashes, count, pages, page_count))
      return missing(name);
    if (load == nullptr) return missing("load");
    *load = nullptr;
    Result<Client::LayerLoad> begun = client->client.begin_load(
        CacheId{cache_id}, hashes_of(hashes, count), pages_of(pages, page_count), options);
    if (!begun) return fail(begun.error());
    if (blocks != nullptr) *blocks = begun->blocks();
    *load = new cachalot_layer_load{*std::move(begun)};
    return CACHALOT_OK;
  });
}

// Starts an asynchronous copy by begin(hashes, pages), which returns its token.
template <class Begin>
cachalot_code start(cachalot_client* client, const cachalot_block_hash* hashes, size_t count,
                    const uint32_t* pages, size_t page_count, uint64_t* token, Begin&& begin) {
  return guarded([&] {
    if (const char* const name = missing_of(client, hashes, count, pages, page_count)) {
      return missing(name);
    }
    if (token == nullptr) return missing("token");
    return give(begin(hashes_of(hashes, count), pages_of(pages, page_count)), token);
  });
}

}  // namespace

extern "C" {

const char* cachalot_code_name(cachalot_code code) {
  if (code == CACHALOT_OK) return "ok";
  if (code < CACHALOT_INVALID_ARGUMENT || code > CACHALOT_CANCELLED) return "unknown";
  return code_name(static_cast<Code>(code));
}

const char* cachalot_last_message(void) {
  return base::last_failure();
}
uint32_t cachalot_abi_version(void) {
  return CACHALOT_ABI_VERSION;
}

cachalot_code cachalot_keeper_start(const cachalot_keeper_options* options,
                                    cachalot_keeper** keeper) {
  return guarded([&] {
    if (keeper == nullptr) return missing("keeper");
    *keeper = nullptr;
    const Result<cachalot_keeper_options> o = read_struct(options, "keeper options");
    if (!o) return fail(o.error());
    if (o->pool == nullptr) return missing("keeper options: pool");
    KeeperOptions start;
    start.pool = o->pool;
    start.block_bytes = o->block_bytes;
    start.capacity_blocks = o->capacity_blocks;
    start.size_bytes = o->size_bytes;
    if (o->clients != 0) start.clients = o->clients;
    start.domain = text(o->domain, start.domain.c_str());
    start.policy = text(o->policy, start.policy.c_str());
    start.allow_foreign_pool = o->allow_foreign_pool != 0;
    start.keep_pool = o->keep_pool != 0;
    start.without_lost_devices = o->without_lost_devices != 0;
    Result<EmbeddedKeeper> started = EmbeddedKeeper::start(start);
    if (!started) return fail(started.error());
    *keeper = new cachalot_keeper{*std::move(started)};
    return CACHALOT_OK;
  });
}

cachalot_code cachalot_keeper_stop(cachalot_keeper* keeper) {
  return guarded([&] {
    if (keeper == nullptr) return CACHALOT_OK;
    const Status status = keeper->keeper.stop();
    delete keeper;
    return code_of(status);
  });
}

cachalot_code cachalot_attach(const cachalot_client_options* options, cachalot_client** client) {
  return guarded([&] {
    if (client == nullptr) return missing("client");
    *client = nullptr;
    const Result<ClientOptions> attach = client::client_options_of(options);
    if (!attach) return fail(attach.error());
    Result<Client> attached = Client::attach(*attach);
    if (!attached) return fail(attached.error());
    *client = new cachalot_client{*std::move(attached)};
    return CACHALOT_OK;
  });
}

cachalot_code cachalot_detach(cachalot_client* client) {
  return guarded([&] {
    if (client == nullptr) return CACHALOT_OK;
    const Status status = client->client.detach();
    delete client;
    return code_of(status);
  });
}

uint64_t cachalot_block_bytes(const cachalot_client* client) {
  return client == nullptr ? 0 : client->client.block_bytes();
}

cachalot_code cachalot_hash_tokens(const cachalot_client* client, const uint32_t* tokens,
                                   size_t token_count, cachalot_block_hash* hashes, size_t capacity,
                                   size_t* count) {
  return guarded([&] {
    if (client == nullptr) return missing("client");
    if (tokens == nullptr && token_count != 0) return missing("tokens");
    const std::vector<BlockHash> all = client->client.hash_tokens({tokens, token_count});
    if (count != nullptr) *count = all.size();
    if (hashes != nullptr)
      std::copy_n(all.begin(), std::min(all.size(), capacity),
                  reinterpret_cast<BlockHash*>(hashes));
    return CACHALOT_OK;
  });
}

cachalot_code cachalot_register_cache(cachalot_client* client, const cachalot_cache* cache,
                                      uint32_t* cache_id) {
  return guarded([&] {
    if (client == nullptr) return missing("client");
    const Result<PagedCache> described = client::paged_cache_of(cache);
    if (!described) return fail(described.error());
    return give(client->client.register_cache(*described), cache_id);
  });
}

cachalot_code cachalot_unregister_cache(cachalot_client* client, uint32_t cache_id) {
  return guarded([&] {
    if (client == nullptr) return missing("client");
    return code_of(client->client.unregister_cache(CacheId{cache_id}));
  });
}

cachalot_code cachalot_lookup(const cachalot_client* client, const cachalot_block_hash* hashes,
                              size_t count, size_t* blocks) {
  return guarded([&] {
    if (client == nullptr) return missing("client");
    if (hashes == nullptr && count != 0) return missing("hashes");
    return give(client->client.lookup(hashes_of(hashes, count)), blocks);
  });
}

cachalot_code cachalot_prefetch(cachalot_client* client, const cachalot_block_hash* hashes,
                                size_t count, uint64_t wait_ns, size_t* in_pool,
                                size_t* in_storage) {
  return guarded([&] {
    if (client == nullptr) return missing("client");
    if (hashes == nullptr && count != 0) return missing("hashes");
    const Result<Prefetched> found = client->client.prefetch(hashes_of(hashes, count), wait_ns);
    if (!found) return code_of(Status(found.error()));
    if (in_pool != nullptr) *in_pool = found->in_pool;
    if (in_storage != nullptr) *in_storage = found->in_storage;
    return CACHALOT_OK;
  });
}

cachalot_code cachalot_load(cachalot_client* client, uint32_t cache_id,
                            const cachalot_block_hash* hashes, size_t count, const uint32_t* pages,
                            size_t page_count, uint64_t timeout_ns, size_t* blocks) {
  return guarded([&] {
    if (const char* const name = missing_of(client, hashes, count, pages, page_count))
      return missing(name);
    return give_loaded(client->client.load(CacheId{cache_id}, hashes_of(hashes, count),
                                           pages_of(pages, page_count), within(timeout_ns)),
                       blocks);
  });
}

cachalot_code cachalot_load_tokens(cachalot_client* client, uint32_t cache_id,
                                   const cachalot_block_hash* hashes, size_t count,
                                   const uint32_t* pages, size_t page_count,
                                   const cachalot_token_ranges* tokens, uint64_t timeout_ns,
                                   size_t* blocks) {
  return guarded([&] {
    if (const char* const name = missing_of(client, hashes, count, pages, page_count))
      return missing(name);
    if (tokens == nullptr) return missing("tokens");
    std::vector<std::span<const TokenRange>> chosen;
    for (size_t i = 0; i < count; ++i) {
      if (tokens[i].ranges == nullptr && tokens[i].count != 0)
        return missing("tokens: ranges");  // would otherwise mean the whole block
      chosen.emplace_back(reinterpret_cast<const TokenRange*>(tokens[i].ranges), tokens[i].count);
    }
    return give_loaded(
        client->client.load_tokens(CacheId{cache_id}, hashes_of(hashes, count),
                                   pages_of(pages, page_count), chosen, within(timeout_ns)),
        blocks);
  });
}

cachalot_code cachalot_store(cachalot_client* client, uint32_t cache_id,
                             const cachalot_block_hash* parent, const cachalot_block_hash* hashes,
                             size_t count, const uint32_t* pages, size_t page_count,
                             uint64_t timeout_ns, size_t* blocks) {
  return cachalot_store_with_tokens(client, cache_id, parent, hashes, count, pages, page_count,
                                    nullptr, 0, timeout_ns, blocks);
}

cachalot_code cachalot_store_with_tokens(cachalot_client* client, uint32_t cache_id,
                                         const cachalot_block_hash* parent,
                                         const cachalot_block_hash* hashes, size_t count,
                                         const uint32_t* pages, size_t page_count,
                                         const uint32_t* tokens, size_t token_count,
                                         uint64_t timeout_ns, size_t* blocks) {
  return guarded([&] {
    give_nothing(blocks);
    if (const char* const name = missing_of(client, hashes, count, pages, page_count))
      return missing(name);
    if (tokens == nullptr && token_count != 0) return missing("tokens");
    CopyOptions options = within(timeout_ns);
    options.tokens = {tokens, token_count};
    return give_blocks(
        client->client.store(CacheId{cache_id}, parent_of(parent), hashes_of(hashes, count),
                             pages_of(pages, page_count), options),
        blocks);
  });
}

cachalot_code cachalot_begin_load(cachalot_client* client, uint32_t cache_id,
                                  const cachalot_block_hash* hashes, size_t count,
                                  const uint32_t* pages, size_t page_count,
                                  cachalot_layer_load** load, size_t* blocks) {
  return begin_load(client, cache_id, hashes, count, pages, page_count, {}, load, blocks);
}

cachalot_code cachalot_begin_pinned_load(cachalot_client* client, uint32_t cache_id,
                                         const cachalot_block_hash* hashes, size_t count,
                                         const uint32_t* pages, size_t page_count,
                                         cachalot_layer_load** load, size_t* blocks) {
  LayerOptions options;
  options.pinned = true;
  return begin_load(client, cache_id, hashes, count, pages, page_count, options, load, blocks);
}

cachalot_code cachalot_start_load_layer(cachalot_layer_load* load, uint32_t layer) {
  return guarded([&] {
    if (load == nullptr) return missing("load");
    return code_of(load->load.start_layer(layer));
  });
}

cachalot_code cachalot_load_layer(cachalot_layer_load* load, uint32_t layer, size_t* blocks) {
  return guarded([&] {
    if (load == nullptr) return missing("load");
    return give(load->load.load_layer(layer), blocks);
  });
}

void cachalot_end_load(cachalot_layer_load* load) {
  delete load;
}

cachalot_code cachalot_begin_store(cachalot_client* client, uint32_t cache_id,
                                   const cachalot_block_hash* parent,
                                   const cachalot_block_hash* hashes, size_t count,
                                   const uint32_t* pages, size_t page_count,
                                   cachalot_layer_store** store) {
  return guarded([&] {
    if (const char* const name = missing_of(client, hashes, count, pages, page_count))
      return missing(name);
    if (store == nullptr) return missing("store");
    *store = nullptr;
    Result<Client::LayerStore> begun =
        client->client.begin_store(CacheId{cache_id}, parent_of(parent), hashes_of(hashes, count),
                                   pages_of(pages, page_count));
    if (!begun) return fail(begun.error());
    *store = new cachalot_layer_store{*std::move(begun)};
    return CACHALOT_OK;
  });
}

cachalot_code cachalot_start_store_layer(cachalot_layer_store* store, uint32_t layer) {
  return guarded([&] {
    if (store == nullptr) return missing("store");
    return code_of(store->store.start_layer(layer));
  });
}

cachalot_code cachalot_store_layer(cachalot_layer_store* store, uint32_t layer) {
  return guarded([&] {
    if (store == nullptr) return missing("store");
    return code_of(store->store.store_layer(layer));
  });
}

cachalot_code cachalot_end_store(cachalot_layer_store* store, int publish, size_t* blocks) {
  return guarded([&] {
    give_nothing(blocks);
    if (store == nullptr) return CACHALOT_OK;
    const std::unique_ptr<cachalot_layer_store> owned(store);
    if (publish == 0) return CACHALOT_OK;
    return give_blocks(owned->store.finish(), blocks);
  });
}

cachalot_code cachalot_load_async(cachalot_client* client, uint32_t cache_id,
                                  const cachalot_block_hash* hashes, size_t count,
                                  const uint32_t* pages, size_t page_count, uint64_t timeout_ns,
                                  uint64_t* token) {
  return start(client, hashes, count, pages, page_count, token, [&](auto blocks, auto to) {
    return client->client.load_async(CacheId{cache_id}, blocks, to, within(timeout_ns));
  });
}

cachalot_code cachalot_store_async(cachalot_client* client, uint32_t cache_id,
                                   const cachalot_block_hash* parent,
                                   const cachalot_block_hash* hashes, size_t count,
                                   const uint32_t* pages, size_t page_count, uint64_t timeout_ns,
                                   uint64_t* token) {
  return start(client, hashes, count, pages, page_count, token, [&](auto blocks, auto from) {
    return client->client.store_async(CacheId{cache_id}, parent_of(parent), blocks, from,
                                      within(timeout_ns));
  });
}

cachalot_code cachalot_poll(cachalot_client* client, uint64_t token, int* done, size_t* blocks) {
  return guarded([&] {
    if (client == nullptr) return missing("client");
    if (done == nullptr) return missing("done");
    *done = 0;
    const Result<Completion> completion = client->client.poll(Token{token});
    if (!completion) return fail(completion.error());
    *done = completion->is_done ? 1 : 0;
    if (completion->is_done) keep_reason(completion->reason);
    if (blocks != nullptr) *blocks = completion->blocks;
    return code_of(completion->status);
  });
}

cachalot_code cachalot_wait(cachalot_client* client, uint64_t token, uint64_t timeout_ns,
                            size_t* blocks) {
  return guarded([&] {
    if (client == nullptr) return missing("client");
    const Result<Completion> completion = client->client.wait(Token{token}, timeout_ns);
    if (!completion) return fail(completion.error());
    keep_reason(completion->reason);
    if (blocks != nullptr) *blocks = completion->blocks;
    return code_of(completion->status);
  });
}

cachalot_code cachalot_last_reason(void) {
  return last_reason;
}

cachalot_code cachalot_cancel(cachalot_client* client, uint64_t token) {
  return guarded([&] {
    if (client == nullptr) return missing("client");
    return code_of(client->client.cancel(Token{token}));
  });
}

cachalot_code cachalot_register_buffer(cachalot_client* client, void* data, uint64_t bytes) {
  return guarded([&] {
    if (client == nullptr) return missing("client");
    return code_of(client->client.register_buffer(data, bytes));
  });
}

cachalot_code cachalot_unregister_buffer(cachalot_client* client, void* data) {
  return guarded([&] {
    if (client == nullptr) return missing("client");
    return code_of(client->client.unregister_buffer(data));
  });
}

cachalot_code cachalot_exists(const cachalot_client* client, const cachalot_key* keys, size_t count,
                              uint8_t* present) {
  return guarded([&] {
    if (client == nullptr) return missing("client");
    if (count != 0 && (keys == nullptr || present == nullptr))
      return missing(keys == nullptr ? "keys" : "present");
    for (size_t i = 0; i < count; ++i) {
      if (keys[i].data != nullptr || keys[i].bytes == 0) continue;
      return fail(Error::make(Code::kInvalidArgument,
                              "keys: number %zu is null, expected the address of its %zu bytes", i,
                              keys[i].bytes));
    }
    std::vector<std::string_view> views(count);
    std::transform(keys, keys + count, views.begin(), key_of);
    const std::unique_ptr<bool[]> found(new bool[count]());
    const Status status = client->client.exists(views, {found.get(), count});
    if (!status) return fail(status.error());
    std::copy_n(found.get(), count, present);
    return CACHALOT_OK;
  });
}

cachalot_code cachalot_put(cachalot_client* client, cachalot_key key, const cachalot_buffer* parts,
                           size_t count, uint64_t* bytes) {
  return guarded([&] {
    if (client == nullptr) return missing("client");
    if (key.data == nullptr && key.bytes != 0) return missing("key");
    if (parts == nullptr && count != 0) return missing("parts");
    return give(client->client.put(key_of(key), buffers_of(parts, count)), bytes);
  });
}

cachalot_code cachalot_get(cachalot_client* client, cachalot_key key, const cachalot_buffer* parts,
                           size_t count, uint64_t* bytes) {
  return guarded([&] {
    if (client == nullptr) return missing("client");
    if (key.data == nullptr && key.bytes != 0) return missing("key");
    if (parts == nullptr && count != 0) return missing("parts");
    return give(client->client.get(key_of(key), buffers_of(parts, count)), bytes);
  });
}

cachalot_code cachalot_count_prompt(cachalot_client* client, uint64_t asked, uint64_t from_pool,
                                    uint64_t from_peers, uint64_t from_storage) {
  return guarded([&] {
    if (client == nullptr) return missing("client");
    const Status counted =
        client->client.count_prompt({asked, from_pool, from_peers, from_storage});
    return counted ? CACHALOT_OK : fail(counted.error());
  });
}

cachalot_code cachalot_get_statistics(const cachalot_client* client,
                                      cachalot_statistics* statistics) {
  return guarded([&] {
    if (client == nullptr) return missing("client");
    const Result<cachalot_statistics> known = read_struct(statistics, "statistics");
    if (!known) return fail(known.error());
    const Statistics now = client->client.statistics();
    cachalot_statistics out{};
    static_assert(sizeof(Statistics) == sizeof out - offsetof(cachalot_statistics, lookups));
    std::memcpy(&out.lookups, &now, sizeof now);
    write_struct(out, statistics);
    return CACHALOT_OK;
  });
}

}  // extern "C"
