#include "transfer/handover/gpu_bounce.h"

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <string>
#include <utility>

#include "base/clock.h"
#include "kv/paged_cache.h"
#include "os/memory.h"
#include "transfer/handover/messages.h"

namespace cachalot::transfer {
namespace {

constexpr std::uint64_t kLine = 64;
constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;
// Layers arrive in another thread, which cannot say so to this one. Where none comes, it looks less and less often.
constexpr std::chrono::microseconds kLook{200}, kSeldom{2000};

}  // namespace

Result<std::unique_ptr<GpuBounce>> GpuBounce::open(const TransferOptions& options,
                                                   const kv::Gpus::Open& open_gpu) {
  CACHALOT_TRY_ASSIGN(kv::EngineCache cache, kv::engine_cache_of(options.cache, options.geometry));
  std::unique_ptr<GpuBounce> made(new GpuBounce(std::move(cache), options));
  CACHALOT_TRY(made->start(options, open_gpu));
  return made;
}

GpuBounce::GpuBounce(kv::EngineCache cache, const TransferOptions& options)
    : cache_(std::move(cache)), stream_(options.cache.cuda_stream) {}

GpuBounce::~GpuBounce() {
  close();
  if (gpu_ != nullptr && gpu_->is_lost()) kv::keep_until_exit(memory_);
}

Status GpuBounce::start(const TransferOptions& options, const kv::Gpus::Open& open_gpu) {
  const KvGeometry& geometry = cache_.geometry();
  if (cache_.pages_per_block() != 1 || geometry.layer_bytes() % kLine != 0) {
    return Error::make(Code::kInvalidArgument,
                       "a page of %u tokens with layers of %" PRIu64
                       " bytes; expected pages of block_tokens, %u, with layers of a multiple of "
                       "%" PRIu64 ", which a cache on a GPU needs",
                       cache_.page_tokens(), geometry.layer_bytes(), geometry.block_tokens, kLine);
  }
  const int ordinal = *options.cache.cuda_device;
  CACHALOT_TRY_ASSIGN(std::unique_ptr<kv::CudaDevice> device, open_gpu(ordinal));
  gpu_ = std::make_unique<kv::Gpu>(ordinal, std::move(device));
  for (const Buffer& tensor : options.cache.tensors) {
    CACHALOT_TRY(gpu_->check_memory(tensor.data, tensor.bytes));
  }
  const os::AvailableMemory available = os::available_memory();
  if (options.bounce_bytes < geometry.block_bytes() || options.bounce_bytes > available.bytes) {
    return Error::make(Code::kNoSpace,
                       "bounce_bytes is %" PRIu64 "; expected the %" PRIu64
                       " of a page at least, and at most the %" PRIu64 " that %s has left",
                       options.bounce_bytes, geometry.block_bytes(), available.bytes,
                       available.limited_by.c_str());
  }
  TransferOptions with_bounce = options;
  with_bounce.cache = make_bounce_cache(options.bounce_bytes);
  CACHALOT_TRY(gpu_->device().register_pool(memory_->data(), memory_->size()));
  // No other thread writes what a copy reads, or reads what it writes.
  CACHALOT_TRY_ASSIGN(
      engine_, kv::CudaEngine::make(gpu_->device(), cache_, kv::default_block_order(), *domain_,
                                    {.started_reads = kv::ReadCheck::kPinned}));
  CACHALOT_TRY_ASSIGN(rank_, TransferRank::open(with_bounce));
  gatherer_ = std::thread([this] { run_gathers(); });
  scatterer_ = std::thread([this] { run_scatters(); });
  return {};
}

// Each page whole, in the default order of blocks: layer by layer, so that a layer of a page is one piece.
PagedCache GpuBounce::make_bounce_cache(std::uint64_t bytes) {
  const KvGeometry& g = cache_.geometry();
  const std::uint64_t page = g.block_bytes(), layer = g.layer_bytes();
  const auto pages =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(bytes / page, cache_.pages()));
  memory_ = std::make_shared<base::HugeVector<std::byte>>((pages * page + kHugePage - 1) /
                                                          kHugePage * kHugePage);
  for (PageId i = pages; i-- > 0;) free_.push_back(i);
  PagedCache made{.tensors = {{memory_->data(), pages * page}}, .pages = pages};
  const std::uint64_t content = g.content_bytes(0);
  const bool is_grouped = g.attention == Attention::kGrouped;
  const std::uint64_t token = is_grouped ? g.heads() * content : g.layer_token_bytes();
  made.strides.emplace();
  for (std::uint64_t part = 0; part < kParts; ++part) {
    (*made.strides)[part] = {.offset = part * (is_grouped ? g.block_tokens * token : content),
                             .layer = layer,
                             .page = page,
                             .head = is_grouped ? content : 0,
                             .token = token};
  }
  return made;
}

