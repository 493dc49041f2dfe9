// The rules of backend.h, kept and broken, on every backend.
#include "testing/device_memory/conformance.h"

#include <gtest/gtest.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace cachalot::device_memory {
namespace {

class EveryBackend : public testing::TestWithParam<Subject> {
 protected:
  void SetUp() override {
    rig_ = std::make_unique<Rig>(GetParam());
    backend_ = rig_->backend();
    if (backend_ == nullptr) GTEST_SKIP() << rig_->missing();
    chunk_ = backend_->granularity_bytes();
    range_ = reserve(8);
    one_ = create(1);
    two_ = create(2);
  }

  Address reserve(std::uint64_t chunks) {
    const auto range = backend_->reserve(chunks * chunk_);
    EXPECT_TRUE(range) << range.error().message;
    return *range;
  }
  Handle create(std::uint64_t chunks) {
    const auto handle = backend_->create(chunks * chunk_);
    EXPECT_TRUE(handle) << handle.error().message;
    return *handle;
  }
  Address at(std::uint64_t place) const { return range_ + place * chunk_; }
  Status map(std::uint64_t place, Handle handle) { return backend_->map(at(place), handle); }
  Status set_access(std::uint64_t place, std::uint64_t chunks, Access access = Access::kReadWrite) {
    return backend_->set_access(at(place), chunks * chunk_, access);
  }
  Status unmap(std::uint64_t place, std::uint64_t chunks) {
    return backend_->unmap(at(place), chunks * chunk_);
  }

  static std::string hex(Address address) {
    char text[24];
    std::snprintf(text, sizeof text, "0x%" PRIx64, address);
    return text;
  }
  static std::string number(std::uint64_t value) { return std::to_string(value); }

  // Calls something that breaks a rule: it must say so, with these words, and change nothing.
  template <class Call>
  void expect_refused(Call&& call, const std::vector<std::string>& words,
                      Code code = Code::kInvalidArgument) {
    const Totals before(*backend_);
    const auto result = call();
    ASSERT_FALSE(result) << "not refused; expected: " << (words.empty() ? "" : words.front());
    EXPECT_EQ(result.error().code, code) << result.error().message;
    EXPECT_EQ(Totals(*backend_), before) << result.error().message;
    EXPECT_NE(std::strstr(result.error().message, "expected"), nullptr) << result.error().message;
    for (const std::string& word : words) {
      EXPECT_NE(std::strstr(result.error().message, word.c_str()), nullptr)
          << result.error().message << "\nis without: " << word;
    }
  }

  std::unique_ptr<Rig> rig_;
  Backend* backend_ = nullptr;
  std::uint64_t chunk_ = 0;
  Address range_ = 0;
  Handle one_, two_;  // of so many chunks
};

TEST_P(EveryBackend, SaysWhatItIs) {
  EXPECT_STRNE(backend_->name(), "");
  EXPECT_FALSE(backend_->description().empty());
  EXPECT_EQ(chunk_, std::uint64_t{2} << 20);
}

// Rule 1

TEST_P(EveryBackend, RefusesSizesThatAreNotWholeGranules) {
  ASSERT_TRUE(map(0, one_));
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{1}, chunk_ - 1, chunk_ + 1}) {
    const std::vector<std::string> words = {number(bytes) + " bytes", number(chunk_)};
    expect_refused([&] { return backend_->reserve(bytes); }, words);
    expect_refused([&] { return backend_->create(bytes); }, words);
    expect_refused([&] { return backend_->set_access(at(0), bytes, Access::kRead); }, words);
    expect_refused([&] { return backend_->unmap(at(0), bytes); }, words);
  }
}

