// The cases of SGLang's file back end ("LRU"), as a store over the file backend answers them.
//
// Left out, because they are about its encoding and not about a cache:
//   - suffixes of keys by rank, MLA rank 1 that creates no files, `_cp3_8`: here ranks and layouts are in the namespace
//     whose digest is in the key, and one process owns a directory;
//   - the order of start-up by mtime: here each entry has a sequence number;
//   - the ratio to which a full cache is emptied: here only as much goes as the new object needs;
//   - the metadata cache with its time to live: here the catalogue is in memory and complete, and nothing expires.
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "base/byte_size.h"
#include "storage/file/file_backend.h"
#include "testing/os/scratch_folder.h"
#include "testing/storage/chains.h"
#include "testing/storage/faults.h"

namespace cachalot::storage {
namespace {

constexpr std::uint64_t kBytes = 65536;  // of an object

class FileLru : public ::testing::Test {
 protected:
  // @param objects  the limit, in objects of kBytes
  void open(std::uint64_t objects, std::uint64_t min_free_bytes = 0) {
    store_.reset();
    Result<std::unique_ptr<FileBackend>> backend =
        FileBackend::open({.directory = folder_ + "/objects",
                           .segment_bytes = 1u << 20,  // 16 objects
                           .min_free_bytes = min_free_bytes});
    ASSERT_TRUE(backend) << backend.error().message;
    backend_ = backend->get();
    store_ = Store::make(*std::move(backend), {.limits = {.bytes = objects * kBytes}});
  }
  // An object without parent or children, by a letter.
  static Chain object(char name, std::uint64_t bytes = kBytes) {
    return Chain(static_cast<std::uint64_t>(name), 1, bytes);
  }
  bool put(char name, std::uint64_t bytes = kBytes, const Store::StillValid& meanwhile = {}) {
    const Chain chain = object(name, bytes);
    const std::vector<Bytes> payload = chain.payload(0);
    BlockPut block{chain.hashes()[0], payload};
    return store_->put(kSpace, nullptr, {&block, 1}, soon(), meanwhile) == 1;
  }
  bool get(char name) {
    Chain chain = object(name);
    chain.clear(0);
    std::vector<Room> room = chain.room(0);
    Get one{chain.key(0), room};
    store_->get({&one, 1}, soon());
    EXPECT_TRUE(!one.status || chain.is_right(0));
    return one.status.ok();
  }
  // The objects that the store knows, of a to h.
  std::string known() const {
    std::string names;
    for (char name = 'a'; name <= 'h'; ++name) {
      if (store_->catalogue().contains(object(name).key(0))) names += name;
    }
    return names;
  }
  std::uint64_t tracked() const { return store_->catalogue().bytes() / kBytes; }