void GpuBounce::close() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
    gathers_.clear();
  }
  changed_.notify_all();
  if (gatherer_.joinable()) gatherer_.join();
  if (scatterer_.joinable()) scatterer_.join();
  if (!rank_) return;
  rank_->close();
  const std::lock_guard lock(mutex_);
  for (auto& [id, ask] : asks_) {
    if (ask.status.state != HandoverState::kRunning) continue;
    const Result<AskStatus> last = rank_->status(id);
    ask.status.state = HandoverState::kFailed;
    ask.status.error = last && last->state == HandoverState::kFailed
                           ? last->error
                           : Error::make(Code::kCancelled, "the rank was closed");
  }
  changed_.notify_all();
}

// --- Pages --------------------------------------------------------------------------------------------

Status GpuBounce::check_pages(std::span<const PageId> pages) const {
  for (const PageId page : pages) {
    if (page >= cache_.pages()) {
      return Error::make(Code::kInvalidArgument, "page %u; the cache has %u pages", page,
                         cache_.pages());
    }
  }
  return {};
}

Result<std::vector<PageId>> GpuBounce::take(std::size_t count, Lock& lock) {
  if (count > free_.size()) collect(lock);
  if (count > free_.size()) {
    return Error::make(Code::kNoSpace,
                       "%zu pages; %zu of the bounce pages between the GPU and the links are free "
                       "(bounce_bytes)",
                       count, free_.size());
  }
  std::vector<PageId> taken(free_.end() - static_cast<std::ptrdiff_t>(count), free_.end());
  free_.resize(free_.size() - count);
  return taken;
}

void GpuBounce::give(std::vector<PageId>& pages) {
  free_.insert(free_.end(), pages.begin(), pages.end());
  pages.clear();
}

Result<GpuBounce::Mark> GpuBounce::mark() const {
  CACHALOT_TRY(gpu_->check(stream()));
  CACHALOT_TRY_ASSIGN(kv::StreamMark made, gpu_->mark(stream()));
  return Mark(std::make_shared<kv::StreamMark>(std::move(made)));
}