TEST_P(EveryBackend, RefusesPlacesThatAreNotWholeGranules) {
  ASSERT_TRUE(map(0, two_));
  for (const std::uint64_t beyond : {std::uint64_t{1}, std::uint64_t{4096}, chunk_ - 1}) {
    const std::vector<std::string> words = {hex(at(0) + beyond), number(chunk_)};
    expect_refused([&] { return backend_->map(at(4) + beyond, one_); }, {hex(at(4) + beyond)});
    expect_refused([&] { return backend_->set_access(at(0) + beyond, chunk_, Access::kRead); },
                   words);
    expect_refused([&] { return backend_->unmap(at(0) + beyond, chunk_); }, words);
  }
}

TEST_P(EveryBackend, RefusesPlacesOutsideOfRanges) {
  const Address nowhere = 64 * chunk_;
  expect_refused([&] { return backend_->map(nowhere, one_); }, {hex(nowhere), "no range"});
  expect_refused([&] { return backend_->set_access(nowhere, chunk_, Access::kRead); },
                 {hex(nowhere), "no range"});
  expect_refused([&] { return backend_->unmap(nowhere, chunk_); }, {hex(nowhere), "no range"});
  const Address gone = reserve(2);
  ASSERT_TRUE(backend_->free_range(gone));
  if (gone != at(8)) expect_refused([&] { return backend_->map(gone, one_); }, {hex(gone)});
}

TEST_P(EveryBackend, RefusesWhatReachesPastTheEndOfARange) {
  expect_refused([&] { return map(7, two_); }, {hex(at(7)), number(2 * chunk_), hex(range_)});
  ASSERT_TRUE(map(6, two_));
  expect_refused([&] { return set_access(6, 3); }, {hex(at(6)), number(3 * chunk_)});
  expect_refused([&] { return unmap(6, 3); }, {hex(at(6)), number(3 * chunk_)});
  const std::uint64_t huge = ~std::uint64_t{0} / chunk_ * chunk_;  // at + bytes overflows
  expect_refused([&] { return backend_->unmap(at(6), huge); }, {hex(at(6)), number(huge)});
}

TEST_P(EveryBackend, RefusesMoreThanAnyDeviceHas) {
  const std::uint64_t huge = ~std::uint64_t{0} / chunk_ * chunk_;
  expect_refused([&] { return backend_->reserve(huge); }, {number(huge)}, Code::kNoSpace);
}

// Rule 2

TEST_P(EveryBackend, FreesRangesWhole) {
  expect_refused([&] { return backend_->free_range(at(1)); }, {hex(at(1)), "reserve()"});
  expect_refused([&] { return backend_->free_range(0); }, {"0x0"});
  EXPECT_EQ(backend_->reserved_bytes(), 8 * chunk_);
  ASSERT_TRUE(backend_->free_range(range_));
  EXPECT_EQ(backend_->reserved_bytes(), 0u);
  expect_refused([&] { return backend_->free_range(range_); }, {hex(range_)});
}

TEST_P(EveryBackend, FreesRangesOnlyWhenNothingIsMappedInThem) {
  ASSERT_TRUE(map(3, two_));
  expect_refused([&] { return backend_->free_range(range_); },
                 {hex(range_), hex(at(3)), number(2 * chunk_)});
  ASSERT_TRUE(unmap(3, 2));
  EXPECT_TRUE(backend_->free_range(range_));
}

// Rule 3

TEST_P(EveryBackend, MapsAPlaceOnce) {
  ASSERT_TRUE(map(3, two_));
  for (const std::uint64_t place : {3, 4}) {
    expect_refused([&] { return map(place, one_); },
                   {hex(at(place)), "handle " + number(one_.value), hex(at(3)),
                    "handle " + number(two_.value)});
  }
  const Handle other = create(2);
  for (const std::uint64_t place : {2, 3, 4}) {
    expect_refused([&] { return map(place, other); }, {hex(at(place)), hex(at(3))});
  }
  EXPECT_TRUE(map(1, other));
  EXPECT_TRUE(map(5, one_));
}

// Rule 4

