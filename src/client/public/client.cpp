// The public client: its parts, and the calls that forward to them.
#include <cachalot/client.h>
#include <cachalot/gpu.h>
#include <cachalot/trace_recorder.h>
#include <sys/stat.h>

#include <algorithm>
#include <cinttypes>

#include "block_hash/block_hasher.h"
#include "client/async_calls.h"
#include "client/attach.h"
#include "client/cache_table.h"
#include "client/copies.h"
#include "client/copy_homes.h"
#include "client/fingerprint.h"
#include "client/fork_guard.h"
#include "client/layers/layerwise.h"
#include "client/objects.h"
#include "client/prefetch.h"
#include "kv/block_order.h"
#include "kv/cuda/kernel_image.h"
#include "kv/layout.h"

namespace cachalot {

struct Client::Impl {
  Impl(const ClientOptions& given, const KvGeometry& in_pool, const client::HeadGroups& of_rank,
       const kv::BlockOrder& block_order, std::shared_ptr<client::Session> opened,
       const block_hash::NamespaceId& name_space, std::optional<TraceRecorder> opened_recorder,
       std::shared_ptr<const kv::CopyHomes> found_homes)
      : options(given),
        pool_block(in_pool),
        groups(of_rank),
        order(block_order),
        space(name_space),
        session(std::move(opened)),
        objects(*session, session->counters(), space),
        recorder(std::move(opened_recorder)),
        homes(std::move(found_homes)),
        calls(given.workers) {}

  const ClientOptions options;
  const KvGeometry pool_block;  // of one block of the pool: all of the rank, or one head group
  const client::HeadGroups groups;
  const kv::BlockOrder& order;
  const block_hash::NamespaceId space;
  const std::uint64_t forks = client::fork_generation();
  std::shared_ptr<client::Session> session;
  client::CacheTable caches;
  client::Objects objects;
  std::optional<TraceRecorder> recorder;
  const std::shared_ptr<const kv::CopyHomes> homes;
  client::AsyncCalls calls;  // destroyed first

  void record(RecordedCall made, std::span<const BlockHash> hashes) {
    if (!recorder || made != options.recorded_call) return;
    recorder->record(hashes, hashes.size() * std::uint64_t{options.geometry.block_tokens}, 0);
  }

  // Ranks of one namespace would take each other's objects for their own.
  Status check_objects() const {
    if (options.share_tp <= 1) return {};
    return Error::make(
        Code::kUnsupported,
        "object: share_tp is %u, so ranks with other heads have the same keys; attach "
        "another client without share_tp",
        options.share_tp);
  }