// @param first, end  tokens, from the first page's first one on
Status GpuBounce::copy(kv::Direction direction, const std::vector<PageId>& pages,
                       const std::vector<PageId>& bounce, std::uint32_t first, std::uint32_t end,
                       kv::LayerRange layers, const kv::StreamMark& mark) {
  const std::uint32_t page_tokens = cache_.page_tokens();
  const std::uint64_t page_bytes = cache_.geometry().block_bytes();
  std::vector<memory::Extent> extents;
  std::vector<kv::TokenRange> ranges(pages.size());
  std::vector<kv::BlockCopy> blocks;
  extents.reserve(pages.size());
  for (std::size_t i = 0; i < pages.size(); ++i) {
    extents.push_back({memory_->data() + bounce[i] * page_bytes, page_bytes});
    const auto begin = static_cast<std::uint32_t>(i) * page_tokens;
    ranges[i] = {std::max(first, begin) - begin, std::min(end, begin + page_tokens) - begin};
    const bool is_whole = ranges[i].first == 0 && ranges[i].last == page_tokens;
    blocks.push_back({.pool = {&extents[i], 1},
                      .pages = {&pages[i], 1},
                      .tokens = std::span(&ranges[i], is_whole ? 0 : 1)});
  }
  CACHALOT_TRY_ASSIGN(kv::StreamLoan loan, gpu_->borrow_behind(mark));
  CACHALOT_TRY_ASSIGN(kv::PendingCopy pending,
                      direction == kv::Direction::kGather
                          ? engine_->start_gather(blocks, loan.stream(), layers)
                          : engine_->start_scatter(blocks, loan.stream(), layers));
  CACHALOT_TRY(gpu_->note(pending.wait(kv::WaitBy::kSleeping)));
  loan.note_empty();
  return {};
}

// --- Prefill --------------------------------------------------------------------------------------------

Status GpuBounce::offer(const OfferOptions& o) {
  CACHALOT_TRY(check_pages(o.pages));
  Lock lock(mutex_);
  if (failure_) return *failure_;
  const std::uint32_t layers = cache_.geometry().layers;
  if (o.layers_ready != kAllLayers && o.layers_ready > layers) {
    return Error::make(Code::kInvalidArgument, "%u layers are ready; this rank has %u layers",
                       o.layers_ready, layers);
  }
  Offer offer;
  offer.pages.assign(o.pages.begin(), o.pages.end());
  CACHALOT_TRY_ASSIGN(offer.bounce, take(o.pages.size(), lock));
  OfferOptions with_bounce = o;
  with_bounce.pages = offer.bounce;
  with_bounce.layers_ready = 0;
  if (const Status offered = rank_->offer(with_bounce); !offered) {
    give(offer.bounce);
    return offered;
  }
  offers_[o.id] = std::move(offer);
  const Status begun = gather_later(o.id, std::min(o.layers_ready, layers), std::nullopt);
  if (!begun) static_cast<void>(rank_->withdraw(o.id));
  return begun;
}

Status GpuBounce::gather_later(const OfferId& id, std::uint32_t layers,
                               std::optional<std::vector<std::byte>> note) {
  const auto found = offers_.find(id);
  if (found == offers_.end()) return rank_->layers_ready(id, 0);
  Offer& offer = found->second;
  if (layers <= offer.marked && !note) return {};
  CACHALOT_TRY_ASSIGN(Mark marked, mark());
  const std::uint32_t first = std::min(offer.marked, layers);
  offer.marked = std::max(offer.marked, layers);
  gathers_.push_back({id, {first, offer.marked}, std::move(marked), std::move(note)});
  changed_.notify_all();
  return {};
}

Status GpuBounce::layers_ready(const OfferId& id, std::uint32_t layers) {
  const std::lock_guard lock(mutex_);
  CACHALOT_TRY(rank_->layers_ready(id, 0));
  if (layers > cache_.geometry().layers) return rank_->layers_ready(id, layers);  // says why not
  return gather_later(id, layers, std::nullopt);
}

Status GpuBounce::finish(const OfferId& id, std::span<const std::byte> note) {
  const std::lock_guard lock(mutex_);
  if (note.size() > kMostNoteBytes) return rank_->finish(id, note);  // says why not
  CACHALOT_TRY(rank_->layers_ready(id, 0));
  return gather_later(id, cache_.geometry().layers,
                      std::vector<std::byte>(note.begin(), note.end()));
}

void GpuBounce::forget_gathers(const OfferId& id, Lock& lock) {
  std::erase_if(gathers_, [&](const Gather& gather) { return gather.offer == id; });
  if (gathering_ == id) is_gather_unwanted_ = true;
  changed_.wait(lock, [&] { return gathering_ != id; });
}

