// Copies in many pieces, and reads that are prepared once: what holds of every domain.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/rng.h"
#include "memory/coherence.h"
#include "memory/copy.h"
#include "memory/forwarding_domain.h"
#include "testing/memory/isa_name.h"
#include "testing/memory/lossy_memory.h"

namespace cachalot::memory {
namespace {

std::vector<std::byte> random_bytes(std::size_t bytes, base::Rng& rng) {
  std::vector<std::byte> out(bytes);
  for (std::byte& byte : out) byte = static_cast<std::byte>(rng.below(256));
  return out;
}

std::byte* bytes_of(std::vector<Line>& lines) {
  return reinterpret_cast<std::byte*>(lines.data());
}

// --- the loops

class RunKernels : public testing::TestWithParam<Isa> {};

TEST_P(RunKernels, CopyRunsOfEverySizeFromAndToEveryAlignment) {
  const CopyKernels& kernels = copy_kernels(GetParam());
  base::Rng rng(5);
  const std::vector<std::byte> source = random_bytes(300'000, rng);
  for (std::size_t bytes = 0; bytes < 400; ++bytes) {
    std::vector<std::byte> target(64 * 1024, std::byte{0x5a});
    std::vector<CopyRun> runs;
    for (std::size_t i = 0; i < 30; ++i) {
      runs.push_back({target.data() + i * 700 + rng.below(64),
                      source.data() + rng.below(source.size() - bytes), bytes});
    }
    std::vector<std::byte> wanted = target;
    for (const CopyRun& run : runs) {
      const auto at = static_cast<std::byte*>(run.to) - target.data();
      if (bytes != 0) std::memcpy(wanted.data() + at, run.from, bytes);
    }
    kernels.store_runs(runs.data(), runs.size(), nullptr);
    ASSERT_EQ(std::memcmp(target.data(), wanted.data(), target.size()), 0) << bytes;
  }
}

// Runs of whole lines, every way of storing, in several calls, with and without the hash.
TEST_P(RunKernels, StreamAndHashRunsAsOneFlatBuffer) {
  const CopyKernels& kernels = copy_kernels(GetParam());
  base::Rng rng(6);
  for (int round = 0; round < 200; ++round) {
    const std::size_t count = rng.below(20);
    std::vector<std::size_t> sizes;
    std::size_t total = 0;
    for (std::size_t i = 0; i < count; ++i) {
      sizes.push_back(64 * rng.below(round % 4 == 0 ? 4 : 100));
      total += sizes.back();
    }
    const std::vector<std::byte> source = random_bytes(total + 64, rng);
    const std::byte* const from = source.data() + rng.below(64);
    std::vector<Line> target(total / 64 + 1);
    std::vector<CopyRun> runs;
    for (std::size_t i = 0, at = 0; i < count; at += sizes[i++]) {
      runs.push_back({bytes_of(target) + at, from + at, sizes[i]});
    }
    for (const auto kernel :
         {kernels.store_runs, kernels.stream_runs, kernels.stream_narrow_runs}) {
      for (const bool hashed : {false, true}) {
        std::fill(target.begin(), target.end(), Line{});
        FusedHash hash(total);
        const std::size_t split = rng.below(count + 1);
        kernel(runs.data(), split, hashed ? &hash : nullptr);
        kernel(runs.data() + split, count - split, hashed ? &hash : nullptr);
        ASSERT_EQ(std::memcmp(target.data(), from, total), 0);
        if (hashed) {
          ASSERT_EQ(hash.finish(), hash_lines(target.data(), total)) << total;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, RunKernels, testing::Values(Isa::kSse2, Isa::kAvx2, Isa::kAvx512),
                         [](const auto& of) { return std::string(isa_name(of.param)); });

// --- the domains

// A domain of each kind that writes, one that reads, and what they see as their pool.
struct Host {
  Domain* domain;
  std::byte* base;
};
class Machines {
 public:
  static constexpr std::size_t kBytes = 256 << 10;

  Machines(DomainKind kind, CompletePolicy complete) : scheduler_(7) {
    if (kind == DomainKind::kLossy) {
      lossy_.emplace(scheduler_, LossyMemory::Options{.bytes_each = kBytes,
                                                      .adversary = adversary(Mood::kNasty)});
      LossyHost &a = lossy_->add_host(), &b = lossy_->add_host();
      writer = {&a, a.view().bases[0]};
      reader = {&b, b.view().bases[0]};
      return;
    }
    owned_ = kind == DomainKind::kCoherent ? make_coherent_domain()
                                           : make_noncoherent_domain(Isa::kAuto, complete);
    lines_.resize(kBytes / 64);
    writer = reader = {owned_.get(), bytes_of(lines_)};
  }

  Host writer, reader;

 private:
  Scheduler scheduler_;
  std::optional<LossyMemory> lossy_;
  std::unique_ptr<Domain> owned_;
  std::vector<Line> lines_;
};

class DomainRuns : public testing::TestWithParam<std::tuple<DomainKind, CompletePolicy>> {};

TEST_P(DomainRuns, PiecesOfAnySizeComeBackFromWhatWasPrepared) {
  const auto [kind, complete] = GetParam();
  Machines machines(kind, complete);
  base::Rng rng(8);
  for (int round = 0; round < 30; ++round) {
    // Whole lines in, in turned order, the hash over all.
    std::vector<std::byte> source = random_bytes(64 * (1 + rng.below(600)), rng);
    std::vector<CopyRun> runs;
    for (std::size_t at = 0; at < source.size();) {
      const std::size_t bytes = std::min<std::size_t>(64 * (1 + rng.below(90)), source.size() - at);
      runs.push_back({machines.writer.base + at, source.data() + at, bytes});
      at += bytes;
    }
    FusedHash written(source.size());
    machines.writer.domain->write_runs(runs.data(), runs.size(), &written);
    machines.writer.domain->complete();
    EXPECT_EQ(written.finish(), hash_lines(source.data(), source.size()));

    // Any pieces out.
    const Extent all{machines.reader.base, source.size()};
    machines.reader.domain->prepare_read(&all, 1);
    std::vector<std::byte> target(source.size() + 64), wanted = target;
    runs.clear();
    for (std::size_t at = 0; at < source.size();) {
      const std::size_t bytes =
          std::min<std::size_t>(1 + rng.below(round % 2 == 0 ? 100 : 5000), source.size() - at);
      runs.push_back({target.data() + at + round, machines.reader.base + at, bytes});
      at += bytes;
    }
    machines.reader.domain->read_prepared(runs.data(), runs.size());
    std::memcpy(wanted.data() + round, source.data(), source.size());
    ASSERT_EQ(target, wanted);

    // Whole lines with a hash.
    FusedHash read(source.size());
    const CopyRun whole{target.data(), machines.reader.base, source.size()};
    machines.reader.domain->read_prepared(&whole, 1, &read);
    EXPECT_EQ(read.finish(), written.finish());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Every, DomainRuns,
    testing::Values(std::tuple{DomainKind::kCoherent, CompletePolicy::kFence},
                    std::tuple{DomainKind::kNoncoherent, CompletePolicy::kFence},
                    std::tuple{DomainKind::kNoncoherent, CompletePolicy::kReadBack},
                    std::tuple{DomainKind::kLossy, CompletePolicy::kFence}),
    [](const auto& of) {
      return std::string(domain_name(std::get<0>(of.param))) +
             (std::get<1>(of.param) == CompletePolicy::kReadBack ? "_read_back" : "");
    });

// --- without a preparation (R3)

std::uint64_t word_behind(Host& host, std::size_t offset) {
  std::uint64_t value = 0;
  const CopyRun run{&value, host.base + offset, sizeof value};
  host.domain->read_prepared(&run, 1);
  return value;
}

// @return how many of 200 rounds the reader saw what was written last
int newest_seen(bool prepares) {
  Machines machines(DomainKind::kLossy, CompletePolicy::kFence);
  int newest = 0;
  for (std::uint64_t i = 1; i <= 200; ++i) {
    machines.writer.domain->write_line(machines.writer.base + 4096, Line{{i, i, i, i, i, i, i, i}});
    machines.writer.domain->complete();
    // A few bytes at an odd place: the lines they lie in are invalidated whole.
    const Extent extent{machines.reader.base + 4096 + 12, 4};
    if (prepares) machines.reader.domain->prepare_read(&extent, 1);
    newest += word_behind(machines.reader, 4096 + 8) == i;
  }
  return newest;
}

TEST(PreparedReads, SeeWhatWasWrittenBeforeThePreparation) {
  EXPECT_EQ(newest_seen(true), 200);
}

TEST(PreparedReads, WithoutAPreparationMayBeOfAnyAge) {
  EXPECT_LT(newest_seen(false), 150);
}

// What wraps a domain and does nothing about many pieces gets them line by line.
TEST(PreparedReads, AreRightInADomainThatHasNoneOfItsOwn) {
  Machines machines(DomainKind::kLossy, CompletePolicy::kFence);
  ForwardingDomain writer(*machines.writer.domain), reader(*machines.reader.domain);
  base::Rng rng(9);
  const std::vector<std::byte> source = random_bytes(64 * 50, rng);
  const CopyRun in[] = {{machines.writer.base, source.data(), 64 * 20},
                        {machines.writer.base + 64 * 20, source.data() + 64 * 20, 64 * 30}};
  FusedHash written(source.size()), read(source.size());
  writer.write_runs(in, 2, &written);
  writer.complete();
  std::vector<std::byte> target(source.size());
  const CopyRun out[] = {{target.data(), machines.reader.base, 100},
                         {target.data() + 100, machines.reader.base + 100, source.size() - 100}};
  reader.prepare_read(nullptr, 0);
  reader.read_prepared(out, 2);
  EXPECT_EQ(target, source);
  const CopyRun whole{target.data(), machines.reader.base, source.size()};
  reader.read_prepared(&whole, 1, &read);
  EXPECT_EQ(read.finish(), written.finish());
}

}  // namespace
}  // namespace cachalot::memory
