#include "storage/encrypted.h"

#include <gtest/gtest.h>

#include <cstring>

#include "storage/store.h"
#include "testing/storage/chains.h"
#include "testing/storage/fake_backend.h"

namespace cachalot::storage {
namespace {

constexpr StorageKey kKey{{1, 2, 3}}, kOtherKey{{1, 2, 4}};

std::unique_ptr<Backend> encrypted(FakeBackend::Disk& disk, const StorageKey& key = kKey) {
  return make_encrypted(std::make_unique<FakeBackend>(disk), key);
}

// Whether 16 bytes of `needle`, from any multiple of 16 on, are in `bytes`.
bool has_part_of(const std::vector<std::byte>& bytes, Bytes needle) {
  for (std::size_t at = 0; at + 16 <= needle.size(); at += 16) {
    if (memmem(bytes.data(), bytes.size(), needle.data() + at, 16) != nullptr) return true;
  }
  return false;
}

TEST(EncryptedTest, TheDiskHasNoPlaintextAndNoHashOfIt) {
  FakeBackend::Disk disk;
  Chain chain(1, 4, 4096, 8);
  ASSERT_EQ(put_all(*encrypted(disk), chain), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    const FakeBackend::Object& object = disk.objects.at(chain.key(i));
    ASSERT_EQ(object.body.size(), 4096u + 32);
    EXPECT_FALSE(has_part_of(object.body, {chain.data(i), chain.bytes()}));
    EXPECT_FALSE(has_part_of(object.body, std::as_bytes(std::span(chain.tokens(i)))));
    EXPECT_EQ(object.head.seal, 0u);
    EXPECT_EQ(object.head.flags, kObjectEncrypted);
  }
  EXPECT_TRUE(has_part_of({chain.data(0), chain.data(0) + 64}, {chain.data(0), 64}));  // the test
}

TEST(EncryptedTest, EqualPayloadsHaveDifferentCiphertexts) {
  FakeBackend::Disk disk;
  Chain chain(1, 1, 4096);
  ASSERT_EQ(put_all(*encrypted(disk), chain), 1u);
  const FakeBackend::Object first = disk.objects.at(chain.key(0));
  ASSERT_EQ(put_all(*encrypted(disk), chain), 1u);
  const FakeBackend::Object& second = disk.objects.at(chain.key(0));
  EXPECT_NE(first.body, second.body);
  EXPECT_NE(std::memcmp(first.head.nonce, second.head.nonce, 12), 0);
}

TEST(EncryptedTest, AnotherKeyIsAMissAndTakesTheStorageOver) {
  FakeBackend::Disk disk;
  Chain chain(1, 4, 4096, 2);
  ASSERT_EQ(put_all(*encrypted(disk), chain), 4u);
  EXPECT_EQ(get_all(*encrypted(disk, kOtherKey), chain), std::vector<bool>(4, false));
  const std::unique_ptr<Backend> other = encrypted(disk, kOtherKey);
  std::vector<Room> room = chain.room(0);
  Get get{chain.key(0), room};
  ::testing::internal::CaptureStderr();
  ASSERT_TRUE(other->get({&get, 1}, soon()));
  EXPECT_EQ(get.status.error().code, Code::kCorrupt);
  EXPECT_EQ(get_all(*encrypted(disk), chain), std::vector<bool>(4, true));

  const std::unique_ptr<Store> store = Store::make(encrypted(disk, kOtherKey), {});
  store->get({&get, 1}, soon());
  EXPECT_FALSE(get.status);
  EXPECT_TRUE(store->is_up());
  EXPECT_TRUE(disk.objects.empty());  // the root does not decrypt, so all below it is of no use
  ::testing::internal::GetCapturedStderr();
  Chain again(1, 4, 4096, 2);  // the get has written into the other one
  EXPECT_EQ(put_all(store->backend(), again), 4u);
  EXPECT_EQ(get_all(store->backend(), again), std::vector<bool>(4, true));
}

TEST(EncryptedTest, NoCiphertextIsHandedOutWithoutTheKey) {
  FakeBackend::Disk disk;
  Chain chain(1, 2, 4096, 2);
  ASSERT_EQ(put_all(*encrypted(disk), chain), 2u);
  const std::unique_ptr<Store> store = Store::make(std::make_unique<FakeBackend>(disk), {});
  std::vector<Room> room = chain.room(0);
  Get get{chain.key(0), room};
  store->get({&get, 1}, soon());
  ASSERT_FALSE(get.status);
  EXPECT_EQ(get.status.error().code, Code::kCorrupt);
  EXPECT_NE(std::string(get.status.error().message).find("is encrypted, and no"), std::string::npos)
      << get.status.error().message;
}

TEST(EncryptedTest, AnyChangedBitIsRefused) {
  const std::pair<const char*, std::function<void(FakeBackend::Object&)>> damages[] = {
      {"payload", [](auto& object) { object.body[4000] ^= std::byte{1}; }},
      {"token", [](auto& object) { object.body.back() ^= std::byte{128}; }},
      {"nonce", [](auto& object) { object.head.nonce[11] ^= 1; }},
      {"tag", [](auto& object) { object.head.tag[0] ^= 1; }},
      {"parent", [](auto& object) { object.head.parent.high ^= 1; }},
      {"flag", [](auto& object) { object.head.flags = 0; }},
      {"magic", [](auto& object) { object.head.magic = 0; }},
  };
  for (const auto& [name, damage] : damages) {
    FakeBackend::Disk disk;
    Chain chain(1, 1, 4096, 2);
    const std::unique_ptr<Backend> backend = encrypted(disk);
    ASSERT_EQ(put_all(*backend, chain), 1u);
    ASSERT_EQ(get_all(*backend, chain), std::vector<bool>{true});
    damage(disk.objects.at(chain.key(0)));
    std::vector<Room> room = chain.room(0);
    Get get{chain.key(0), room};
    ASSERT_TRUE(backend->get({&get, 1}, soon()));
    ASSERT_FALSE(get.status) << name;
    EXPECT_EQ(get.status.error().code, Code::kCorrupt) << name;
  }
}

// A body with its whole head, moved to another key.
TEST(EncryptedTest, AnObjectUnderAnotherKeyIsRefused) {
  FakeBackend::Disk disk;
  Chain chain(1, 2, 4096);
  const std::unique_ptr<Backend> backend = encrypted(disk);
  ASSERT_EQ(put_all(*backend, chain), 2u);
  FakeBackend::Object moved = disk.objects.at(chain.key(1));
  moved.head.key = chain.key(0);
  disk.objects.at(chain.key(0)) = moved;
  EXPECT_EQ(get_all(*backend, chain), (std::vector<bool>{false, true}));
}

// A payload lies in pool memory: right after the store has looked, it may be another block's.
TEST(EncryptedTest, APayloadThatChangesAfterItWasSealedIsNotStored) {
  FakeBackend::Disk disk;
  const std::unique_ptr<Store> store = Store::make(encrypted(disk), {});
  for (std::uint64_t name = 1; name <= 5; ++name) {
    Chain chain(name, 3, 4096, 2);
    std::vector<std::vector<Bytes>> payloads;
    std::vector<BlockPut> blocks;
    for (std::size_t i = 0; i < 3; ++i) payloads.push_back(chain.payload(i));
    for (std::size_t i = 0; i < 3; ++i)
      blocks.push_back({chain.hashes()[i], payloads[i], chain.tokens(i)});
    const std::size_t first = name == 1 ? 1 : 0;
    EXPECT_EQ(store->put(kSpace, nullptr, blocks, soon(),
                         [&] {
                           for (std::size_t i = first; i < 3; ++i)
                             chain.data(i)[100] ^= std::byte{1};
                           return std::size_t{3};
                         }),
              first);
  }
  EXPECT_EQ(disk.count(), 1u);
  EXPECT_TRUE(store->is_up());
  EXPECT_EQ(store->counts().failed_puts, 14u);
}

TEST(EncryptedTest, APlainObjectIsRefusedWhenAKeyIsGiven) {
  FakeBackend::Disk disk;
  Chain chain(1, 1, 4096);
  FakeBackend plain(disk);
  ASSERT_EQ(put_all(plain, chain), 1u);
  EXPECT_EQ(get_all(*encrypted(disk), chain), std::vector<bool>{false});
}

}  // namespace
}  // namespace cachalot::storage
