#include "replay/pool/source_marks.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "os/child.h"

namespace cachalot::replay {
namespace {

BlockHash hash(std::uint64_t number) {
  return {base::mix64(number), number};
}

TEST(SourceMarks, KeepTheLastSourceOfAsManyBlocksAsTheyAreMadeFor) {
  Result<SourceMarks> marks = SourceMarks::make(1000);
  ASSERT_TRUE(marks) << marks.error().message;
  EXPECT_EQ(marks->of(hash(1)), BlockSource::kStorage);
  for (std::uint64_t i = 0; i < 1000; ++i) {
    marks->set(hash(i), BlockSource::kPeers);
    if (i % 3 == 0) marks->set(hash(i), BlockSource::kStorage);
  }
  for (std::uint64_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(marks->of(hash(i)), i % 3 == 0 ? BlockSource::kStorage : BlockSource::kPeers) << i;
  }
}

TEST(SourceMarks, OfAHashThatIsAllZeroAreKept) {
  Result<SourceMarks> marks = SourceMarks::make(1);
  ASSERT_TRUE(marks) << marks.error().message;
  marks->set({0, 7}, BlockSource::kPeers);
  EXPECT_EQ(marks->of({0, 7}), BlockSource::kPeers);
}

TEST(SourceMarks, AreSeenByOtherProcesses) {
  Result<SourceMarks> marks = SourceMarks::make(10);
  ASSERT_TRUE(marks) << marks.error().message;
  Result<os::Child> child = os::Child::start([&] {
    marks->set(hash(5), BlockSource::kPeers);
    return 0;
  });
  ASSERT_TRUE(child) << child.error().message;
  const Result<os::ChildStatus> ended = child->wait();
  ASSERT_TRUE(ended && ended->ok());
  EXPECT_EQ(marks->of(hash(5)), BlockSource::kPeers);
}

}  // namespace
}  // namespace cachalot::replay