TEST_P(EveryBackend, RefusesSpansThatCutAMapping) {
  ASSERT_TRUE(map(1, one_));
  ASSERT_TRUE(map(2, two_));
  for (const auto& span : {std::pair{2, 1}, {1, 2}}) {
    const auto place = span.first,
               chunks = span.second;  // clang's lambdas cannot capture a binding
    expect_refused([&] { return set_access(place, chunks); }, {hex(at(place)), hex(at(4))});
    expect_refused([&] { return unmap(place, chunks); }, {hex(at(place)), hex(at(4))});
  }
  expect_refused([&] { return set_access(3, 1); }, {hex(at(3)), "begins"});
  expect_refused([&] { return unmap(3, 1); }, {hex(at(3)), "begins"});
}

TEST_P(EveryBackend, RefusesSpansWithAGap) {
  ASSERT_TRUE(map(0, one_));
  ASSERT_TRUE(map(2, two_));
  expect_refused([&] { return set_access(0, 4); }, {hex(at(0)), hex(at(1))});
  expect_refused([&] { return unmap(0, 4); }, {hex(at(0)), hex(at(1))});
  expect_refused([&] { return unmap(0, 2); }, {hex(at(0)), hex(at(1))});  // a gap at the end
  expect_refused([&] { return unmap(1, 3); }, {hex(at(1))});              // and at the start
  expect_refused([&] { return unmap(5, 1); }, {hex(at(5))});
  EXPECT_TRUE(unmap(0, 1));
  expect_refused([&] { return unmap(0, 1); }, {hex(at(0))});
  expect_refused([&] { return set_access(0, 1); }, {hex(at(0))});
}

TEST_P(EveryBackend, RefusesSpansOfTwoRanges) {
  // Two ranges that meet, where the device gives such.
  const Address other = reserve(8);
  const Address first = std::min(range_, other), second = std::max(range_, other);
  ASSERT_TRUE(backend_->map(first + 7 * chunk_, one_));
  ASSERT_TRUE(backend_->map(second, one_));
  const Address from = first + 7 * chunk_;
  expect_refused([&] { return backend_->set_access(from, 2 * chunk_, Access::kRead); },
                 {hex(from)});
  expect_refused([&] { return backend_->unmap(from, 2 * chunk_); }, {hex(from)});
}

// Rule 5

