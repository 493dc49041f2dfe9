// How vTensors come and go. Growth, prefixes and what is done under pressure are in files of their own.
#include "vtensor/vtensor_set.h"

#include <cinttypes>
#include <system_error>
#include <utility>

#include "base/check.h"

namespace cachalot::vtensor {

VTensorSet::VTensorSet(device_memory::Backend& backend, ChunkBudget& budget,
                       const VTensorOptions& options, RangeLayout layout)
    : backend_(backend),
      budget_(budget),
      options_(options),
      layout_(std::move(layout)),
      store_(backend, budget, options.chunk_bytes),
      prefixes_(layout_, options.block_tokens, options.copy != nullptr) {}

Result<RangeLayout> VTensorSet::check(const device_memory::Backend& backend,
                                      const VTensorOptions& options) {
  const std::uint64_t granularity = backend.granularity_bytes();
  if (options.chunk_bytes == 0 || options.chunk_bytes % granularity != 0) {
    return Error::make(Code::kInvalidArgument,
                       "vtensor: chunks of %" PRIu64 " bytes, expected a multiple of %" PRIu64,
                       options.chunk_bytes, granularity);
  }
  return RangeLayout::make(options.shape, options.layout, options.chunk_bytes, options.max_tokens);
}

Result<std::unique_ptr<VTensorSet>> VTensorSet::open(device_memory::Backend& backend,
                                                     ChunkBudget& budget,
                                                     const VTensorOptions& options) {
  CACHALOT_TRY_ASSIGN(RangeLayout layout, check(backend, options));
  std::unique_ptr<VTensorSet> set(new VTensorSet(backend, budget, options, std::move(layout)));
  CACHALOT_TRY(set->start());
  return set;
}

Status VTensorSet::start() {
  if (!options_.with_thread) return {};
  try {
    thread_ = std::thread([this] { run(); });
    watch_ = std::thread([this] { watch(); });
  } catch (const std::system_error& error) {
    return Error::make(Code::kNoSpace, "vtensor: no thread to be had: %.120s", error.what());
  }
  return {};
}

VTensorSet::~VTensorSet() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  budget_.stop_waiting();
  if (thread_.joinable()) thread_.join();
  if (watch_.joinable()) watch_.join();
  for (const auto& vtensor : all_) prefixes_.unpin(vtensor->pinned_);
  while (const auto references = prefixes_.evict()) store_.drop(*references);
  for (const auto& vtensor : all_) {
    std::vector<Chunk> freed;
    const Status unmapped = vtensor->planes_.truncate(0, freed);
    store_.drop(freed);
    // A range that cannot be unmapped stays with the backend.
    if (unmapped) static_cast<void>(backend_.free_range(vtensor->base()));
  }
}

Status VTensorSet::check_tokens(std::uint64_t tokens, std::uint64_t most) const {
  if (tokens <= most) return {};
  return Error::make(Code::kInvalidArgument,
                     "vtensor: %" PRIu64 " tokens, expected at most %" PRIu64, tokens, most);
}

// An idle one, or a new one. @param empty  without chunks: the first ones may be another request's
Result<VTensor*> VTensorSet::pick(std::uint64_t tokens, std::uint64_t max_tokens, bool empty) {
  VTensor* vtensor = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!empty) vtensor = idle_.take_best(tokens, layout_.chunks(max_tokens));
    if (vtensor == nullptr) vtensor = idle_.take_empty();
  }
  std::unique_ptr<VTensor> made;
  if (vtensor == nullptr) {
    CACHALOT_TRY_ASSIGN(const device_memory::Address base, backend_.reserve(layout_.range_bytes()));
    made = std::make_unique<VTensor>(backend_, layout_, base);
    vtensor = made.get();
  }
  const std::lock_guard lock(mutex_);
  if (made) all_.push_back(std::move(made));
  vtensor->busy_ = true;
  vtensor->shared_tokens_ = 0;
  vtensor->max_tokens_ = max_tokens;
  stats_.live += 1;
  return vtensor;
}

Result<VTensorSet::Created> VTensorSet::create(std::uint64_t tokens, std::uint64_t max_tokens,
                                               std::span<const BlockHash> hashes) {
  CACHALOT_TRY(check_tokens(max_tokens, layout_.max_tokens()));
  CACHALOT_TRY(check_tokens(tokens, max_tokens));
  PrefixTable::Found found;
  if (tokens > 1 && !hashes.empty()) {
    const std::lock_guard lock(mutex_);
    found = prefixes_.find(hashes, tokens - 1);
    store_.share(found.full.chunks);
    for (const auto& tail : found.tails) store_.share({&tail.chunk, 1});
    prefixes_.pin(found.last);
  }
  Result<VTensor*> picked = pick(tokens, max_tokens, found.tokens != 0 || tokens == 0);
  Status done = picked ? Status() : Status(picked.error());
  if (picked) {
    const Turn turn(*this, **picked, Turn::Taken{});
    done = fill(**picked, tokens, found);
  } else {
    store_.drop(found.full.chunks);
  }
  for (const auto& tail : found.tails) store_.drop({&tail.chunk, 1});
  {
    const std::lock_guard lock(mutex_);
    if (picked) {
      (*picked)->pinned_ = found.last;
    } else {
      prefixes_.unpin(found.last);
    }
    if (done) stats_.matched_tokens += found.tokens;
  }
  if (!done) {
    if (picked) release(*picked);
    return done.error();
  }
  return Created{.vtensor = *picked, .shared_tokens = found.tokens};
}

Status VTensorSet::fill(VTensor& vtensor, std::uint64_t tokens, const PrefixTable::Found& found) {
  if (found.tokens != 0) CACHALOT_TRY(borrow(vtensor, found));
  CACHALOT_TRY(grow(vtensor, tokens));
  return copy_tails_of(vtensor, found);
}

void VTensorSet::release(VTensor* vtensor) {
  {
    std::unique_lock lock(mutex_);
    turn_over_.wait(lock, [&] { return !vtensor->busy_; });
    unqueue(*vtensor);
    prefixes_.unpin(std::exchange(vtensor->pinned_, nullptr));
    stats_.live -= 1;
    stats_.borrowed_chunks -= std::exchange(vtensor->borrowed_chunks_, 0);
    idle_.add(vtensor);
    asks_rest_ = false;
  }
  work_.notify_one();
}

VTensorStats VTensorSet::stats() const {
  const std::lock_guard lock(mutex_);
  VTensorStats stats = stats_;
  stats.chunks = store_.counts();
  stats.idle_chunks = idle_.chunks();
  stats.recorded_blocks = prefixes_.blocks();
  for (const VTensor* each : stuck_) stats.stuck_chunks += each->planes_.chunks();
  return stats;
}

}  // namespace cachalot::vtensor
