// Which part an access goes to, and that order() holds between memory of two kinds: on a simulated host whose stores to
// coherent memory are seen at once, while what it wrote to the other is still on its way.
#include "memory/mixed_domain.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "memory/forwarding_domain.h"
#include "testing/memory/lossy_memory.h"

namespace cachalot::memory {
namespace {

// --- dispatch

// Writes down what it was asked for.
class Recorder final : public ForwardingDomain {
 public:
  Recorder(const char* name, std::string& log) : name_(name), log_(log) {}

  bool writes_whole_lines() const override { return true; }
  void write_lines(void* to, const Line* lines, std::size_t count) override {
    note("write", count);
    ForwardingDomain::write_lines(to, lines, count);
  }
  void read_lines(const void* from, std::size_t count, Line* lines) override {
    note("read", count);
    ForwardingDomain::read_lines(from, count, lines);
  }
  void gather_lines(const void* const* from, std::size_t count, Line* lines) override {
    note("gather", count);
    ForwardingDomain::gather_lines(from, count, lines);
  }
  void write_runs(const CopyRun* runs, std::size_t count, FusedHash* hash) override {
    note("runs", count);
    ForwardingDomain::write_runs(runs, count, hash);
  }
  void prepare_read(const Extent*, std::size_t count) override { note("prepare", count); }
  void read_prepared(const CopyRun* runs, std::size_t count, FusedHash* hash) override {
    note("copy", count);
    ForwardingDomain::read_prepared(runs, count, hash);
  }
  void order() override { note("order", 0); }
  void complete() override { note("complete", 0); }

 private:
  void note(const char* what, std::size_t count) {
    log_ += std::string(log_.empty() ? "" : " ") + name_ + "." + what +
            (count == 0 ? "" : std::to_string(count));
  }
  const char* const name_;
  std::string& log_;
};

class MixedDomainTest : public testing::Test {
 protected:
  static constexpr std::size_t kLines = 12;  // in turn: two coherent, two not

  MixedDomainTest() {
    std::vector<MixedDomain::Range> coherent;
    for (std::size_t i = 0; i < kLines; i += 4) coherent.push_back({at(i), at(i + 2)});
    domain_ =
        std::make_unique<MixedDomain>(std::move(coherent), std::make_unique<Recorder>("c", log_),
                                      std::make_unique<Recorder>("n", log_));
  }
  std::byte* at(std::size_t line) { return reinterpret_cast<std::byte*>(&memory_[line]); }
  std::string taken() { return std::exchange(log_, {}); }

  Line memory_[kLines] = {};
  std::string log_;
  std::unique_ptr<MixedDomain> domain_;
};

TEST_F(MixedDomainTest, AnAccessGoesWhereItsMemoryIs) {
  Line lines[4] = {};
  domain_->write_lines(at(0), lines, 2);
  domain_->write_lines(at(2), lines, 2);
  domain_->read_lines(at(5), 1, lines);
  domain_->read_lines(at(7), 1, lines);
  EXPECT_EQ(taken(), "c.write2 n.write2 c.read1 n.read1");
}

TEST_F(MixedDomainTest, WhatIsPartlyIncoherentIsTakenAsIncoherent) {
  Line lines[4] = {};
  domain_->write_lines(at(1), lines, 2);
  domain_->read_lines(at(3), 2, lines);
  EXPECT_EQ(taken(), "n.write2 n.read2");
}

TEST_F(MixedDomainTest, ManyPiecesGoInStretchesAndInTheirOrder) {
  std::vector<std::byte> from(kLines * kLineBytes);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + i / 64);
  std::vector<CopyRun> runs;
  for (std::size_t i = 0; i < kLines; ++i)
    runs.push_back({at(i), from.data() + i * kLineBytes, kLineBytes});
  FusedHash hash(from.size());
  domain_->write_runs(runs.data(), runs.size(), &hash);
  EXPECT_EQ(taken(), "c.runs2 n.runs2 c.runs2 n.runs2 c.runs2 n.runs2");
  EXPECT_EQ(hash.finish(), hash_lines(memory_, from.size()));
  EXPECT_EQ(std::memcmp(memory_, from.data(), from.size()), 0);

  const void* places[] = {at(8), at(1), at(3), at(0)};
  Line lines[4];
  domain_->gather_lines(places, 4, lines);
  EXPECT_EQ(taken(), "c.gather2 n.gather1 c.gather1");
  const std::size_t numbers[] = {8, 1, 3, 0};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(lines[i], memory_[numbers[i]]) << i;
}

TEST_F(MixedDomainTest, OnlyIncoherentMemoryIsInvalidatedAndAllOfItAtOnce) {
  std::vector<Extent> extents;
  for (std::size_t i = 0; i < kLines; i += 2) extents.push_back({at(i), 2 * kLineBytes});
  domain_->prepare_read(extents.data(), extents.size());
  EXPECT_EQ(taken(), "c.prepare1 c.prepare1 c.prepare1 n.prepare3");

  const std::vector<Extent> many(70, Extent{at(2), kLineBytes});
  domain_->prepare_read(many.data(), many.size());
  EXPECT_EQ(taken(), "n.prepare64 n.prepare6");
}

TEST_F(MixedDomainTest, OrderWaitsForIncoherentMemoryFirst) {
  domain_->order();
  EXPECT_EQ(taken(), "n.complete c.order");
  domain_->complete();
  EXPECT_EQ(taken(), "n.complete c.complete");
}

// --- order() between the two

// Coherent memory of a simulated host: what it stores is seen by all at once.
class SimulatedCoherent final : public Domain {
 public:
  SimulatedCoherent(LossyMemory& memory, std::byte* base) : memory_(memory), base_(base) {}