Status GpuBounce::withdraw(const OfferId& id) {
  Lock lock(mutex_);
  CACHALOT_TRY(rank_->withdraw(id));
  forget_gathers(id, lock);
  return {};
}

std::vector<EndedOffer> GpuBounce::ended_offers() {
  Lock lock(mutex_);
  collect(lock);
  return std::exchange(ended_, {});
}

// The bounce pages of offers that have ended are free again, whether or not the caller has asked for their ends.
void GpuBounce::collect(Lock& lock) {
  for (EndedOffer& end : rank_->ended_offers()) {
    forget_gathers(end.id, lock);
    const auto found = offers_.find(end.id);
    if (found != offers_.end()) {
      if (found->second.failure) end.status = *found->second.failure;
      give(found->second.bounce);
      offers_.erase(found);
    }
    ended_.push_back(std::move(end));
  }
}

void GpuBounce::run_gathers() {
  Lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stops_ || !gathers_.empty(); });
    if (stops_) return;
    Gather gather = std::move(gathers_.front());
    gathers_.pop_front();
    const auto found = offers_.find(gather.offer);
    if (found == offers_.end()) continue;
    const std::vector<PageId> pages = found->second.pages, bounce = found->second.bounce;
    gathering_ = gather.offer;
    is_gather_unwanted_ = false;
    const auto goes_on = [this] { return !is_gather_unwanted_ && !stops_; };
    Status copied;
    // A layer at a time: the first one is on its way while the others come.
    for (std::uint32_t layer = gather.layers.first;
         copied && layer < gather.layers.last && goes_on(); ++layer) {
      lock.unlock();
      const auto tokens = static_cast<std::uint32_t>(pages.size()) * cache_.page_tokens();
      copied =
          copy(kv::Direction::kGather, pages, bounce, 0, tokens, {layer, layer + 1}, *gather.mark);
      // An offer that has ended: its end is told by ended_offers().
      if (copied) static_cast<void>(rank_->layers_ready(gather.offer, layer + 1));
      lock.lock();
    }
    if (copied && gather.note && goes_on())
      static_cast<void>(rank_->finish(gather.offer, *gather.note));
    gathering_.reset();
    if (!copied) fail(copied.error());
    changed_.notify_all();
  }
}

// --- Decode ---------------------------------------------------------------------------------------------

Result<AskId> GpuBounce::ask(const KvReference& reference, const AskOptions& o) {
  CACHALOT_TRY(check_pages(o.pages));
  Lock lock(mutex_);
  if (failure_) return *failure_;
  Ask ask;
  ask.pages.assign(o.pages.begin(), o.pages.end());
  std::vector<PageId> distinct = ask.pages;
  std::sort(distinct.begin(), distinct.end());
  const auto twice = std::adjacent_find(distinct.begin(), distinct.end());
  if (twice != distinct.end())
    return Error::make(Code::kInvalidArgument, "page %u is given twice", *twice);
  CACHALOT_TRY_ASSIGN(ask.mark, mark());
  CACHALOT_TRY_ASSIGN(ask.bounce, take(o.pages.size(), lock));
  AskOptions with_bounce = o;
  with_bounce.pages = ask.bounce;
  const Result<AskId> id = rank_->ask(reference, with_bounce);
  if (!id) {
    give(ask.bounce);
    return id.error();
  }
  const std::uint64_t tokens = o.tokens == 0 ? reference.tokens : o.tokens;
  ask.first = static_cast<std::uint32_t>(o.first_token % cache_.page_tokens());
  ask.end = ask.first + static_cast<std::uint32_t>(tokens - o.first_token);
  asks_.emplace(*id, std::move(ask));
  changed_.notify_all();
  return *id;
}

