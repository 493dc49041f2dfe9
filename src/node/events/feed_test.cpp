// A subscriber that hears a feed holds what the directory publishes, from wherever it begins.

#include "node/events/feed.h"

#include <gtest/gtest.h>

#include "node/events/test_subscriber.h"
#include "pool/format/notes.h"
#include "pool/reader/published_blocks.h"
#include "testing/pool/test_pool.h"

namespace cachalot::events {
namespace {

using block_hash::to_hex;
using pool::hash_of;

constexpr std::uint32_t kTokens = 4;

std::vector<std::uint32_t> tokens_of(std::uint64_t name) {
  const auto first = static_cast<std::uint32_t>(name * 100'000);
  return {first, first + 1, first + 2, first + 3};
}

pool::Geometry geometry(std::uint32_t note_bytes) {
  pool::Geometry g = pool::small_geometry(32);
  g.note_bytes = note_bytes;
  return g;
}

class FeedWorld {
 public:
  explicit FeedWorld(std::unique_ptr<memory::Domain> domain = memory::make_coherent_domain(),
                     std::uint32_t note_bytes = 64)
      : pool_(geometry(note_bytes), std::move(domain)) {}
  ~FeedWorld() { end(); }

  // A keeper and its feed.
  void begin(std::uint32_t queue = 1u << 12, std::size_t kept_batches = 10'000) {
    changes_ = std::make_unique<node::ChangeQueue>(pool_.domain(), queue);
    pool::Keeper& keeper = pool_.start_keeper();
    keeper.observe(*changes_);
    FeedOptions options;
    options.pool_name = "kv";
    options.epoch = keeper.epoch();
    options.kept_batches = kept_batches;
    feed_ = std::make_unique<Feed>(pool_.access(), *changes_, std::move(options));
    client_ = pool_.attach(0);
  }
  // The keeper's process dies, and its publisher with it. The client has left before: nothing stays held.
  void end() {
    if (feed_ == nullptr) return;
    EXPECT_TRUE(client_->detach());
    client_.reset();
    pool_.kill_keeper();
    feed_.reset();
  }
  void advance(TestSubscriber& subscriber) {
    feed_->advance([&](const SharedMessage& message) { subscriber.hear(*message); });
  }

  // Stores a chain with its tokens, as far as the pool takes it.
  void store(std::uint64_t first, std::uint32_t count, const BlockHash* parent = nullptr) {
    auto reserved = client_->reserve(count);
    if (!reserved) return;
    auto open = std::move(*reserved).begin();
    ASSERT_TRUE(open);
    std::vector<pool::WrittenBlock> written;
    for (std::size_t i = 0; i < open->uses().size(); ++i) {
      const BlockHash hash = hash_of(first + i);
      if (pool_.access().geometry.note_bytes != 0)
        pool::write_note(pool_.access(), open->uses()[i], hash, tokens_of(first + i));
      written.push_back({hash, 64, std::uint64_t{0}});
    }
    std::vector<pool::Verdict> verdicts(written.size());
    ASSERT_TRUE(client_->commit(parent, std::move(*open).end(), written, verdicts));
  }
  void step(base::Rng& rng) {
    constexpr std::uint64_t kNames = 120;
    const std::uint64_t first = rng.below(kNames);
    const BlockHash parent = hash_of(rng.below(kNames));
    if (rng.below(6) == 0) {
      static_cast<void>(client_->requests().evict(parent));
    } else {
      store(first, 1 + static_cast<std::uint32_t>(rng.below(8)),
            rng.below(3) == 0 ? &parent : nullptr);
    }
  }

  // The subscriber's blocks are the pool's: hashes, parents, tokens.
  void expect_equal(const TestSubscriber& subscriber, bool has_tokens = true) {
    std::map<std::string, TestSubscriber::Block> blocks;
    std::map<std::uint32_t, std::string> hashes;
    pool::for_each_published(pool_.access(), [&](const pool::Entry& entry) {
      hashes[entry.block] = to_hex({entry.hash_low, entry.hash_high});
    });
    const std::string topic =
        "kv@kv@" + to_hex(block_hash::make_namespace(pool::ClientOptions{}.fingerprint).digest);
    pool::for_each_published(pool_.access(), [&](const pool::Entry& entry) {
      TestSubscriber::Block& block = blocks[hashes[entry.block]];
      if (entry.parent != pool::kNoBlock) block.parent = hashes[entry.parent];
      block.topic = topic;
      for (std::uint64_t name = 0; has_tokens && name < 200; ++name) {
        if (to_hex(hash_of(name)) == hashes[entry.block]) block.tokens = tokens_of(name);
      }
    });
    EXPECT_EQ(subscriber.blocks(), blocks);
  }

  pool::TestPool& pool() { return pool_; }
  Feed& feed() { return *feed_; }
  pool::Client& client() { return *client_; }

 private:
  pool::TestPool pool_;
  std::unique_ptr<node::ChangeQueue> changes_;
  std::unique_ptr<Feed> feed_;
  std::unique_ptr<pool::Client> client_;
};

void follow_random_operations(FeedWorld& world, std::uint32_t queue, std::uint64_t seed) {
  world.begin(queue);
  base::Rng rng(seed);
  TestSubscriber subscriber;
  for (int i = 0; i < 1000; ++i) {
    world.step(rng);
    if (rng.below(4) == 0) world.advance(subscriber);
    if (rng.below(100) != 0) continue;
    world.end();  // the next keeper's feed begins with everything
    world.begin(queue);
    TestSubscriber next;
    world.advance(next);
    ASSERT_GT(*next.last(), *subscriber.last()) << "numbers grow over all keepers";
    subscriber = next;
  }
  world.advance(subscriber);
  EXPECT_GT(subscriber.blocks().size(), 10u);
  world.expect_equal(subscriber);
}

TEST(Feed, ASubscriberHoldsThePoolsBlocksAfterAThousandRandomOperations) {
  for (std::uint64_t seed = 1; seed < 6; ++seed) {
    FeedWorld world;
    follow_random_operations(world, 1u << 12, seed);
  }
}

TEST(Feed, ItDoesSoWithoutCoherence) {
  FeedWorld world(memory::make_noncoherent_domain());
  follow_random_operations(world, 1u << 12, 7);
}

TEST(Feed, WhatAFullQueueLosesIsReadFromTheDirectory) {
  for (std::uint64_t seed = 1; seed < 6; ++seed) {
    FeedWorld world;
    follow_random_operations(world, 4, seed);
  }
}

TEST(Feed, AFullQueueIsFollowedByAClear) {
  FeedWorld world;
  world.begin(4);
  TestSubscriber subscriber;
  world.advance(subscriber);
  EXPECT_EQ(subscriber.clears(), 1);
  world.store(1, 3);
  world.advance(subscriber);
  EXPECT_EQ(subscriber.clears(), 1);
  world.store(10, 8);
  world.advance(subscriber);
  EXPECT_EQ(subscriber.clears(), 2);
  world.expect_equal(subscriber);
}

TEST(Feed, ALateSubscriberGetsASnapshotAndGoesOnWithoutAGap) {
  FeedWorld world;
  world.begin(1u << 12, 3);
  base::Rng rng(11);
  TestSubscriber first;
  world.advance(first);
  const std::uint64_t begin = *first.last();
  for (int i = 0; i < 300; ++i) {
    world.step(rng);
    world.advance(first);
    TestSubscriber late;
    std::uint64_t before = 0;
    // Number 0 is of no batch; `begin` is one that is kept no more; the last one is of a later keeper.
    const std::uint64_t from[] = {0, begin, world.feed().next_sequence() + 5};
    Replay replay = world.feed().begin_replay(from[i % 3]);
    while (const SharedMessage message = world.feed().next_of(replay)) {
      EXPECT_GE(message->sequence, before);
      before = message->sequence;
      late.apply(*message);
    }
    ASSERT_EQ(late.blocks(), first.blocks());
    ASSERT_EQ(*late.last() + 1, world.feed().next_sequence());
    world.step(rng);
    TestSubscriber both = late;
    world.feed().advance([&](const SharedMessage& message) {
      first.hear(*message);
      both.hear(*message);
    });
    ASSERT_EQ(both.blocks(), first.blocks());
  }
  world.expect_equal(first);
}

TEST(Feed, WhatASubscriberMissedIsSentAgainWhileItIsKept) {
  FeedWorld world;
  world.begin();
  base::Rng rng(3);
  TestSubscriber first;
  for (int i = 0; i < 50; ++i) {
    world.step(rng);
    world.advance(first);
  }
  TestSubscriber missing = first;
  for (int i = 0; i < 50; ++i) {
    world.step(rng);
    world.advance(first);
  }
  ASSERT_GT(*first.last(), *missing.last());
  Replay replay = world.feed().begin_replay(*missing.last() + 1);
  while (const SharedMessage message = world.feed().next_of(replay)) missing.hear(*message);
  EXPECT_EQ(missing.blocks(), first.blocks());
  EXPECT_EQ(missing.last(), first.last());
  Replay nothing = world.feed().begin_replay(world.feed().next_sequence());
  EXPECT_EQ(world.feed().next_of(nothing), nullptr);
}

// Many subscribers at their own paces, while blocks come and go: each answer is right whenever it is read.
TEST(Feed, AnswersReadAtAnyPaceEndWithThePoolsBlocks) {
  FeedWorld world;
  world.begin(1u << 12, 20);
  base::Rng rng(17);
  TestSubscriber live;
  world.advance(live);
  struct Reader {
    Replay replay;
    TestSubscriber held;
  };
  std::vector<Reader> readers(4);
  for (Reader& reader : readers) reader.replay = world.feed().begin_replay(0);
  int ended = 0, restarted = 0;
  for (int i = 0; i < 2000; ++i) {
    world.step(rng);
    world.advance(live);
    if (rng.below(100) == 0) world.feed().forget_snapshot();
    for (std::size_t r = 0; r < readers.size(); ++r) {
      if (rng.below(1 + 8 * r) != 0) continue;
      Reader& reader = readers[r];
      const std::uint64_t snapshot = reader.replay.snapshot;
      const SharedMessage message = world.feed().next_of(reader.replay);
      if (message != nullptr) {
        restarted += reader.replay.snapshot > snapshot;
        reader.held.apply(*message);
        continue;
      }
      ++ended;
      // What it lacks yet are the live batches after its last one, if they are kept.
      Replay rest = world.feed().begin_replay(*reader.held.last() + 1);
      while (const SharedMessage later = world.feed().next_of(rest)) reader.held.apply(*later);
      ASSERT_EQ(reader.held.blocks(), live.blocks());
      reader.held = {};
      reader.replay = world.feed().begin_replay(0);
    }
  }
  EXPECT_GT(ended, 20);
  EXPECT_GT(restarted, 5);
}

TEST(Feed, SubscribersShareTheBatchesOfASnapshot) {
  FeedWorld world;
  world.begin();
  TestSubscriber live;
  world.store(1, 5);
  world.advance(live);
  Replay one = world.feed().begin_replay(0), other = world.feed().begin_replay(0);
  const SharedMessage first = world.feed().next_of(one);
  EXPECT_EQ(world.feed().next_of(other), first);
}

TEST(Feed, APoolWithoutNotesPublishesBlocksWithoutTokens) {
  FeedWorld world(memory::make_coherent_domain(), 0);
  world.begin();
  TestSubscriber subscriber;
  world.store(1, 5);
  world.advance(subscriber);
  EXPECT_EQ(subscriber.blocks().size(), 5u);
  world.expect_equal(subscriber, false);
}

TEST(Feed, AnEmptyPoolsFeedBeginsWithAClear) {
  FeedWorld world;
  world.begin();
  TestSubscriber subscriber;
  world.advance(subscriber);
  EXPECT_EQ(subscriber.clears(), 1);
  EXPECT_EQ(subscriber.last(), std::uint64_t{world.pool().keeper().epoch()} << 32);
}

TEST(Feed, MendedLinesLeadToEverythingAnew) {
  FeedWorld world;
  world.pool().scrub_lines = 1u << 20;
  world.begin();
  TestSubscriber subscriber;
  world.store(1, 3);
  world.advance(subscriber);
  const int before = subscriber.clears();
  world.pool().damage(world.pool().access().layout.entry(world.pool().slot_of(hash_of(2))));
  world.pool().keeper().tend();
  world.advance(subscriber);
  EXPECT_EQ(subscriber.clears(), before + 1);
  world.expect_equal(subscriber);
}

TEST(Feed, StoredChainsAreOneEventAndHashesAreDigestsInOrder) {
  FeedWorld world;
  world.begin();
  std::vector<SharedMessage> messages;
  const auto keep = [&](const SharedMessage& message) { messages.push_back(message); };
  world.feed().advance(keep);
  messages.clear();
  world.store(1, 3);
  world.feed().advance(keep);
  ASSERT_EQ(messages.size(), 1u);
  const nlohmann::json batch = nlohmann::json::from_msgpack(messages[0]->payload);
  ASSERT_EQ(batch[1].size(), 1u);
  const nlohmann::json& event = batch[1][0];
  EXPECT_EQ(event["block_hashes"].size(), 3u);
  EXPECT_EQ(event["block_size"], kTokens);
  const std::vector<std::uint8_t> bytes = event["block_hashes"][0].get_binary();
  ASSERT_EQ(bytes.size(), 16u);
  EXPECT_EQ(bytes[0], hash_of(1).high >> 56);
  EXPECT_EQ(bytes[15], hash_of(1).low & 0xff);
}

}  // namespace
}  // namespace cachalot::events