  // `cache`: a CacheUse or OpenCache that outlives the returned Call.
  template <class Held>
  Result<client::Call> call(Held& cache, std::span<const BlockHash> hashes,
                            std::span<const PageId> pages, const CopyOptions& copy) {
    const client::Deadline deadline = client::Deadline::after(copy.timeout_ns);
    CACHALOT_TRY_ASSIGN(const CudaStream stream, (*cache).stream_of(copy.cuda_stream));
    return client::Call{*session, session->counters(), *cache, hashes, pages, deadline, stream,
                        nullptr,  copy.tokens};
  }
};

namespace {

Status check_count(const char* option, std::uint32_t value, std::uint32_t most) {
  if (value >= 1 && value <= most) return {};
  return Error::make(Code::kInvalidArgument, "%s: %u is not within 1 to %u", option, value, most);
}

// The geometry of a block of the pool.
Result<KvGeometry> check_options(const ClientOptions& options) {
  if (options.model.empty()) {
    return Error::make(Code::kInvalidArgument,
                       "model: is empty; name the weights and their revision, so that no other "
                       "model's blocks are taken for theirs");
  }
  CACHALOT_TRY(check_count("copy_threads", options.copy_threads, kMostThreads));
  CACHALOT_TRY(check_count("workers", options.workers, kMostThreads));
  CACHALOT_TRY(check_count("grant_blocks", options.grant_blocks, kMostGrantBlocks));
  CACHALOT_TRY(options.geometry.check());
  if (options.share_tp == 0) return options.geometry;
  return options.geometry.head_group(options.share_tp);
}

Result<kv::LayerRange> range_of(const CopyOptions& options, const KvGeometry& geometry) {
  const std::uint32_t first = options.first_layer;
  const bool has_all = options.layers == kAllLayers || options.layers == geometry.layers;
  if (first == 0 && has_all) return kv::LayerRange{};  // whole blocks, which have checksums
  const std::uint64_t layers = options.layers == kAllLayers
                                   ? geometry.layers - std::min(first, geometry.layers)
                                   : options.layers;
  if (options.layers == kAllLayers && layers == 0) {
    return Error::make(Code::kInvalidArgument, "layers: all from %u on, of a rank that has %u",
                       first, geometry.layers);
  }
  if (layers == 0 || first + layers > geometry.layers) {
    return Error::make(Code::kInvalidArgument, "layers: %u from %u on, of a rank that has %u",
                       options.layers, first, geometry.layers);
  }
  return kv::LayerRange{first, static_cast<std::uint32_t>(first + layers)};
}

// Whether each layer of a block is in one piece in the pool; then a checksum can continue from layer to layer.
bool layers_are_stretches(const kv::BlockOrder& order, const KvGeometry& geometry) {
  return *order.order(geometry.attention) == 'L';
}

// Copies of an asynchronous call's arguments.
struct Kept {
  std::vector<BlockHash> hashes;
  std::vector<PageId> pages;
  std::vector<std::uint32_t> tokens;
  std::optional<BlockHash> parent;
};

// Makes the call refer to copies of its arguments. The counts must have been checked before.
std::shared_ptr<const Kept> keep(const BlockHash* parent, client::Call& call) {
  auto kept = std::make_shared<Kept>();
  kept->hashes.assign(call.hashes.begin(), call.hashes.end());
  kept->pages.assign(call.pages.begin(), call.pages.end());
  kept->tokens.assign(call.tokens.begin(), call.tokens.end());
  if (parent != nullptr) kept->parent = *parent;
  call.hashes = kept->hashes;
  call.pages = kept->pages;
  call.tokens = kept->tokens;
  return kept;
}

// Marks the current place in the call's stream; null if the cache is in this process's memory.
Result<std::shared_ptr<kv::StreamBehind>> go_behind(const client::Call& call) {
  kv::Gpu* const gpu = call.cache.gpu();
  if (gpu == nullptr) return std::shared_ptr<kv::StreamBehind>();
  CACHALOT_TRY_ASSIGN(kv::StreamMark mark, gpu->mark(call.stream));
  return std::make_shared<kv::StreamBehind>(*gpu, std::move(mark));
}

}  // namespace

bool has_gpu_kernels() {
  return !kv::kernel_image().empty();
}

std::vector<std::string> layout_names() {
  std::vector<std::string> names;
  for (const kv::Layout& layout : kv::layouts()) {
    if (layout.refusal == nullptr) names.emplace_back(layout.name);
  }
  return names;
}

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&& from) noexcept {
  Client taken(std::move(from));
  std::swap(impl_, taken.impl_);  // `taken` detaches the previous client
  return *this;
}

Client::~Client() {
  if (impl_ == nullptr) return;
  // A forked child has neither the threads nor the mapping: both belong to the parent.
  if (client::fork_generation() != impl_->forks) {
    (void)impl_.release();
  } else if (impl_->session->check_usable()) {
    (void)detach();
  }
}

Result<Client> Client::attach(const ClientOptions& options) {
  return client::attach(options, [](int ordinal) { return kv::CudaDevice::open(ordinal); });
}

namespace {

// Lines appended to a device of the pool would make it unusable for all its clients.
Status check_is_no_device(const std::string& file, const memory::DeviceSet& devices) {
  struct stat wanted {};
  if (stat(file.c_str(), &wanted) != 0) return {};  // none is there yet
  for (std::uint32_t i = 0; i < devices.count(); ++i) {
    struct stat device {};
    if (fstat(devices.file(i).fd(), &device) != 0 || device.st_dev != wanted.st_dev ||
        device.st_ino != wanted.st_ino) {
      continue;
    }
    return Error::make(Code::kInvalidArgument,
                       "%.120s: recording: is device %u of the pool, expected another file",
                       file.c_str(), i);
  }
  return {};
}

}  // namespace

