#include "cuda_ways.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace cachalot::apps::bench {
namespace {

using kv::Direction;
using kv::Way;

constexpr std::uint32_t kSglangThreadBlocks = 2;  // what its kernels take by default

// A way of copying, from submitting to the end of the stream.
struct Subject {
  Measured measured;
  std::function<Status(std::span<const kv::BlockCopy>)> copy;
  std::function<Status(std::span<const kv::BlockCopy>)> prepare = {};  // not measured; may be empty
};

// The ways of one call, on pages of their own.
class Ways {
 public:
  static Result<std::unique_ptr<Ways>> make(kv::CudaDevice& device, const CudaCall& call) {
    std::unique_ptr<Ways> made(new Ways(device, call));
    CACHALOT_TRY_ASSIGN(made->pages_, GpuPages::make(device, call.model, call.blocks));
    for (std::uint32_t t = 0; call.every_nth > 1 && t < call.model.geometry.block_tokens;
         t += call.every_nth) {
      made->tokens_.push_back({t, t + 1});
    }
    return made;
  }

  Status add_engine(const std::string& name, kv::CudaOptions options, bool flushes = false) {
    options.stream = pages_->stream();
    CACHALOT_TRY_ASSIGN(auto engine,
                        kv::CudaEngine::make(device_, pages_->cache(), kv::default_block_order(),
                                             flushes ? *noncoherent_ : *coherent_, options));
    kv::CudaEngine* const used = engine.get();
    engines_.push_back(std::move(engine));
    add(name, [used, gathers = gathers()](std::span<const kv::BlockCopy> copies) {
      return gathers ? used->gather(copies) : used->scatter(copies);
    });
    return {};
  }

  void add_batch() {
    if (device_.driver().copy_batch == nullptr) return;
    batch_.emplace(*pages_);
    add("memcpy_batch", [this](std::span<const kv::BlockCopy>) -> Status {
      CACHALOT_TRY(batch_->launch());
      return pages_->synchronize();
    });
    subjects_.back().prepare = [this](std::span<const kv::BlockCopy> copies) {
      return batch_->prepare(copies, call_.direction);
    };
  }

  Status add_warp_per_token(const std::string& name, std::uint32_t thread_blocks) {
    CACHALOT_TRY_ASSIGN(auto warps, WarpPerToken::make(*pages_, thread_blocks));
    WarpPerToken* const used = warps.get();
    warps_.push_back(std::move(warps));
    add(name, [this, used](std::span<const kv::BlockCopy>) -> Status {
      CACHALOT_TRY(used->launch(call_.direction));
      return pages_->synchronize();
    });
    subjects_.back().prepare = [used](std::span<const kv::BlockCopy> copies) {
      return used->prepare(copies);
    };
    return {};
  }

  // What the way to the pool can do.
  void add_flat() {
    add("flat", [this](std::span<const kv::BlockCopy>) -> Status {
      const kv::CudaDevice::Entered entered(device_);
      const std::uint64_t pool = pages_->flat_pool(), engine = pages_->flat_engine();
      CACHALOT_TRY(
          device_.check(device_.driver().copy(gathers() ? pool : engine, gathers() ? engine : pool,
                                              call_.bytes(), pages_->stream()),
                        "cuMemcpyAsync"));
      return pages_->synchronize();
    });
  }

  Result<std::vector<Measured>> measure(std::uint32_t rounds) {
    constexpr std::uint32_t kWarm = 2;
    for (std::uint32_t i = 0; i < rounds + kWarm; ++i) {
      for (std::size_t k = 0; k < subjects_.size(); ++k) {
        Subject& subject = subjects_[(i + k) % subjects_.size()];
        const std::span<const kv::BlockCopy> copies = pages_->next(call_.blocks, tokens_);
        if (subject.prepare) CACHALOT_TRY(subject.prepare(copies));
        const std::uint64_t start = now_ns();
        CACHALOT_TRY(subject.copy(copies));
        const std::uint64_t ns = now_ns() - start;
        if (i >= kWarm) subject.measured.us.push_back(static_cast<double>(ns) * 1e-3);
      }
    }
    std::vector<Measured> out;
    for (Subject& subject : subjects_) out.push_back(std::move(subject.measured));
    return out;
  }