  DomainKind kind() const override { return DomainKind::kCoherent; }
  bool writes_whole_lines() const override { return false; }
  void write_lines(void* to, const Line* lines, std::size_t count) override {
    for (std::size_t i = 0; i < count; ++i) {
      memory_.tick();
      memory_.device().store(number(to) + i, 0xff, lines[i]);
    }
  }
  void read_lines(const void* from, std::size_t count, Line* lines) override {
    for (std::size_t i = 0; i < count; ++i) {
      memory_.tick();
      lines[i] = memory_.device().line(number(from) + i);
    }
  }
  void gather_lines(const void* const* from, std::size_t count, Line* lines) override {
    for (std::size_t i = 0; i < count; ++i) read_lines(from[i], 1, lines + i);
  }
  void write_bulk(void* to, const void* from, std::size_t bytes, FusedHash*) override {
    write_lines(to, static_cast<const Line*>(from), bytes / kLineBytes);
  }
  void read_bulk(void* to, const void* from, std::size_t bytes, FusedHash*) override {
    read_lines(from, bytes / kLineBytes, static_cast<Line*>(to));
  }
  void order() override {}
  void complete() override {}

 private:
  std::uint64_t number(const void* at) const {
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(at) - base_) / kLineBytes;
  }
  LossyMemory& memory_;
  std::byte* const base_;
};

// A host that only keeps the order of its own stores to one device, as SFENCE promises.
class OnlyOrdered final : public ForwardingDomain {
 public:
  using ForwardingDomain::ForwardingDomain;
  explicit OnlyOrdered(Domain& inner) : ForwardingDomain(inner) {}
  void complete() override { order(); }
};

enum class Ordering { kAsItIs, kByFenceOnly };

// A producer names payloads in incoherent memory by a line in coherent memory. @return whether the consumer ever read
// another payload than the one that was named
bool consumer_reads_stale(std::uint64_t seed, Mood mood, Ordering ordering) {
  constexpr std::uint64_t kMessages = 60, kSlots = 4;
  constexpr std::size_t kNamed = 0, kConsumed = 16, kPayloads = 64, kPayloadLines = 4;
  Scheduler scheduler(seed, adversary(mood).pace);
  LossyMemory memory(scheduler, {.bytes_each = 64 << 10, .adversary = adversary(mood)});

  struct Host {
    std::byte* base;
    std::unique_ptr<Domain> domain;
  };
  const auto add_host = [&] {
    LossyHost& lossy = memory.add_host();
    std::byte* const base = lossy.view().bases[0];
    std::unique_ptr<Domain> rest;
    if (ordering == Ordering::kAsItIs) {
      rest = std::make_unique<ForwardingDomain>(lossy);
    } else {
      rest = std::make_unique<OnlyOrdered>(lossy);
    }
    return Host{base, std::make_unique<MixedDomain>(
                          std::vector<MixedDomain::Range>{{base, base + kPayloads * kLineBytes}},
                          std::make_unique<SimulatedCoherent>(memory, base), std::move(rest))};
  };
  const Host producer = add_host(), consumer = add_host();
  const auto count_at = [](const Host& host, std::size_t line) {
    return host.domain->read_line(host.base + line * kLineBytes).words[0];
  };
  const auto tell = [](const Host& host, std::size_t line, std::uint64_t count) {
    Line value = {};
    value.words[0] = count;
    host.domain->write_line(host.base + line * kLineBytes, value);
  };
  const auto payload_at = [](const Host& host, std::uint64_t n) {
    return host.base + (kPayloads + n % kSlots * kPayloadLines) * kLineBytes;
  };
  const auto payload_of = [](std::uint64_t n) {
    std::vector<Line> payload(kPayloadLines);
    for (std::size_t i = 0; i < kPayloadLines * 8; ++i)
      payload[i / 8].words[i % 8] = base::mix64(n * 1000 + i);
    return payload;
  };

  bool stale = false;
  scheduler.add("producer", [&] {
    for (std::uint64_t n = 1; n <= kMessages && !stale; ++n) {
      while (n > count_at(producer, kConsumed) + kSlots && !stale) scheduler.yield();
      producer.domain->write_bulk(payload_at(producer, n), payload_of(n).data(),
                                  kPayloadLines * kLineBytes);
      producer.domain->order();
      tell(producer, kNamed, n);
    }
  });
  scheduler.add("consumer", [&] {
    for (std::uint64_t n = 1; n <= kMessages && !stale; ++n) {
      while (count_at(consumer, kNamed) < n) scheduler.yield();
      std::vector<Line> payload(kPayloadLines);
      consumer.domain->read_bulk(payload.data(), payload_at(consumer, n),
                                 kPayloadLines * kLineBytes);
      stale = payload != payload_of(n);
      tell(consumer, kConsumed, n);
    }
  });
  EXPECT_EQ(scheduler.run(4'000'000).ending, Ending::kAllDone) << seed;
  return stale;
}

constexpr Mood kMoods[] = {Mood::kCalm, Mood::kNormal, Mood::kNasty};

TEST(MixedOrder, APayloadIsThereBeforeTheCoherentLineThatNamesIt) {
  for (const Mood mood : kMoods) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed)
      ASSERT_FALSE(consumer_reads_stale(seed, mood, Ordering::kAsItIs)) << seed;
  }
}

TEST(MixedOrder, AFenceAloneDoesNotOrderTwoDevices) {
  int seen = 0;
  for (const Mood mood : kMoods) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed)
      seen += consumer_reads_stale(seed, mood, Ordering::kByFenceOnly);
  }
  EXPECT_GT(seen, 20);
}

}  // namespace
}  // namespace cachalot::memory