Result<Client> client::attach(const ClientOptions& options, kv::Gpus::Open open_gpu) {
  CACHALOT_TRY_ASSIGN(const KvGeometry pool_block, check_options(options));
  CACHALOT_TRY_ASSIGN(const kv::BlockOrder* const order, kv::find_block_order(options.block_order));
  client::HeadGroups groups;
  if (options.share_tp != 0)
    groups = {pool_block.tp_rank, options.geometry.heads() / pool_block.heads()};
  const std::string fingerprint = client::fingerprint_of(options);
  if (options.hash != HashAlgorithm::kXxh3) {
    // checks that the algorithm is available
    CACHALOT_TRY(block_hash::BlockHasher::vllm(options.hash, options.python_hash_seed));
  }
  const auto fits = [&](const pool::Geometry& pool) -> Status {
    if (pool_block.block_bytes() <= std::min<std::uint64_t>(pool.block_bytes, 0xffffffffu))
      return {};
    return Error::make(Code::kInvalidArgument,
                       "geometry: a block has %" PRIu64
                       " bytes, the pool's blocks have room for %" PRIu64
                       " (`cachalot pool create --block-bytes`)",
                       pool_block.block_bytes(), pool.block_bytes);
  };
  CACHALOT_TRY_ASSIGN(std::shared_ptr<client::Session> session,
                      client::Session::open(options, fingerprint, client::name_of(options),
                                            std::move(open_gpu), fits, groups.count));
  CACHALOT_TRY_ASSIGN(std::shared_ptr<const kv::CopyHomes> homes,
                      client::find_copy_homes(options.copy_cpus, session->pool()));
  std::optional<TraceRecorder> recorder;
  if (!options.record_requests.empty()) {
    CACHALOT_TRY(check_is_no_device(options.record_requests, session->pool().devices()));
    CACHALOT_TRY_ASSIGN(recorder, TraceRecorder::open(options.record_requests));
  }
  return Client(std::make_unique<Client::Impl>(
      options, pool_block, groups, *order, std::move(session),
      block_hash::make_namespace(fingerprint), std::move(recorder), std::move(homes)));
}

Status Client::detach() {
  if (impl_ == nullptr) return Error::make(Code::kInvalidArgument, "client: it was moved from");
  if (client::fork_generation() != impl_->forks) return impl_->session->check_usable();
  impl_->calls.stop();
  if (impl_->recorder) (void)impl_->recorder->flush();  // a full disk must not prevent the detach
  return impl_->session->close();
}

const KvGeometry& Client::geometry() const {
  return impl_->options.geometry;
}
std::uint64_t Client::block_bytes() const {
  return impl_->pool_block.block_bytes();
}

std::vector<BlockHash> Client::hash_tokens(std::span<const std::uint32_t> tokens,
                                           std::span<const ExtraKeys> extra_keys) const {
  std::vector<BlockHash> hashes(tokens.size() / geometry().block_tokens);
  const ClientOptions& options = impl_->options;
  if (options.hash == HashAlgorithm::kXxh3) {
    block_hash::BlockHasher hasher = block_hash::BlockHasher::xxh3(impl_->space);
    hasher.hash_blocks(hasher.root(), tokens, geometry().block_tokens, hashes, extra_keys);
  } else if (Result<block_hash::BlockHasher> hasher =
                 block_hash::BlockHasher::vllm(options.hash, options.python_hash_seed)) {
    hasher->hash_blocks(hasher->root(), tokens, geometry().block_tokens, hashes, extra_keys);
  }
  return hashes;
}