  const os::ScratchFolder scratch_{"/var/tmp"};
  const std::string folder_ = scratch_.path();
  std::unique_ptr<Store> store_;
  FileBackend* backend_ = nullptr;
};

TEST_F(FileLru, H_TheOldestGoesWhenItIsFull) {
  open(3);
  EXPECT_TRUE(put('a') && put('b') && put('c'));
  EXPECT_TRUE(put('d'));
  EXPECT_EQ(known(), "bcd");
  EXPECT_FALSE(get('a'));
  EXPECT_TRUE(get('b') && get('c') && get('d'));
}

TEST_F(FileLru, H_AGetIsAUse) {
  open(3);
  EXPECT_TRUE(put('a') && put('b') && put('c'));
  EXPECT_TRUE(get('a'));
  EXPECT_TRUE(put('d'));
  EXPECT_EQ(known(), "acd");
}

TEST_F(FileLru, H_AnObjectAboveTheCapacityIsRefusedAndHarmsNoOther) {
  open(1);
  EXPECT_TRUE(put('a'));
  EXPECT_FALSE(put('b', 2 * kBytes));
  EXPECT_EQ(known(), "a");
  EXPECT_EQ(tracked(), 1u);
  EXPECT_EQ(store_->counts().refused_puts, 1u);
  EXPECT_TRUE(get('a'));
  EXPECT_TRUE(backend_->is_valid());
}

TEST_F(FileLru, H_NoMoreGoesThanTheNewOneNeeds) {
  open(4);
  EXPECT_TRUE(put('a') && put('b') && put('c') && put('d') && put('e'));
  EXPECT_EQ(known(), "bcde");
  EXPECT_EQ(tracked(), 4u);
}

TEST_F(FileLru, H_TheSameKeyTwiceCountsOnce) {
  open(3);
  EXPECT_TRUE(put('a') && put('a'));
  EXPECT_EQ(tracked(), 1u);
  EXPECT_EQ(store_->counts().put_objects, 1u);
  EXPECT_TRUE(put('b') && put('c'));
  EXPECT_EQ(known(), "abc");
}

TEST_F(FileLru, H_AfterAllWereRemovedNothingIsTracked) {
  open(3);
  EXPECT_TRUE(put('a') && put('b') && put('c'));
  for (const char name : {'a', 'b', 'c'}) store_->remove(object(name).key(0), soon());
  EXPECT_EQ(store_->catalogue().bytes(), 0u);
  EXPECT_EQ(known(), "");
  EXPECT_FALSE(get('a'));
  EXPECT_TRUE(backend_->is_valid());
  EXPECT_TRUE(put('d') && put('e') && put('f'));
  EXPECT_EQ(known(), "def");
}

TEST_F(FileLru, H_AfterARestartTheOldestPutGoesFirst) {
  open(3);
  EXPECT_TRUE(put('c') && put('a') && put('b'));
  open(3);
  EXPECT_EQ(known(), "abc");
  EXPECT_TRUE(put('d'));
  EXPECT_EQ(known(), "abd");
  open(2);
  EXPECT_EQ(known(), "bd");
}

// What the backend has and the catalogue has not: in SGLang a file of another rank.
TEST_F(FileLru, H_AnUnknownObjectIsAdoptedByASetAndByAGet) {
  open(4);
  ASSERT_EQ(put_all(*backend_, object('a')), 1u);
  ASSERT_EQ(put_all(*backend_, object('b')), 1u);
  EXPECT_EQ(known(), "");
  EXPECT_TRUE(get('a'));
  EXPECT_TRUE(put('b'));
  EXPECT_EQ(known(), "ab");
  EXPECT_EQ(tracked(), 2u);
  EXPECT_TRUE(backend_->is_valid());  // no slot was used twice
}

TEST_F(FileLru, H_BelowTheFreeMinimumANewFileIsRefused) {
  if (!mount_memory(folder_, 24u << 20)) GTEST_SKIP() << "no right to mount a file system";
  open(100, 24u << 20);
  EXPECT_FALSE(put('a'));
  EXPECT_EQ(tracked(), 0u);
  EXPECT_EQ(store_->counts().failed_puts, 1u);
  EXPECT_TRUE(store_->is_up());
  EXPECT_TRUE(backend_->is_valid());
}

TEST_F(FileLru, H_BelowTheFreeMinimumTheOldestMakesRoom) {
  if (!mount_memory(folder_, 24u << 20)) GTEST_SKIP() << "no right to mount a file system";
  open(100, (23u << 20) - (512u << 10));  // room for one segment
  for (char name = 'A'; name < 'A' + 16; ++name) EXPECT_TRUE(put(name));
  EXPECT_TRUE(put('a'));
  EXPECT_FALSE(get('A'));
  EXPECT_TRUE(get('B') && get('a'));
  EXPECT_EQ(tracked(), 16u);
  EXPECT_EQ(store_->counts().evicted_objects, 1u);
  EXPECT_EQ(store_->counts().failed_puts, 0u);
}

// `a` has its room and is being written when half of another object comes: it finds none.
TEST_F(FileLru, H_RoomThatAPutHasReservedIsNotTaken) {
  const Chain first = object('a');
  bool fits = false;
  Catalogue catalogue({.bytes = kBytes});
  EXPECT_TRUE(catalogue.take_victims(kBytes, 1, nullptr, fits).empty() && fits);
  EXPECT_TRUE(catalogue.take_victims(kBytes / 2, 1, nullptr, fits).empty());
  EXPECT_FALSE(fits);
  EXPECT_TRUE(catalogue.add_reserved(first.head(0)));
  EXPECT_EQ(catalogue.objects(), 1u);
  EXPECT_TRUE(catalogue.is_valid());
}

TEST_F(FileLru, H_SimultaneousPutsStayWithinTheCapacity) {
  open(3);
  std::vector<std::thread> threads;
  for (char thread = 0; thread < 4; ++thread) {
    threads.emplace_back([this, thread] {
      for (int i = 0; i < 20; ++i) {
        (void)put(static_cast<char>('a' + (thread * 20 + i) % 26));
        EXPECT_LE(tracked(), 3u);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(backend_->is_valid());
  EXPECT_TRUE(store_->catalogue().is_valid());
  EXPECT_TRUE(put('a') && put('b') && put('c'));  // no reservation was left over
  EXPECT_EQ(tracked(), 3u);
}

TEST_F(FileLru, H_WhatIsKnownNeedsNoFileSystem) {
  open(3);
  EXPECT_TRUE(put('a'));
  std::filesystem::rename(folder_ + "/objects", folder_ + "/away");
  EXPECT_EQ(known(), "a");
  EXPECT_TRUE(store_->touch(object('a').key(0)));
  store_->remove(object('a').key(0), soon());
  EXPECT_EQ(known(), "");
  std::filesystem::rename(folder_ + "/away", folder_ + "/objects");
}

// Units are written out here: "1k" may be 1000 or 1024, so it is an error and not a guess. What is no size is an
// error, too, where SGLang takes 0.
TEST_F(FileLru, H_SizesHaveUnitsThatAreNotGuessed) {
  EXPECT_EQ(*base::parse_byte_size("--storage-capacity", "1KB"), 1000u);
  EXPECT_EQ(*base::parse_byte_size("--storage-capacity", "1KiB"), 1024u);
  EXPECT_EQ(*base::parse_byte_size("--storage-capacity", "1.5GB"), 1'500'000'000u);
  for (const char* const text : {"1k", "1Ki", "1.5G", "invalid", "", "-1KiB"}) {
    const Result<std::uint64_t> refused = base::parse_byte_size("--storage-capacity", text);
    ASSERT_FALSE(refused) << text;
    EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace cachalot::storage
