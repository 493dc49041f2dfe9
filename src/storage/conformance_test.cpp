// What every backend does. The tests of each backend's folder run it (conformance.h).
#include "testing/storage/conformance.h"

#include <algorithm>
#include <set>
#include <system_error>
#include <thread>

namespace cachalot::storage {
namespace {

const std::vector<bool> kAll8(8, true);

TEST_P(BackendConformance, WhatWasPutIsGotByteForByte) {
  Chain chain(1, 8, 65536);
  EXPECT_EQ(put_all(*backend_, chain), 8u);
  EXPECT_EQ(get_all(*backend_, chain), kAll8);
}

TEST_P(BackendConformance, SizesAndAddressesNeedNoAlignment) {
  for (const std::uint64_t bytes : {64u, 512u, 4096u, 4160u, 69632u, 69760u}) {
    for (const std::size_t shift : {0u, 64u}) {
      Chain chain(bytes * 2 + shift, 8, bytes, 3, shift);
      EXPECT_EQ(put_all(*backend_, chain), 8u);
      EXPECT_EQ(get_all(*backend_, chain), kAll8) << bytes << " bytes, shifted by " << shift;
    }
  }
}

TEST_P(BackendConformance, ObjectsAreThereAfterARestart) {
  Chain chain(1, 8, 4096, 5);
  ASSERT_EQ(put_all(*backend_, chain), 8u);
  open();
  EXPECT_EQ(get_all(*backend_, chain), kAll8);
  EXPECT_EQ(listed().size(), 8u);
}

TEST_P(BackendConformance, AbsentObjectsAreNotFoundAndHarmNoOthers) {
  Chain chain(1, 8, 4096), absent(2, 1, 4096);
  ASSERT_EQ(put_all(*backend_, chain), 8u);
  chain.clear(0);
  std::vector<Room> room = chain.room(0), other = absent.room(0);
  Get gets[] = {{absent.key(0), other}, {chain.key(0), room}};
  ASSERT_TRUE(backend_->get(gets, soon()));
  ASSERT_FALSE(gets[0].status);
  EXPECT_EQ(gets[0].status.error().code, Code::kNotFound);
  EXPECT_TRUE(gets[1].status && chain.is_right(0));
  EXPECT_FALSE(is_there(absent.key(0)));
  EXPECT_TRUE(is_there(chain.key(0)));
}

TEST_P(BackendConformance, WhatOthersWriteIsAskedForByItsHeads) {
  if (!backend_->traits().is_shared) GTEST_SKIP() << "is listed";
  Chain chain(1, 100, 8192, 3), absent(2, 1, 4096);
  ASSERT_EQ(put_all(*backend_, chain), 100u);
  std::vector<ObjectKey> keys{absent.key(0)};
  for (std::size_t i = 0; i < 100; ++i) keys.push_back(chain.key(i));
  keys.push_back(chain.key(0, kOtherSpace));
  std::vector<std::optional<ObjectHead>> heads(keys.size(), ObjectHead{});
  ASSERT_TRUE(backend_->heads(keys, heads, soon()));
  EXPECT_FALSE(heads.front() || heads.back());
  for (std::size_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(heads[i + 1]) << i;
    const ObjectHead expected = chain.head(i);
    EXPECT_TRUE(heads[i + 1]->key == expected.key && heads[i + 1]->parent == expected.parent);
    EXPECT_EQ(heads[i + 1]->payload_bytes, 8192u);
    EXPECT_EQ(heads[i + 1]->tokens, 3u);
  }
  EXPECT_TRUE(backend_->heads({}, {}, soon()));
}

TEST_P(BackendConformance, NamespacesAreApart) {
  Chain chain(1, 8, 4096);
  ASSERT_EQ(put_all(*backend_, chain), 8u);
  EXPECT_EQ(get_all(*backend_, chain, kOtherSpace), std::vector<bool>(8, false));
  EXPECT_FALSE(is_there(chain.key(0, kOtherSpace)));
}

TEST_P(BackendConformance, ARoomOfAnotherSizeIsRefused) {
  Chain chain(1, 1, 4096), other(1, 1, 8192);
  ASSERT_EQ(put_all(*backend_, chain), 1u);
  std::vector<Room> room = other.room(0);
  Get get{chain.key(0), room};
  ASSERT_TRUE(backend_->get({&get, 1}, soon()));
  ASSERT_FALSE(get.status);
  EXPECT_EQ(get.status.error().code, Code::kInvalidArgument);
}

TEST_P(BackendConformance, RemovedObjectsAreGone) {
  Chain chain(1, 4, 4096);
  ASSERT_EQ(put_all(*backend_, chain), 4u);
  const ObjectKey keys[] = {chain.key(1), chain.key(3), Chain(9, 1, 64).key(0)};
  EXPECT_TRUE(backend_->remove(keys, soon()));
  EXPECT_EQ(get_all(*backend_, chain), (std::vector<bool>{true, false, true, false}));
  std::vector<ObjectKey> left = listed();
  if (!GetParam().lists_in_order && left.size() == 2 && left[0] == chain.key(2))
    std::swap(left[0], left[1]);
  EXPECT_EQ(left, (std::vector<ObjectKey>{chain.key(0), chain.key(2)}));
}

TEST_P(BackendConformance, TheSpaceOfRemovedObjectsIsUsedAgain) {
  const std::uint64_t rounds = 2 * GetParam().most_bytes / (8 * 65536);
  for (std::uint64_t round = 0; round < rounds; ++round) {
    Chain chain(round + 1, 8, 65536);
    ASSERT_EQ(put_all(*backend_, chain), 8u);
    ASSERT_EQ(get_all(*backend_, chain), kAll8);
    std::vector<ObjectKey> keys;
    for (std::size_t i = 0; i < 8; ++i) keys.push_back(chain.key(i));
    ASSERT_TRUE(backend_->remove(keys, soon()));
  }
  std::uint64_t bytes = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder_)) {
    std::error_code gone;  // a backend may remove files meanwhile
    const bool is_file = file.is_regular_file(gone);
    const std::uintmax_t size = is_file ? file.file_size(gone) : 0;
    if (!gone) bytes += size;
  }
  EXPECT_LT(bytes, GetParam().most_bytes);  // twice as much was put
}

