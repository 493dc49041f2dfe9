// Random calls, good and bad ones, on every backend and on a reference that searches lists.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstring>
#include <map>
#include <vector>

#include "base/rng.h"
#include "testing/device_memory/conformance.h"
#include "testing/device_memory/reference_device.h"

namespace cachalot::device_memory {
namespace {

class RandomCalls {
 public:
  RandomCalls(Rig& rig, std::uint64_t seed)
      : backend_(*rig.backend()),
        has_bytes_(rig.has_bytes()),
        chunk_(backend_.granularity_bytes()),
        reference_(chunk_),
        rng_(seed) {}

  void run(int calls) {
    for (int i = 0; i < calls; ++i) {
      call();
      RC_ASSERT(backend_.counts() == reference_.counts);
      RC_ASSERT(backend_.physical_bytes() == reference_.physical_bytes());
      RC_ASSERT(backend_.reserved_bytes() == reference_.reserved_bytes());
      RC_ASSERT(backend_.mapped_bytes() == reference_.mapped_bytes());
      if (has_bytes_) check_bytes();
    }
  }

 private:
  void call() {
    const std::uint64_t pick = rng_.below(16);
    if (pick == 0) return reserve();
    if (pick == 1) return free_range();
    if (pick == 2) return create();
    if (pick == 3) return release();
    if (pick == 4) return set_limit();
    if (pick < 8) return set_access();
    if (pick < 11) return unmap();
    map();
  }

  template <class Outcome>
  void compare(const Outcome& outcome, Answer expected) {
    const Answer answer = outcome                                          ? Answer::kOk
                          : outcome.error().code == Code::kInvalidArgument ? Answer::kInvalid
                                                                           : Answer::kNoSpace;
    if (!outcome) RC_LOG() << outcome.error().message << '\n';
    RC_ASSERT(answer == expected);
  }

  void reserve() {
    const std::uint64_t bytes = any_bytes(8);
    const Answer expected = reference_.reserve(bytes);
    const auto range = backend_.reserve(bytes);
    compare(range, expected);
    if (range) reference_.reserved(*range, bytes);
  }
  void create() {
    const std::uint64_t bytes = any_bytes(3);
    const Answer expected = reference_.create(bytes);
    const auto handle = backend_.create(bytes);
    compare(handle, expected);
    if (handle) reference_.created(*handle, bytes);
  }
  void free_range() {
    any_place();
    compare(backend_.free_range(place_), reference_.free_range(place_));
  }
  void release() {
    any_handle();
    compare(backend_.release(handle_), reference_.release(handle_));
  }
  void map() {
    any_place();
    any_handle();
    compare(backend_.map(place_, handle_), reference_.map(place_, handle_));
  }
  void unmap() {
    any_span();
    compare(backend_.unmap(place_, bytes_), reference_.unmap(place_, bytes_));
  }
  void set_limit() {
    reference_.limit = rng_.below(3) == 0 ? 0 : rng_.below(24) * chunk_;
    backend_.set_limit_bytes(reference_.limit);
  }
  void set_access() {
    any_span();
    const auto access = static_cast<Access>(rng_.below(3));
    compare(backend_.set_access(place_, bytes_, access),
            reference_.set_access(place_, bytes_, access));
  }

  // One in sixteen is bad.
  std::uint64_t any_bytes(std::uint64_t most_chunks) {
    if (rng_.below(16) == 0) return rng_.below(2) * (chunk_ + 4096);
    return (1 + rng_.below(most_chunks)) * chunk_;
  }
  // The start of a range or a place in it, up to one past its end; sometimes off the granule.
  void any_place() {
    place_ = 0;
    if (!reference_.ranges.empty()) {
      const auto& range = reference_.ranges[rng_.below(reference_.ranges.size())];
      place_ = range.at;
      if (rng_.below(4) != 0) place_ += rng_.below(range.bytes / chunk_ + 1) * chunk_;
    }
    if (rng_.below(32) == 0) place_ += 4096;
  }
  void any_handle() {
    handle_ = {};
    // Mostly one of the last, which are alive.
    const std::size_t count = reference_.handles.size();
    if (count != 0) {
      const std::size_t back =
          rng_.below(rng_.below(8) == 0 ? count : std::min<std::size_t>(count, 6));
      handle_ = reference_.handles[count - 1 - back].handle;
    }
  }
  // From some mapping over its neighbours, or anything.
  void any_span() {
    any_place();
    bytes_ = any_bytes(4);
    if (reference_.mappings.empty() || rng_.below(4) == 0) return;
    const auto& first = reference_.mappings[rng_.below(reference_.mappings.size())];
    place_ = first.at;
    bytes_ = first.bytes;
    for (const auto& next : reference_.mappings) {
      if (next.at == place_ + bytes_ && rng_.below(2) == 0) bytes_ += next.bytes;
    }
  }

  // Every mapping that may be read shows what was last written by any mapping of its handle.
  void check_bytes() {
    for (const auto& mapping : reference_.mappings) {
      if (mapping.access == Access::kNone) continue;
      std::uint64_t& expected = written_[mapping.handle.value];
      auto* const first = reinterpret_cast<std::uint64_t*>(mapping.at);
      auto* const last = reinterpret_cast<std::uint64_t*>(mapping.at + mapping.bytes) - 1;
      RC_ASSERT(*first == expected);
      RC_ASSERT(*last == expected);
      if (mapping.access == Access::kReadWrite) *first = *last = expected = rng_.next();
    }
  }

  Backend& backend_;
  const bool has_bytes_;
  const std::uint64_t chunk_;
  ReferenceDevice reference_;
  base::Rng rng_;
  std::map<std::uint64_t, std::uint64_t> written_;  // by handle; new memory is zero
  Address place_ = 0;
  std::uint64_t bytes_ = 0;
  Handle handle_;
};

class EveryBackendAtRandom : public testing::TestWithParam<Subject> {};

TEST_P(EveryBackendAtRandom, AnswersAsTheReferenceDoes) {
  if (const Rig rig(GetParam()); rig.backend() == nullptr) GTEST_SKIP() << rig.missing();
  EXPECT_TRUE(rc::check([] {
    const auto seed = *rc::gen::arbitrary<std::uint64_t>();
    Rig rig(GetParam());
    RandomCalls(rig, seed).run(200);
  }));
}

INSTANTIATE_TEST_SUITE_P(Vmm, EveryBackendAtRandom, kSubjects, subject_name);

}  // namespace
}  // namespace cachalot::device_memory
