// For tests: worlds in which copy engines run, and random cases for them.
#pragma once

#include <gtest/gtest.h>

#include <iterator>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "kv/cpu/cpu_engine.h"
#include "memory/mixed_domain.h"
#include "os/topology.h"
#include "testing/kv/reference.h"
#include "testing/kv/staged_engine.h"
#include "testing/memory/lossy_memory.h"

namespace cachalot::kv {

enum class EngineKind {
  kCpu,
  kCpuThreads,
  kCpuHomes,
  kFakeGpu,  // by threads, in bulk, by batches of the driver's copies, by its copies
  kFakeGpuBulk,
  kFakeGpuBatch,
  kFakeGpuCopies,
  kGpu,
  kGpuBulk,
  kGpuBatch,
  kGpuCopies
};
inline bool needs_gpu(EngineKind kind) {
  return kind >= EngineKind::kGpu;
}

// A pool of a MiB that one host writes and another reads.
class World {
 public:
  static constexpr std::uint64_t kPoolBytes = std::uint64_t{1} << 20;

  World(memory::DomainKind kind, memory::Isa isa, std::uint64_t seed) {
    if (kind == memory::DomainKind::kLossy) {
      scheduler_ = std::make_unique<memory::Scheduler>(seed);
      lossy_ = std::make_unique<memory::LossyMemory>(
          *scheduler_,
          memory::LossyMemory::Options{.bytes_each = kPoolBytes,
                                       .adversary = memory::adversary(memory::Mood::kNasty)});
      memory::LossyHost &a = lossy_->add_host(), &b = lossy_->add_host();
      writer_ = &a;
      reader_ = &b;
      writer_base_ = a.view().bases[0];
      reader_base_ = b.view().bases[0];
      return;
    }
    owned_ = kind == memory::DomainKind::kNoncoherent ? memory::make_noncoherent_domain(isa)
                                                      : memory::make_coherent_domain(isa);
    // No byte is zero, so that padding is seen to be written.
    constexpr std::uint64_t kOnes = ~std::uint64_t{0};
    lines_.resize(kPoolBytes / memory::kLineBytes,
                  memory::Line{{kOnes, kOnes, kOnes, kOnes, kOnes, kOnes, kOnes, kOnes}});
    writer_base_ = reader_base_ = reinterpret_cast<std::byte*>(lines_.data());
    if (kind == memory::DomainKind::kMixed) {
      constexpr std::uint64_t kEach = 1280;  // borders within blocks and runs
      std::vector<memory::MixedDomain::Range> coherent;
      for (std::uint64_t at = 0; at + kEach <= kPoolBytes; at += 2 * kEach)
        coherent.push_back({writer_base_ + at, writer_base_ + at + kEach});
      owned_ = std::make_unique<memory::MixedDomain>(std::move(coherent), std::move(owned_),
                                                     memory::make_noncoherent_domain(isa));
    }
    writer_ = reader_ = owned_.get();
  }

  // What a device would reach; nothing in the lossy domain.
  PoolMemory pool() {
    return {reinterpret_cast<std::byte*>(lines_.data()), lines_.size() * memory::kLineBytes};
  }
  // Pages of 4 KiB belong to the first and last core in turn. Nothing in the lossy domain.
  std::shared_ptr<const CopyHomes> homes() {
    auto homes = std::make_shared<CopyHomes>(1);
    const std::vector<int> cores = os::online_cores();
    for (std::uint64_t at = 0; at < pool().bytes; at += 4096)
      homes->add(pool().at + at, 4096, {at / 4096 % 2 == 0 ? cores.front() : cores.back()});
    return homes;
  }
  memory::Domain& writer() { return *writer_; }
  memory::Domain& reader() { return *reader_; }

  // Block `number` of `bytes`, in extents of at most `piece`, as the writer or the reader sees it.
  std::vector<memory::Extent> extents(bool writes, std::uint64_t number, std::uint64_t bytes,
                                      std::uint64_t piece) const {
    // In turned order, so that one address for both cannot pass.
    std::vector<memory::Extent> out;
    std::byte* const base = (writes ? writer_base_ : reader_base_) + number * 2 * bytes;
    const std::uint64_t count = (bytes + piece - 1) / piece;
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t length = std::min(piece, bytes - i * piece);
      out.push_back({base + (count - 1 - i) * piece, length});
    }
    return out;
  }

 private:
  std::unique_ptr<memory::Scheduler> scheduler_;
  std::unique_ptr<memory::LossyMemory> lossy_;
  std::unique_ptr<memory::Domain> owned_;
  std::vector<memory::Line> lines_;
  memory::Domain *writer_ = nullptr, *reader_ = nullptr;
  std::byte *writer_base_ = nullptr, *reader_base_ = nullptr;
};

// @param tensors  of the cache
inline std::unique_ptr<CopyEngine> make_engine(EngineKind kind, const EngineCache& cache,
                                               const std::vector<Tensor>& tensors,
                                               const BlockOrder& order, memory::Domain& domain,
                                               World& world) {
  if (kind >= EngineKind::kFakeGpu) {
    constexpr Way kTheWays[] = {Way::kThreads, Way::kBulk, Way::kBatch, Way::kCopyEngine};
    const auto number =
        static_cast<std::size_t>(kind) - static_cast<std::size_t>(EngineKind::kFakeGpu);
    return std::make_unique<StagedEngine>(!needs_gpu(kind), kTheWays[number % std::size(kTheWays)],
                                          cache, tensors, order, domain, world.pool());
  }
  CpuOptions options;
  options.threads = kind == EngineKind::kCpu ? 1 : 3;
  if (kind == EngineKind::kCpuHomes) options.homes = world.homes();
  Result<CpuEngine> engine = CpuEngine::make(cache, order, domain, options);
  EXPECT_TRUE(engine) << engine.error().message;
  return std::make_unique<CpuEngine>(*std::move(engine));
}

// `count` different page ids.
inline std::vector<std::uint32_t> some_pages(std::uint32_t pages, std::uint32_t count,
                                             base::Rng& rng) {
  std::vector<std::uint32_t> all(pages);
  std::iota(all.begin(), all.end(), 0u);
  for (std::uint32_t i = 0; i < count; ++i) std::swap(all[i], all[i + rng.below(pages - i)]);
  all.resize(count);
  return all;
}

}  // namespace cachalot::kv