TEST_P(EveryBackend, RefusesHandlesThatWereReleasedOrNeverWere) {
  ASSERT_TRUE(map(0, one_));
  ASSERT_TRUE(backend_->release(one_));
  const std::string name = "handle " + number(one_.value);
  expect_refused([&] { return map(1, one_); }, {name, "released"});
  expect_refused([&] { return backend_->release(one_); }, {name, "released"});
  ASSERT_TRUE(unmap(0, 1));
  expect_refused([&] { return map(1, one_); }, {name, "released"});
  expect_refused([&] { return backend_->release(one_); }, {name, "released"});
  for (const Handle handle : {Handle{}, Handle{1'000'000'007}}) {
    const std::string unknown = "handle " + number(handle.value);
    expect_refused([&] { return map(1, handle); }, {unknown, "never created"});
    expect_refused([&] { return backend_->release(handle); }, {unknown, "never created"});
  }
}

TEST_P(EveryBackend, KnowsALiveHandlesSizeAndMappings) {
  ASSERT_TRUE(map(0, two_));
  ASSERT_TRUE(map(2, two_));
  const auto info = backend_->info(two_);
  ASSERT_TRUE(info);
  EXPECT_EQ(info->bytes, 2 * chunk_);
  EXPECT_EQ(info->mappings, 2u);
  ASSERT_TRUE(unmap(0, 2));
  EXPECT_EQ(backend_->info(two_)->mappings, 1u);
  ASSERT_TRUE(backend_->release(two_));
  expect_refused([&] { return backend_->info(two_); }, {"handle " + number(two_.value)});
}

TEST_P(EveryBackend, NeverGivesAHandlesNameTwice) {
  ASSERT_TRUE(backend_->release(two_));
  const Handle next = create(2);
  EXPECT_NE(next, two_);
  EXPECT_NE(next, one_);
  EXPECT_TRUE(next);
}

// The limit

TEST_P(EveryBackend, CreatesUpToTheLimitAndNotMore) {
  backend_->set_limit_bytes(5 * chunk_);  // 3 are there
  const std::vector<std::string> words = {number(3 * chunk_), number(2 * chunk_),
                                          number(5 * chunk_)};
  expect_refused([&] { return backend_->create(3 * chunk_); }, words, Code::kNoSpace);
  const Handle last = create(2);
  expect_refused([&] { return backend_->create(chunk_); }, {number(chunk_)}, Code::kNoSpace);
  ASSERT_TRUE(map(0, last));
  ASSERT_TRUE(backend_->release(last));  // mapped: still there
  expect_refused([&] { return backend_->create(chunk_); }, {number(chunk_)}, Code::kNoSpace);
  ASSERT_TRUE(unmap(0, 2));
  EXPECT_TRUE(backend_->create(2 * chunk_));
}

TEST_P(EveryBackend, ALimitBelowWhatIsThereTakesNothingAway) {
  backend_->set_limit_bytes(chunk_);
  EXPECT_EQ(backend_->physical_bytes(), 3 * chunk_);
  expect_refused([&] { return backend_->create(chunk_); }, {number(chunk_)}, Code::kNoSpace);
  ASSERT_TRUE(backend_->release(two_));
  expect_refused([&] { return backend_->create(chunk_); }, {number(chunk_)}, Code::kNoSpace);
  backend_->set_limit_bytes(0);
  EXPECT_TRUE(backend_->create(chunk_));
}

// Threads

TEST_P(EveryBackend, ServesThreadsThatShareHandlesAndTheLimit) {
  constexpr std::uint64_t kThreads = 4, kRounds = 50;
  backend_->set_limit_bytes((3 + kThreads) * chunk_);  // one chunk a thread: never refused
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      const Address range = *backend_->reserve(4 * chunk_);
      for (std::uint64_t round = 0; round < kRounds; ++round) {
        const auto own = backend_->create(chunk_);
        ASSERT_TRUE(own) << own.error().message;
        EXPECT_TRUE(backend_->map(range, *own));
        EXPECT_TRUE(backend_->map(range + chunk_, two_));
        EXPECT_TRUE(backend_->set_access(range, 3 * chunk_, Access::kReadWrite));
        EXPECT_TRUE(backend_->release(*own));
        EXPECT_TRUE(backend_->unmap(range, 3 * chunk_));
      }
      EXPECT_TRUE(backend_->free_range(range));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(backend_->physical_bytes(), 3 * chunk_);
  EXPECT_EQ(backend_->mapped_bytes(), 0u);
  EXPECT_EQ(backend_->reserved_bytes(), 8 * chunk_);
  EXPECT_EQ(backend_->counts().map, 2 * kThreads * kRounds);
}

// Several threads release, map and unmap the same handle: memory is given back exactly once.
TEST_P(EveryBackend, ReleasesWhileOthersMapAreOneOrderOrTheOther) {
  for (int round = 0; round < 50; ++round) {
    const Handle handle = create(1);
    std::vector<std::thread> threads;
    for (std::uint64_t i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        const Address range = *backend_->reserve(chunk_);
        const bool mapped = backend_->map(range, handle).ok();  // no: it was released first
        EXPECT_EQ(backend_->unmap(range, chunk_).ok(), mapped);
        EXPECT_TRUE(backend_->free_range(range));
      });
    }
    EXPECT_TRUE(backend_->release(handle));
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(backend_->physical_bytes(), 3 * chunk_);
  }
}

INSTANTIATE_TEST_SUITE_P(Vmm, EveryBackend, kSubjects, subject_name);

}  // namespace
}  // namespace cachalot::device_memory