 private:
  Ways(kv::CudaDevice& device, const CudaCall& call) : device_(device), call_(call) {}

  bool gathers() const { return call_.direction == Direction::kGather; }
  void add(const std::string& name, std::function<Status(std::span<const kv::BlockCopy>)> copy) {
    subjects_.push_back({{name, {}}, std::move(copy)});
  }

  kv::CudaDevice& device_;
  const CudaCall call_;
  std::unique_ptr<GpuPages> pages_;
  std::vector<kv::TokenRange> tokens_;
  const std::unique_ptr<memory::Domain> coherent_ = memory::make_coherent_domain();
  const std::unique_ptr<memory::Domain> noncoherent_ = memory::make_noncoherent_domain();
  std::vector<std::unique_ptr<kv::CudaEngine>> engines_;
  std::vector<std::unique_ptr<WarpPerToken>> warps_;
  std::optional<DriverBatch> batch_;
  std::vector<Subject> subjects_;
};

// A round is one of each way; calls of tens of thousands of fragments take a tenth of a second by some.
std::uint32_t rounds_of(const Settings& settings) {
  return settings.repeats * (settings.quick ? 2 : 3);
}

}  // namespace

std::string CudaCall::name() const {
  return std::string(direction_name(direction)) + "/" + model.name + "/x" + std::to_string(blocks) +
         (every_nth == 1 ? "" : "/sparse");
}

Result<std::vector<Measured>> measure_ways(const Settings& settings, kv::CudaDevice& device,
                                           const CudaCall& call) {
  show_progress("cuda: " + call.name());
  CACHALOT_TRY_ASSIGN(const std::unique_ptr<Ways> ways, Ways::make(device, call));
  const auto by = [](Way way) { return kv::CudaOptions{.way = way}; };
  CACHALOT_TRY(ways->add_engine("threads", by(Way::kThreads)));
  if (device.has_bulk_copies()) CACHALOT_TRY(ways->add_engine("bulk", by(Way::kBulk)));
  CACHALOT_TRY(ways->add_engine("chosen", by(Way::kChoose)));
  // Of one block the tables fit a launch's parameter.
  if (call.blocks == 1) {
    CACHALOT_TRY(ways->add_engine("chosen_copied_tables", {.inline_table_bytes = 0}));
  }
  CACHALOT_TRY(ways->add_engine("chosen_flushed", by(Way::kChoose), true));
  if (device.has_batched_copies()) CACHALOT_TRY(ways->add_engine("batch", by(Way::kBatch)));
  CACHALOT_TRY(ways->add_engine("memcpy_each", by(Way::kCopyEngine)));
  ways->add_batch();
  if (call.every_nth == 1) {
    CACHALOT_TRY(ways->add_warp_per_token("warp_per_token", kSglangThreadBlocks));
    // No fewer than ours, so that the difference is the division of work and not the multiprocessors.
    const std::uint32_t ours = kv::default_thread_blocks(Way::kThreads, device.multiprocessors());
    CACHALOT_TRY(ways->add_warp_per_token("warp_per_token_" + std::to_string(ours), ours));
  }
  ways->add_flat();
  return ways->measure(rounds_of(settings));
}

const Measured* find_way(const std::vector<Measured>& ways, const std::string& name) {
  const auto found = std::find_if(ways.begin(), ways.end(),
                                  [&](const Measured& measured) { return measured.way == name; });
  return found == ways.end() ? nullptr : &*found;
}

Result<std::vector<Measured>> measure_options(const Settings& settings, kv::CudaDevice& device,
                                              const CudaCall& call,
                                              std::span<const kv::CudaOptions> options) {
  CACHALOT_TRY_ASSIGN(const std::unique_ptr<Ways> ways, Ways::make(device, call));
  for (const kv::CudaOptions& option : options) CACHALOT_TRY(ways->add_engine("", option));
  ways->add_flat();
  return ways->measure(rounds_of(settings));
}

}  // namespace cachalot::apps::bench
