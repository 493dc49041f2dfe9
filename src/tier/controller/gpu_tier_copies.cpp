#include "tier/controller/gpu_tier_copies.h"

#include <cinttypes>
#include <string_view>

#include "base/clock.h"
#include "memory/coherence.h"

namespace cachalot::tier {
namespace {

// Of the host's layouts (kv/layout.h): what is slower than the block's number is an extent of its own, and the rest
// is the order of a block.
struct HostOrder {
  const char* layout;
  kv::BlockOrder order;
  bool by_layer;  // an extent a layer
};
constexpr HostOrder kHostOrders[] = {
    {"sglang_layer_first", {"host_layer_first", "KLNHC", "LNKC"}, true},
    {"sglang_page_first", {"host_page_first", "KNLHC", "NLKC"}, false},
    {"sglang_page_first_direct", {"host_page_first_direct", "KLNHC", "LNKC"}, false},
    {"sglang_page_head", {"host_page_head", "KHNLC", "NLKC"}, false},
};

constexpr std::uint64_t kLine = 64;

}  // namespace

GpuTierCopies::GpuTierCopies(kv::EngineCache device, base::HugeVector<std::byte> memory,
                             TierCaches caches)
    : TierCopies(std::move(device)),
      memory_(std::make_shared<base::HugeVector<std::byte>>(std::move(memory))),
      domain_(memory::make_coherent_domain()) {
  caches_ = std::move(caches);
}

GpuTierCopies::~GpuTierCopies() {
  if (gpu_ != nullptr && gpu_->is_lost()) kv::keep_until_exit(memory_);
}

Result<std::unique_ptr<TierCopies>> GpuTierCopies::make(kv::EngineCache device,
                                                        base::HugeVector<std::byte> memory,
                                                        TierCaches caches,
                                                        const kv::Gpus::Open& open_gpu) {
  std::unique_ptr<GpuTierCopies> made(
      new GpuTierCopies(std::move(device), std::move(memory), std::move(caches)));
  CACHALOT_TRY(made->open(open_gpu));
  return std::unique_ptr<TierCopies>(std::move(made));
}

Status GpuTierCopies::open(const kv::Gpus::Open& open_gpu) {
  const int ordinal = *caches_.device.cuda_device;
  CACHALOT_TRY_ASSIGN(std::unique_ptr<kv::CudaDevice> device, open_gpu(ordinal));
  gpu_ = std::make_unique<kv::Gpu>(ordinal, std::move(device));
  for (const Buffer& tensor : caches_.device.tensors) {
    CACHALOT_TRY(gpu_->check_memory(tensor.data, tensor.bytes));
  }
  if (memory_->empty()) return {};
  CACHALOT_TRY(lay_out());
  CACHALOT_TRY(gpu_->device().register_pool(memory_->data(), memory_->size()));
  // No other thread writes what a copy reads, or reads what it writes: slots are locked while it lasts.
  CACHALOT_TRY_ASSIGN(engine_, kv::CudaEngine::make(gpu_->device(), device_, order_, *domain_,
                                                    {.started_reads = kv::ReadCheck::kPinned}));
  return {};
}

Status GpuTierCopies::lay_out() {
  const KvGeometry& geometry = device_.geometry();
  const bool is_grouped = geometry.attention == Attention::kGrouped;
  for (const HostOrder& host : kHostOrders) {
    if (caches_.host.layout != host.layout) continue;
    order_ = host.order;
    extents_ = (is_grouped ? 2 : 1) * (host.by_layer ? geometry.layers : 1);
  }
  if (extents_ == 0) {
    return Error::make(Code::kUnsupported, "host layout %s: expected one that a GPU's L1 can have",
                       caches_.host.layout.c_str());
  }
  extent_bytes_ = geometry.block_bytes() / extents_;
  if (extent_bytes_ % kLine != 0) {
    return Error::make(Code::kInvalidArgument,
                       "a block has pieces of %" PRIu64
                       " bytes in host_layout %s; expected multiples of %" PRIu64
                       ", which an L1 on a GPU needs",
                       extent_bytes_, caches_.host.layout.c_str(), kLine);
  }
  return {};
}

gpu::Stream GpuTierCopies::stream() const {
  return static_cast<gpu::Stream>(caches_.device.cuda_stream);
}

Status GpuTierCopies::check() const {
  if (has_failed_.load(std::memory_order_relaxed)) {
    return Error::make(
        Code::kIo,
        "a copy between L1 and L2 failed before; expected a cache made anew, on a GPU "
        "that works");
  }
  return gpu_->check(stream());
}

Result<Mark> GpuTierCopies::mark() const {
  CACHALOT_TRY(check());
  CACHALOT_TRY_ASSIGN(kv::StreamMark mark, gpu_->mark(stream()));
  return Mark(std::make_shared<kv::StreamMark>(std::move(mark)));
}

Status GpuTierCopies::follow(const Mark& mark) const {
  CACHALOT_TRY(check());
  return gpu_->follow(stream(), *mark);
}

GpuTierCopies::Copies GpuTierCopies::copies_of(std::span<const SlotPair> blocks) const {
  Copies copies;
  const std::uint32_t pages = device_.pages_per_block();
  const std::uint64_t stride = extent_bytes_ * caches_.host.pages;  // of an extent of all blocks
  copies.extents.reserve(blocks.size() * extents_);
  copies.pages.reserve(blocks.size() * pages);
  for (const SlotPair& block : blocks) {
    for (std::uint32_t i = 0; i < extents_; ++i) {
      copies.extents.push_back(
          {memory_->data() + i * stride + block.host * extent_bytes_, extent_bytes_});
    }
    for (std::uint32_t i = 0; i < pages; ++i) copies.pages.push_back(block.device * pages + i);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    copies.blocks.push_back({std::span(copies.extents).subspan(i * extents_, extents_),
                             std::span(copies.pages).subspan(i * pages, pages)});
  }
  return copies;
}

// All layers are launched at once: the GPU goes from one to the next without this thread. The mark of a layer is taken when
// its copy is on the stream and the next one is not, so what follows the mark waits for no later layer.
Status GpuTierCopies::try_load(std::span<const SlotPair> blocks, const Mark& mark,
                               const FinishLayer& finish_layer) {
  const Copies copies = copies_of(blocks);
  CACHALOT_TRY_ASSIGN(kv::StreamLoan loan, gpu_->borrow_behind(*mark));
  std::vector<kv::PendingCopy> layers;
  const std::uint32_t count = device_.geometry().layers;
  layers.reserve(count);
  const std::uint64_t begin = base::SteadyClock::read();
  for (std::uint32_t layer = 0; layer < count; ++layer) {
    CACHALOT_TRY_ASSIGN(kv::PendingCopy copy,
                        engine_->start_scatter(copies.blocks, loan.stream(), {layer, layer + 1}));
    layers.push_back(std::move(copy));
    CACHALOT_TRY_ASSIGN(kv::StreamMark arrival, gpu_->mark(loan.stream()));
    finish_layer(std::make_shared<kv::StreamMark>(std::move(arrival)));
  }
  for (kv::PendingCopy& layer : layers) {
    CACHALOT_TRY(gpu_->note(layer.wait(kv::WaitBy::kSleeping)));
  }
  loan.note_empty();
  load_bandwidth_.add(block_bytes() * blocks.size(), base::SteadyClock::read() - begin);
  return {};
}

Status GpuTierCopies::try_back_up(std::span<const SlotPair> blocks, const Mark& mark) {
  const Copies copies = copies_of(blocks);
  Mark computed = mark;
  if (computed == nullptr) {  // nothing was committed yet: these blocks were loaded
    CACHALOT_TRY_ASSIGN(computed, this->mark());
  }
  CACHALOT_TRY_ASSIGN(kv::StreamLoan loan, gpu_->borrow_behind(*computed));
  CACHALOT_TRY_ASSIGN(kv::PendingCopy copy, engine_->start_gather(copies.blocks, loan.stream()));
  CACHALOT_TRY(gpu_->note(copy.wait(kv::WaitBy::kSleeping)));
  loan.note_empty();
  return {};
}

// Also where nothing is in flight: the books have these slots already.
Status GpuTierCopies::fail_for_good(const Status& outcome) {
  if (outcome) return {};
  has_failed_.store(true, std::memory_order_relaxed);
  return Error::make(Code::kIo, "a copy between L1 and L2: %s", outcome.error().message);
}

Status GpuTierCopies::load(std::span<const SlotPair> blocks, const Mark& mark,
                           const FinishLayer& finish_layer) {
  CACHALOT_TRY(check());
  return fail_for_good(gpu_->note(try_load(blocks, mark, finish_layer)));
}

Status GpuTierCopies::back_up(std::span<const SlotPair> blocks, const Mark& mark) {
  CACHALOT_TRY(check());
  return fail_for_good(gpu_->note(try_back_up(blocks, mark)));
}

}  // namespace cachalot::tier