Result<CacheId> Client::register_cache(const PagedCache& cache) {
  CACHALOT_TRY(impl_->session->check_usable());
  client::CopyMeans means = client::CopyMeans::of(impl_->options);
  means.homes = impl_->homes;
  if (cache.cuda_device) {
    CACHALOT_TRY_ASSIGN(means.gpu, impl_->session->gpus().find_or_open(*cache.cuda_device));
  } else if (cache.cuda_stream != nullptr) {
    return Error::make(Code::kInvalidArgument,
                       "cache: stream %p, and no device that it could be of", cache.cuda_stream);
  }
  CACHALOT_TRY_ASSIGN(std::shared_ptr<client::RegisteredCache> made,
                      client::RegisteredCache::make(cache, geometry(), impl_->groups, impl_->order,
                                                    impl_->session->access().domain(), means));
  return impl_->caches.add(std::move(made));
}

Status Client::unregister_cache(CacheId cache) {
  CACHALOT_TRY(impl_->session->check_usable());
  return impl_->caches.remove(cache);
}

Result<std::size_t> Client::lookup(std::span<const BlockHash> hashes) const {
  CACHALOT_TRY(impl_->session->check_usable());
  impl_->record(RecordedCall::kLookup, hashes);
  impl_->session->prompts().ask(hashes);
  const client::PoolNames names(impl_->groups, hashes);
  return client::look_up(*impl_->session, &impl_->session->counters(), names.get(), block_bytes(),
                         impl_->groups.count)
      .blocks();
}

Result<Prefetched> Client::prefetch(std::span<const BlockHash> hashes, std::uint64_t wait_ns) {
  return client::prefetch_groups(*impl_->session, impl_->groups, hashes, wait_ns);
}

Result<bool> Client::is_fetching(std::span<const BlockHash> stored) {
  return client::is_fetching_groups(*impl_->session, impl_->groups, stored);
}

Result<bool> Client::has_storage() {
  CACHALOT_TRY_ASSIGN(const pool::StorageAnswer answer, impl_->session->ask_storage({}, 0));
  return answer.is_up != 0;
}

Result<Context> Client::create_context(const BlockHash& last, std::uint64_t seconds) {
  if (impl_->groups.count != 1) {
    return Error::make(Code::kUnsupported,
                       "context: a block of this rank is %u of the pool, of one head group each; "
                       "contexts keep blocks of one",
                       impl_->groups.count);
  }
  return impl_->session->create_context(impl_->groups.name_of(last, 0), seconds);
}

Result<Context> Client::renew_context(std::uint64_t handle, std::uint64_t seconds) {
  return impl_->session->renew_context(handle, seconds);
}

Result<std::size_t> Client::retain(std::string_view session, const BlockHash& last,
                                   std::uint64_t seconds) {
  std::size_t blocks = 0;
  for (std::uint32_t group = 0; group < impl_->groups.count; ++group) {
    CACHALOT_TRY_ASSIGN(const Context context,
                        impl_->session->retain(std::string(session) + "#" + std::to_string(group),
                                               impl_->groups.name_of(last, group), seconds));
    blocks += context.blocks;
  }
  return blocks;
}

Status Client::drop_context(std::uint64_t handle) {
  return impl_->session->drop_context(handle);
}

Result<std::size_t> Client::load(CacheId cache, std::span<const BlockHash> hashes,
                                 std::span<const PageId> pages, const CopyOptions& options) {
  return load_tokens(cache, hashes, pages, {}, options);
}

Result<std::size_t> Client::load_tokens(CacheId cache, std::span<const BlockHash> hashes,
                                        std::span<const PageId> pages,
                                        std::span<const std::span<const TokenRange>> tokens,
                                        const CopyOptions& options) {
  CACHALOT_TRY(impl_->session->check_usable());
  CACHALOT_TRY_ASSIGN(const kv::LayerRange layers, range_of(options, geometry()));
  CACHALOT_TRY_ASSIGN(client::CacheUse use, impl_->caches.use(cache));
  CACHALOT_TRY_ASSIGN(const client::Call call, impl_->call(use, hashes, pages, options));
  CACHALOT_TRY(call.check_counts());
  impl_->record(RecordedCall::kLoad, hashes);
  return client::load(call, layers, tokens);
}