// Copies what has arrived of an ask. @return whether there was anything to do
bool GpuBounce::advance(AskId id, Lock& lock) {
  Ask* ask = &asks_.at(id);
  const Result<AskStatus> arrived = rank_->status(id);
  if (!arrived || ask->status.state != HandoverState::kRunning) return false;
  const std::uint32_t all = cache_.geometry().layers;
  const std::uint32_t layers = arrived->state == HandoverState::kDone ? all : arrived->layers;
  const std::uint32_t there = ask->status.layers;
  if (layers > there && arrived->state != HandoverState::kFailed) {
    scattering_ = id;
    lock.unlock();
    const Status copied = copy(kv::Direction::kScatter, ask->pages, ask->bounce, ask->first,
                               ask->end, {there, layers}, *ask->mark);
    lock.lock();
    scattering_.reset();
    changed_.notify_all();
    if (!copied) {
      fail(copied.error());
      return true;
    }
    ask->status.layers = layers;
    ask->status.bytes = arrived->bytes;
  } else if (arrived->state == HandoverState::kRunning) {
    return false;
  }
  if (arrived->state != HandoverState::kRunning) {
    const std::uint32_t last = ask->status.layers;
    ask->status = *arrived;
    ask->status.layers = last;
  }
  changed_.notify_all();
  return true;
}

void GpuBounce::run_scatters() {
  Lock lock(mutex_);
  std::chrono::microseconds look = kLook;
  while (!stops_) {
    std::vector<AskId> running;
    for (const auto& [id, ask] : asks_) {
      if (ask.status.state == HandoverState::kRunning) running.push_back(id);
    }
    if (running.empty()) {
      changed_.wait(lock);
      continue;
    }
    bool has_moved = false;
    for (const AskId id : running) {
      if (!stops_ && asks_.contains(id)) has_moved |= advance(id, lock);
    }
    look = has_moved ? kLook : std::min(2 * look, kSeldom);
    if (!has_moved && !stops_) changed_.wait_for(lock, look);
  }
}

Result<AskStatus> GpuBounce::wait(AskId id, std::uint64_t timeout_ns, std::uint32_t layers) {
  Lock lock(mutex_);
  const std::uint64_t now_ns = base::SteadyClock::read();
  const std::uint64_t end_ns =
      timeout_ns > (~std::uint64_t{0} >> 2) ? ~std::uint64_t{0} : now_ns + timeout_ns;
  for (;;) {
    const auto found = asks_.find(id);
    if (found == asks_.end())
      return Error::make(Code::kNotFound, "no such ask, or it was released");
    const AskStatus& status = found->second.status;
    const std::uint64_t read_ns = base::SteadyClock::read();
    if (status.state != HandoverState::kRunning || status.layers >= layers || read_ns >= end_ns)
      return AskStatus(status);
    if (end_ns == ~std::uint64_t{0}) {
      changed_.wait(lock);
    } else {
      changed_.wait_for(lock, std::chrono::nanoseconds(end_ns - read_ns));
    }
  }
}

void GpuBounce::release(AskId id) {
  Lock lock(mutex_);
  changed_.wait(lock, [&] { return scattering_ != id; });
  const auto found = asks_.find(id);
  if (found == asks_.end()) return;
  rank_->release(id);  // nothing writes into the bounce pages any more
  give(found->second.bounce);
  asks_.erase(found);
  changed_.notify_all();
}

// The GPU may still read or write: nothing is begun on it, and everything ends.
void GpuBounce::fail(const Error& error) {
  const Error all =
      Error::make(Code::kIo, "a copy between the GPU and the links: %s", error.message);
  if (!failure_) failure_ = all;
  gathers_.clear();
  for (auto& [id, offer] : offers_) {
    offer.failure = all;
    static_cast<void>(rank_->withdraw(id));
  }
  for (auto& [id, ask] : asks_) {
    if (ask.status.state != HandoverState::kRunning) continue;
    ask.status.state = HandoverState::kFailed;
    ask.status.error = all;
    rank_->release(id);  // peers hear of it
  }
  changed_.notify_all();
}

}  // namespace cachalot::transfer
