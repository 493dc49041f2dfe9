// What holds of every real domain on every instruction path.
#include "memory/coherence.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "base/rng.h"
#include "memory/mixed_domain.h"
#include "testing/memory/isa_name.h"

namespace cachalot::memory {
namespace {

struct Variant {
  DomainKind kind;
  CompletePolicy complete;
};

class RealDomain : public testing::TestWithParam<std::tuple<Variant, Isa>> {
 protected:
  static constexpr std::size_t kPoolBytes = std::size_t{10} << 20;

  void SetUp() override {
    const auto [variant, isa] = GetParam();
    if (!isa_available(isa)) GTEST_SKIP() << "this machine has no " << isa_name(isa);
    void* const map =
        mmap(nullptr, kPoolBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(map, MAP_FAILED);
    pool_ = static_cast<unsigned char*>(map);
    if (variant.kind == DomainKind::kCoherent) {
      domain_ = make_coherent_domain(isa);
    } else {
      domain_ = make_noncoherent_domain(isa, variant.complete);
    }
    if (variant.kind != DomainKind::kMixed) return;
    // Many borders between the two kinds.
    std::vector<MixedDomain::Range> coherent;
    const auto* const base = static_cast<const std::byte*>(map);
    for (std::size_t at = 0; at < kPoolBytes; at += 2560)
      coherent.push_back({base + at, base + at + 1280});
    domain_ = std::make_unique<MixedDomain>(std::move(coherent), make_coherent_domain(isa),
                                            std::move(domain_));
  }
  void TearDown() override {
    if (pool_ != nullptr) munmap(pool_, kPoolBytes);
  }

  std::unique_ptr<Domain> domain_;
  unsigned char* pool_ = nullptr;
};

std::vector<unsigned char> random_bytes(std::size_t bytes, std::uint64_t seed) {
  base::Rng rng(seed);
  std::vector<unsigned char> result(bytes + 8);
  for (std::size_t i = 0; i < bytes; i += 8) {
    const std::uint64_t word = rng.next();
    std::memcpy(result.data() + i, &word, 8);
  }
  result.resize(bytes);
  return result;
}

TEST_P(RealDomain, SaysWhatItIs) {
  const auto [variant, isa] = GetParam();
  EXPECT_EQ(domain_->kind(), variant.kind);
#ifdef __SANITIZE_THREAD__
  EXPECT_FALSE(domain_->writes_whole_lines());
#else
  EXPECT_EQ(domain_->writes_whole_lines(),
            isa == Isa::kAvx512 && variant.kind == DomainKind::kNoncoherent);
#endif
}

TEST_P(RealDomain, BulkComesBackAsItWasFromAndToEveryAlignment) {
  for (const std::size_t bytes : {64, 128, 1024, 1088, 4032, 4096, 4160, 20480}) {
    for (std::size_t shift = 0; shift < 64; ++shift) {
      const std::vector<unsigned char> source = random_bytes(bytes + shift, bytes + shift);
      std::vector<unsigned char> back(bytes + 2 * 64, 0x5a);
      unsigned char* const to = back.data() + shift;
      FusedHash written(bytes), read(bytes);
      domain_->write_bulk(pool_ + 64 * shift, source.data() + shift, bytes, &written);
      domain_->order();
      domain_->read_bulk(to, pool_ + 64 * shift, bytes, &read);
      ASSERT_EQ(std::memcmp(to, source.data() + shift, bytes), 0) << bytes << " at " << shift;
      ASSERT_EQ(std::count(back.data(), to, 0x5a), static_cast<std::ptrdiff_t>(shift));
      ASSERT_EQ(std::count(to + bytes, back.data() + back.size(), 0x5a),
                static_cast<std::ptrdiff_t>(128 - shift));
      const std::uint64_t expected = hash_lines(to, bytes);
      ASSERT_EQ(written.finish(), expected);
      ASSERT_EQ(read.finish(), expected);
    }
  }
}

TEST_P(RealDomain, BulkOfManySizesComesBackWithAndWithoutAHash) {
  for (const std::size_t bytes : {std::size_t{64} << 10, (std::size_t{2} << 20) + 64,
                                  std::size_t{128} * 20480, std::size_t{8} << 20}) {
    const std::vector<unsigned char> source = random_bytes(bytes, bytes);
    std::vector<unsigned char> back(bytes);
    domain_->write_bulk(pool_ + 64, source.data(), bytes);
    domain_->complete();
    FusedHash hash(bytes);
    domain_->read_bulk(back.data(), pool_ + 64, bytes, &hash);
    EXPECT_EQ(back, source);
    EXPECT_EQ(hash.finish(), hash_lines(source.data(), bytes));
    std::fill(back.begin(), back.end(), 0);
    domain_->read_bulk(back.data(), pool_ + 64, bytes);
    EXPECT_EQ(back, source);
  }
}

TEST_P(RealDomain, NothingToCopyTouchesNothing) {
  FusedHash hash(0);
  domain_->write_bulk(pool_, nullptr, 0, &hash);
  domain_->read_bulk(nullptr, pool_, 0);
  domain_->write_lines(pool_, nullptr, 0);
  domain_->gather_lines(nullptr, 0, nullptr);
  domain_->complete();
  for (std::size_t i = 0; i < 4096; ++i) ASSERT_EQ(pool_[i], 0);
}

TEST_P(RealDomain, LinesComeBackAloneInRunsAndScattered) {
  constexpr std::size_t kLines = 1000;
  base::Rng rng(9);
  std::vector<Line> lines(kLines), back(kLines);
  for (Line& line : lines) {
    for (std::uint64_t& word : line.words) word = rng.next();
  }
  domain_->write_lines(pool_, lines.data(), kLines - 1);
  domain_->write_line(pool_ + (kLines - 1) * 64, lines.back());
  domain_->order();
  domain_->read_lines(pool_, kLines, back.data());
  EXPECT_EQ(back, lines);
  for (std::size_t i = 0; i < kLines; ++i) ASSERT_EQ(domain_->read_line(pool_ + 64 * i), lines[i]);

  for (const std::size_t count : {1, 7, 63, 64, 65, 128, 1000}) {
    std::vector<const void*> from;
    std::vector<Line> expected;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t pick = rng.below(kLines);
      from.push_back(pool_ + 64 * pick);
      expected.push_back(lines[pick]);
    }
    std::vector<Line> gathered(count);
    domain_->gather_lines(from.data(), count, gathered.data());
    ASSERT_EQ(gathered, expected);
  }
}

TEST_P(RealDomain, CompletesHoweverManyStripesWereWritten) {
  const std::unique_ptr<Domain> other =
      make_noncoherent_domain(Isa::kAuto, CompletePolicy::kReadBack);
  constexpr std::size_t kStripe = std::size_t{2} << 20, kStripes = 40;  // more than are kept
  void* const map = mmap(nullptr, kStripes * kStripe, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(map, MAP_FAILED);
  const Line line = {{1, 2, 3, 4, 5, 6, 7, 8}};
  auto* const base = static_cast<unsigned char*>(map);
  for (std::size_t i = 0; i < kStripes; ++i) domain_->write_line(base + i * kStripe, line);
  domain_->complete();
  other->write_line(base + 64, line);
  domain_->complete();
  for (std::size_t i = 0; i < kStripes; ++i)
    EXPECT_EQ(domain_->read_line(base + i * kStripe), line);
  munmap(map, kStripes * kStripe);
  domain_->complete();  // nothing of the mapping that is gone may be left on the list
}

// A reader sees only whole lines, and never an older one after a newer one.
TEST_P(RealDomain, AReaderNeverSeesALineThatChecksGoBackwards) {
  constexpr std::uint64_t kLast = 20000, kAddress = 4096;
  const LineSeal seal(21, 22);
  std::thread writer([&] {
    for (std::uint64_t counter = 1; counter <= kLast; ++counter) {
      Line line;
      for (std::uint64_t i = 0; i < 8; ++i) line.words[i] = counter * (i + 1);
      seal.seal(line, kAddress);
      domain_->write_line(pool_ + kAddress, line);
      domain_->order();
    }
  });
  std::uint64_t newest = 0, torn = 0, mixed = 0, backwards = 0;
  while (newest < kLast) {
    const Line line = domain_->read_line(pool_ + kAddress);
    if (!seal.checks(line, kAddress)) {
      torn += line.words[7] != 0;
      continue;
    }
    const std::uint64_t counter = line.words[0];
    for (std::uint64_t i = 1; i < 7; ++i) mixed += line.words[i] != counter * (i + 1);
    backwards += counter < newest;
    newest = counter;
  }
  writer.join();
  EXPECT_EQ(mixed, 0u);
  EXPECT_EQ(backwards, 0u);
  if (domain_->writes_whole_lines()) {
    EXPECT_EQ(torn, 0u);
  }
}

// R4: a reader that sees the line naming a payload sees the payload.
TEST_P(RealDomain, APayloadIsSeenBeforeTheLineThatNamesIt) {
  constexpr std::size_t kPayload = 8192, kBlocks = 16;
  constexpr std::uint64_t kLast = 1500;
  const LineSeal seal(31, 32);
  const auto payload_of = [&](std::uint64_t n) { return pool_ + 65536 + n % kBlocks * kPayload; };
  std::atomic<std::uint64_t> taken{0};
  std::thread writer([&] {
    std::vector<std::uint64_t> payload(kPayload / 8);
    for (std::uint64_t counter = 1; counter <= kLast; ++counter) {
      while (counter > taken.load(std::memory_order_acquire) + kBlocks) std::this_thread::yield();
      std::fill(payload.begin(), payload.end(), counter);
      FusedHash hash(kPayload);
      domain_->write_bulk(payload_of(counter), payload.data(), kPayload, &hash);
      domain_->order();
      Line line = {{counter, hash.finish(), 0, 0, 0, 0, 0, 0}};
      seal.seal(line, 0);
      domain_->write_line(pool_, line);
      domain_->order();
    }
  });
  std::vector<std::uint64_t> payload(kPayload / 8);
  std::uint64_t wrong = 0;
  for (std::uint64_t newest = 0; newest < kLast;) {
    const Line line = domain_->read_line(pool_);
    if (!seal.checks(line, 0) || line.words[0] == newest) {
      std::this_thread::yield();
      continue;
    }
    newest = line.words[0];
    FusedHash hash(kPayload);
    domain_->read_bulk(payload.data(), payload_of(newest), kPayload, &hash);
    wrong += hash.finish() != line.words[1];
    wrong += payload.front() != newest || payload.back() != newest;
    taken.store(newest, std::memory_order_release);
  }
  writer.join();
  EXPECT_EQ(wrong, 0u);
}

std::string name_of(const testing::TestParamInfo<std::tuple<Variant, Isa>>& of) {
  const auto [variant, isa] = of.param;
  return std::string(domain_name(variant.kind)) +
         (variant.complete == CompletePolicy::kReadBack ? "_read_back_" : "_") + isa_name(isa);
}

INSTANTIATE_TEST_SUITE_P(
    Every, RealDomain,
    testing::Combine(testing::Values(Variant{DomainKind::kCoherent, CompletePolicy::kFence},
                                     Variant{DomainKind::kNoncoherent, CompletePolicy::kFence},
                                     Variant{DomainKind::kNoncoherent, CompletePolicy::kReadBack},
                                     Variant{DomainKind::kMixed, CompletePolicy::kReadBack}),
                     testing::Values(Isa::kSse2, Isa::kAvx2, Isa::kAvx512)),
    name_of);

}  // namespace
}  // namespace cachalot::memory