Result<std::size_t> Client::load_head_tokens(CacheId cache, std::span<const BlockHash> hashes,
                                             std::span<const PageId> pages,
                                             std::span<const std::span<const std::uint32_t>> tokens,
                                             TokenPlace place, const CopyOptions& options) {
  CACHALOT_TRY(impl_->session->check_usable());
  CACHALOT_TRY_ASSIGN(const kv::LayerRange layers, range_of(options, geometry()));
  CACHALOT_TRY_ASSIGN(client::CacheUse use, impl_->caches.use(cache));
  CACHALOT_TRY_ASSIGN(const client::Call call, impl_->call(use, hashes, pages, options));
  return client::load_head_tokens(call, layers, tokens, place);
}

Result<Stored> Client::store(CacheId cache, const BlockHash* parent,
                             std::span<const BlockHash> hashes, std::span<const PageId> pages,
                             const CopyOptions& options) {
  CACHALOT_TRY(impl_->session->check_usable());
  CACHALOT_TRY_ASSIGN(client::CacheUse use, impl_->caches.use(cache));
  CACHALOT_TRY_ASSIGN(const client::Call call, impl_->call(use, hashes, pages, options));
  return client::store(call, parent);
}

Result<Client::LayerLoad> Client::begin_load(CacheId cache, std::span<const BlockHash> hashes,
                                             std::span<const PageId> pages,
                                             const LayerOptions& options) {
  CACHALOT_TRY(impl_->session->check_usable());
  CACHALOT_TRY_ASSIGN(client::OpenCache open, impl_->caches.open(cache, client::LayerCall::kLoad));
  CopyOptions copy;
  copy.cuda_stream = options.cuda_stream;
  CACHALOT_TRY_ASSIGN(const client::Call call, impl_->call(open, hashes, pages, copy));
  CACHALOT_TRY(call.check_counts());
  impl_->record(RecordedCall::kLoad, hashes);
  CACHALOT_TRY_ASSIGN(
      std::unique_ptr<LayerLoad::Impl> begun,
      LayerLoad::Impl::begin(call, std::move(open), layers_are_stretches(impl_->order, geometry()),
                             options.pinned));
  return LayerLoad(std::move(begun));
}

Result<Client::LayerStore> Client::begin_store(CacheId cache, const BlockHash* parent,
                                               std::span<const BlockHash> hashes,
                                               std::span<const PageId> pages,
                                               const LayerOptions& options) {
  CACHALOT_TRY(impl_->session->check_usable());
  CACHALOT_TRY_ASSIGN(client::OpenCache open, impl_->caches.open(cache, client::LayerCall::kStore));
  CopyOptions copy;
  copy.cuda_stream = options.cuda_stream;
  CACHALOT_TRY_ASSIGN(const client::Call call, impl_->call(open, hashes, pages, copy));
  CACHALOT_TRY_ASSIGN(std::unique_ptr<LayerStore::Impl> begun,
                      LayerStore::Impl::begin(call, std::move(open), parent,
                                              layers_are_stretches(impl_->order, geometry())));
  return LayerStore(std::move(begun));
}

Result<Token> Client::load_async(CacheId cache, std::span<const BlockHash> hashes,
                                 std::span<const PageId> pages, const CopyOptions& options) {
  CACHALOT_TRY(impl_->session->check_usable());
  CACHALOT_TRY_ASSIGN(const kv::LayerRange layers, range_of(options, geometry()));
  CACHALOT_TRY_ASSIGN(client::CacheUse use, impl_->caches.use(cache));
  auto held = std::make_shared<client::CacheUse>(std::move(use));
  CACHALOT_TRY_ASSIGN(client::Call call, impl_->call(*held, hashes, pages, options));
  CACHALOT_TRY(call.check());
  CACHALOT_TRY(call.check_pages_differ());
  const std::shared_ptr<const Kept> kept = keep(nullptr, call);
  CACHALOT_TRY_ASSIGN(const std::shared_ptr<kv::StreamBehind> behind, go_behind(call));
  impl_->record(RecordedCall::kLoad, hashes);
  return impl_->calls.submit([call, held, kept, behind, layers](
                                 const std::atomic<bool>& cancelled) mutable -> Result<Stored> {
    call.cancelled = &cancelled;
    call.behind = behind.get();
    Stored loaded;
    CACHALOT_TRY_ASSIGN(loaded.blocks, client::load(call, layers, {}));
    return loaded;
  });
}