TEST_P(BackendConformance, PuttingAgainChangesNothing) {
  Chain chain(1, 8, 4096, 2);
  EXPECT_EQ(put_all(*backend_, chain), 8u);
  EXPECT_EQ(put_all(*backend_, chain), 8u);
  EXPECT_EQ(listed().size(), 8u);
  EXPECT_EQ(get_all(*backend_, chain), kAll8);
}

TEST_P(BackendConformance, TheListHasHeadsAndCanBeEnded) {
  Chain chain(1, 8, 4096, 2);
  ASSERT_EQ(put_all(*backend_, chain), 8u);
  std::size_t heads = 0;
  ASSERT_TRUE(backend_->list(
      [&](const ObjectHead& head) {
        bool is_one = false;
        for (std::size_t i = 0; i < 8; ++i) {
          const ObjectHead expected = chain.head(i);
          is_one |= head.key == expected.key && head.parent == expected.parent &&
                    head.payload_bytes == 4096 && head.tokens == 2;
        }
        EXPECT_TRUE(is_one);
        return ++heads < 3;
      },
      soon()));
  EXPECT_EQ(heads, 3u);
}

TEST_P(BackendConformance, ThreadsPutGetAndRemoveSimultaneously) {
  const auto work = [this](std::uint64_t thread) {
    for (std::uint64_t round = 0; round < 20; ++round) {
      Chain chain(thread * 100 + round + 1, 8, 12288, 1);
      EXPECT_EQ(put_all(*backend_, chain), 8u);
      EXPECT_EQ(get_all(*backend_, chain), kAll8);
      const ObjectKey key = chain.key(round % 8);
      EXPECT_TRUE(backend_->remove({&key, 1}, soon()));
      EXPECT_FALSE(get_all(*backend_, chain)[round % 8]);
    }
  };
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 0; thread < 4; ++thread) threads.emplace_back(work, thread);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(listed().size(), 4u * 20 * 7);
}

TEST_P(BackendConformance, ALargeBatchIsPutGotAndRemoved) {
  Chain chain(1, 300, 8192, 3);
  ASSERT_EQ(put_all(*backend_, chain), 300u);
  EXPECT_EQ(get_all(*backend_, chain), std::vector<bool>(300, true));
  std::vector<ObjectKey> keys;
  for (std::size_t i = 0; i < 300; ++i) keys.push_back(chain.key(i));
  EXPECT_EQ(listed().size(), 300u);
  ASSERT_TRUE(backend_->remove(keys, soon()));
  EXPECT_TRUE(listed().empty());
  EXPECT_EQ(get_all(*backend_, chain), std::vector<bool>(300, false));
}

TEST_P(BackendConformance, EachObjectThatIsReadArrivesOnceWithItsBytes) {
  constexpr std::size_t kObjects = 40, kRefused = 3;
  Chain chain(1, kObjects, 12352, 5), absent(2, 1, 12352);
  ASSERT_EQ(put_all(*backend_, chain), kObjects);
  std::vector<std::vector<Room>> rooms;
  std::vector<Get> gets;
  for (std::size_t i = 0; i < kObjects; ++i) {
    chain.clear(i);
    rooms.push_back(chain.room(i));
  }
  for (std::size_t i = 0; i < kObjects; ++i) gets.push_back({chain.key(i), rooms[i]});
  std::vector<Room> other = absent.room(0);
  gets.push_back({absent.key(0), other});
  std::vector<int> arrivals(gets.size());
  const auto arrived = [&](Get& get) {
    const auto i = static_cast<std::size_t>(&get - gets.data());
    ++arrivals[i];
    EXPECT_TRUE(i < kObjects && chain.is_right(i) && get.tokens == chain.tokens(i)) << i;
    if (i == kRefused) get.status = Error::make(Code::kCancelled, "not wanted");
  };
  ASSERT_TRUE(backend_->get_each(gets, arrived, soon()));
  std::vector<int> expected(kObjects, 1);
  expected.push_back(0);
  EXPECT_EQ(arrivals, expected);
  EXPECT_EQ(gets[kRefused].status.error().code, Code::kCancelled);
  EXPECT_EQ(gets[kObjects].status.error().code, Code::kNotFound);
}

TEST_P(BackendConformance, EmptyBatchesAreNoErrors) {
  EXPECT_TRUE(backend_->put({}, soon()));
  EXPECT_TRUE(backend_->get({}, soon()));
  EXPECT_TRUE(backend_->exists({}, {}, soon()));
  EXPECT_TRUE(backend_->remove({}, soon()));
  EXPECT_TRUE(listed().empty());
}

}  // namespace
}  // namespace cachalot::storage
