// A rank whose cache is on a GPU: page-locked pages of this process's memory are between the GPU's pages and the links.
// The rank that peers see has a cache of these bounce pages. Layers are copied one by one: on the prefill's side a
// layer goes on its way while the next one comes from the GPU, on the decode's side the other way round.
//
//   prefill   offer, layers_ready, finish  ─►  gatherer: GPU to bounce pages  ─►  layers_ready of the rank
//   decode    the rank's layers arrive     ─►  scatterer: bounce pages to GPU ─►  status, wait
//
// 1. A copy follows a mark of the cache's stream: a gather the call that says that the layers are computed, a scatter the
//    call of ask(). The caller's stream waits for neither.
// 2. Bounce pages belong to one offer or ask from its begin until its end (of an ask: release()). Not a ring: a damaged
//    chunk is sent again, ranks take a layer at different times, and a standing offer is read again.
// 3. After withdraw(), ended_offers() and release() no copy reads or writes the pages of that offer or ask: they wait for
//    the layer that is being copied.
// 4. After a copy that fails the GPU is not used any more: offers and asks end with kIo.
//
// @threads any
#pragma once

#include <cachalot/transfer.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/huge_allocator.h"
#include "kv/cuda/cuda_engine.h"
#include "kv/cuda/gpus.h"
#include "kv/engine_cache.h"
#include "memory/coherence.h"

namespace cachalot::transfer {

class GpuBounce {
 public:
  // @errors as TransferRank::open() and CudaDevice::open(); kInvalidArgument: layers that are no multiples of 64 bytes,
  //         memory of another device; kNoSpace: bounce_bytes cannot be had, or page-locked
  // @cost   takes and page-locks bounce_bytes
  static Result<std::unique_ptr<GpuBounce>> open(const TransferOptions& options,
                                                 const kv::Gpus::Open& open_gpu);
  ~GpuBounce();
  GpuBounce(const GpuBounce&) = delete;
  GpuBounce& operator=(const GpuBounce&) = delete;

  // As those of TransferRank. offer() and ask(): kNoSpace: too few bounce pages are free.
  Status offer(const OfferOptions& options);
  Status layers_ready(const OfferId& id, std::uint32_t layers);
  Status finish(const OfferId& id, std::span<const std::byte> note);
  Status withdraw(const OfferId& id);
  std::vector<EndedOffer> ended_offers();
  Result<AskId> ask(const KvReference& reference, const AskOptions& options);
  Result<AskStatus> wait(AskId ask, std::uint64_t timeout_ns, std::uint32_t layers);
  void release(AskId ask);
  void close();
  // What needs no pages.
  TransferRank& rank() { return *rank_; }

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Mark = std::shared_ptr<const kv::StreamMark>;
  struct Offer {
    std::vector<PageId> pages, bounce;
    std::uint32_t marked = 0;  // layers that are gathered or on their way
    std::optional<Error> failure;
  };
  struct Gather {
    OfferId offer;
    kv::LayerRange layers;
    Mark mark;
    std::optional<std::vector<std::byte>> note;  // goes after them
  };
  struct Ask {
    std::vector<PageId> pages, bounce;
    std::uint32_t first = 0, end = 0;  // tokens, from the first page's first one on
    Mark mark;
    AskStatus status;  // of what is in the GPU's pages
  };

  GpuBounce(kv::EngineCache cache, const TransferOptions& options);
  Status start(const TransferOptions& options, const kv::Gpus::Open& open_gpu);
  PagedCache make_bounce_cache(std::uint64_t bytes);
  gpu::Stream stream() const { return static_cast<gpu::Stream>(stream_); }
  Status check_pages(std::span<const PageId> pages) const;
  Result<std::vector<PageId>> take(std::size_t count, Lock& lock);
  void give(std::vector<PageId>& pages);
  Result<Mark> mark() const;

  // With the lock.
  Status gather_later(const OfferId& id, std::uint32_t layers,
                      std::optional<std::vector<std::byte>> note);
  void forget_gathers(const OfferId& id, Lock& lock);
  void collect(Lock& lock);
  void run_gathers();
  void run_scatters();
  bool advance(AskId id, Lock& lock);
  void fail(const Error& error);

  // Without it.
  Status copy(kv::Direction direction, const std::vector<PageId>& pages,
              const std::vector<PageId>& bounce, std::uint32_t first, std::uint32_t end,
              kv::LayerRange layers, const kv::StreamMark& mark);

  const kv::EngineCache cache_;
  const CudaStream stream_;
  std::shared_ptr<base::HugeVector<std::byte>> memory_;
  const std::unique_ptr<memory::Domain> domain_ = memory::make_coherent_domain();
  std::unique_ptr<kv::Gpu> gpu_;
  std::unique_ptr<kv::CudaEngine> engine_;
  std::optional<TransferRank> rank_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<PageId> free_;
  std::map<OfferId, Offer> offers_;
  std::vector<EndedOffer> ended_;  // that the caller has not asked for
  std::deque<Gather> gathers_;
  std::optional<OfferId> gathering_;
  bool is_gather_unwanted_ = false;  // that one, from the next layer on
  std::map<AskId, Ask> asks_;
  std::optional<AskId> scattering_;
  std::optional<Error> failure_;  // of the GPU
  bool stops_ = false;
  std::thread gatherer_, scatterer_;
};

}  // namespace cachalot::transfer