Result<Token> Client::store_async(CacheId cache, const BlockHash* parent,
                                  std::span<const BlockHash> hashes, std::span<const PageId> pages,
                                  const CopyOptions& options) {
  CACHALOT_TRY(impl_->session->check_usable());
  CACHALOT_TRY_ASSIGN(client::CacheUse use, impl_->caches.use(cache));
  auto held = std::make_shared<client::CacheUse>(std::move(use));
  CACHALOT_TRY_ASSIGN(client::Call call, impl_->call(*held, hashes, pages, options));
  CACHALOT_TRY(call.check());
  CACHALOT_TRY(call.check_tokens());
  const std::shared_ptr<const Kept> kept = keep(parent, call);
  CACHALOT_TRY_ASSIGN(const std::shared_ptr<kv::StreamBehind> behind, go_behind(call));
  return impl_->calls.submit(
      [call, held, kept, behind](const std::atomic<bool>& cancelled) mutable -> Result<Stored> {
        call.cancelled = &cancelled;
        call.behind = behind.get();
        return client::store(call, kept->parent ? &*kept->parent : nullptr);
      });
}

// Valid after detach(), but not in a forked child: a thread that the child lacks may hold the lock.
Result<Completion> Client::poll(Token token) {
  CACHALOT_TRY(impl_->session->check_process());
  return impl_->calls.poll(token);
}
Result<Completion> Client::wait(Token token, std::uint64_t timeout_ns) {
  CACHALOT_TRY(impl_->session->check_process());
  return impl_->calls.wait(token, timeout_ns);
}
Status Client::cancel(Token token) {
  CACHALOT_TRY(impl_->session->check_process());
  return impl_->calls.cancel(token);
}

Status Client::register_buffer(void* data, std::uint64_t bytes) {
  CACHALOT_TRY(impl_->session->check_usable());
  return impl_->objects.buffers().add(data, bytes);
}
Status Client::unregister_buffer(void* data) {
  CACHALOT_TRY(impl_->session->check_usable());
  return impl_->objects.buffers().remove(data);
}
Status Client::exists(std::span<const std::string_view> keys, std::span<bool> present) const {
  CACHALOT_TRY(impl_->check_objects());
  return impl_->objects.exists(keys, present);
}
Result<std::uint64_t> Client::put(std::string_view key, std::span<const Buffer> parts) {
  CACHALOT_TRY(impl_->check_objects());
  return impl_->objects.put(key, parts);
}
Result<std::uint64_t> Client::get(std::string_view key, std::span<const Buffer> parts) {
  CACHALOT_TRY(impl_->check_objects());
  return impl_->objects.get(key, parts);
}

Status Client::count_prompt(const PromptBlocks& prompt) {
  CACHALOT_TRY(impl_->session->check_usable());
  return impl_->session->prompts().count(prompt);
}

Statistics Client::statistics() const {
  Statistics now = impl_->session->counters().read();
  now.reattachments = impl_->session->reattachments();
  const kv::WayBytes gpus = impl_->session->gpus().way_bytes();
  now.gpu_threads_bytes = gpus.threads;
  now.gpu_bulk_bytes = gpus.bulk;
  now.gpu_batch_bytes = gpus.batch;
  now.gpu_copy_engine_bytes = gpus.copy_engine;
  return now;
}

std::vector<std::string> Client::namespaces() const {
  std::vector<std::string> names;
  if (!impl_->session->check_process()) return names;  // the pool is not mapped there
  for (pool::NamespaceName& one : impl_->session->pool().state().read_namespaces())
    names.push_back(std::move(one.name));
  return names;
}

}  // namespace cachalot
