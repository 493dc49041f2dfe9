// A keeper and two clients against a model that knows exactly which blocks must be published.

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <optional>

#include "pool/keeper_pulse.h"
#include "testing/pool/test_pool.h"

namespace cachalot::pool {
namespace {

TEST(KeeperPulse, SaysForHowLongTheCountOfOneKeeperStandsStill) {
  KeeperPulse pulse;
  EXPECT_EQ(pulse.silent_ns(1, 7, 1000), 0u);
  EXPECT_EQ(pulse.silent_ns(1, 7, 1500), 500u);
  EXPECT_EQ(pulse.silent_ns(1, 8, 2000), 0u);
  EXPECT_EQ(pulse.silent_ns(2, 8, 3000), 0u);
  EXPECT_EQ(pulse.silent_ns(2, 8, 3100), 100u);
  EXPECT_EQ(pulse.silent_ns(0, 8, 4000), 0u);  // there is no count
  EXPECT_EQ(pulse.silent_ns(0, 8, 5000), 0u);
}

// Least recently used leaves, the slow and obvious way. Times are those of the last use; a use of a
// block is one of its whole prefix, and a block that is stored shares its parent's time.
class Model {
 public:
  explicit Model(std::size_t capacity) : capacity_(capacity) {}

  bool has(std::uint64_t name) const { return blocks_.count(name) != 0; }
  std::size_t size() const { return blocks_.size(); }

  void touch(std::uint64_t name) {
    ++now_;
    for (std::optional<std::uint64_t> at = name; at; at = blocks_.at(*at).parent)
      blocks_.at(*at).used = now_;
  }
  Verdict put(std::uint64_t name, std::optional<std::uint64_t> parent) {
    if (has(name)) {
      touch(name);
      return Verdict::kDuplicate;
    }
    if (parent && !has(*parent)) return Verdict::kNoParent;
    if (blocks_.size() >= capacity_ && !evict_one(parent)) return Verdict::kNoRoom;
    blocks_[name] = {parent, parent ? blocks_.at(*parent).used : ++now_};
    return Verdict::kCommitted;
  }
  std::size_t evict(std::uint64_t name) {
    std::size_t evicted = 1;
    for (bool again = true; again;) {
      again = false;
      for (const auto& [child, block] : blocks_) {
        if (block.parent != name) continue;
        evicted += evict(child);
        again = true;
        break;
      }
    }
    blocks_.erase(name);
    return evicted;
  }

 private:
  struct Block {
    std::optional<std::uint64_t> parent;
    std::uint64_t used = 0;
  };
  bool is_leaf(std::uint64_t name) const {
    for (const auto& [other, block] : blocks_) {
      if (block.parent == name) return false;
    }
    return true;
  }
  bool evict_one(std::optional<std::uint64_t> protect) {
    std::optional<std::uint64_t> oldest;
    for (const auto& [name, block] : blocks_) {
      if (name == protect || !is_leaf(name)) continue;
      if (!oldest || block.used < blocks_.at(*oldest).used) oldest = name;
    }
    if (oldest) blocks_.erase(*oldest);
    return oldest.has_value();
  }

  std::size_t capacity_;
  std::map<std::uint64_t, Block> blocks_;
  std::uint64_t now_ = 0;
};

constexpr std::uint64_t kChains = 6, kDepth = 5;
constexpr std::uint32_t kCapacity = 11;

std::uint64_t name_of(std::uint64_t chain, std::uint64_t depth) {
  return chain * 100 + depth;
}

struct Move {
  std::uint8_t kind, client, chain, length;
};

class World {
 public:
  World() : pool_(small_geometry(kCapacity, 40)), model_(kCapacity) {
    pool_.start_keeper();
    for (std::uint32_t i = 0; i < 2; ++i) enter(i);
  }

  void make(const Move& move) {
    const std::uint32_t index = move.client % 2;
    Client& client = *clients_[index];
    const std::uint64_t chain = move.chain % kChains;
    const std::size_t length = 1 + move.length % kDepth;
    switch (move.kind % 10) {
      case 0:
      case 1:
      case 2:
      case 3:
        return put(client, chain, length);
      case 4:
        return get(client, chain, length);
      case 5:
        return evict(client, chain, length - 1);
      case 6:
        return leave_and_enter(index);
      case 7:
        return replace_keeper(move.length % 2 == 0);
      case 8:
        return branch(client, chain, length - 1);
      default:
        return look(client, chain, length);
    }
  }

  void check() {
    RC_ASSERT(pool_.keeper().is_valid());
    RC_ASSERT(pool_.keeper().counters()[KeeperCounter::kLive] == model_.size());
    RC_ASSERT(pool_.keeper().counters()[KeeperCounter::kMalformed] == 0u);
    for (std::uint64_t chain = 0; chain < kChains; ++chain) {
      for (std::uint64_t depth = 0; depth < kDepth; ++depth) {
        RC_ASSERT(pool_.keeper().is_published(hash_of(name_of(chain, depth)), 1) ==
                  model_.has(name_of(chain, depth)));
      }
    }
  }

 private:
  void enter(std::uint32_t index) {
    ClientOptions options;
    options.grant_target = 4;
    clients_[index] = pool_.attach(index, options);
  }
  std::size_t depth_of(std::uint64_t chain, std::size_t length) const {
    std::size_t depth = 0;
    while (depth < length && model_.has(name_of(chain, depth))) ++depth;
    return depth;
  }
  void look(Client& client, std::uint64_t chain, std::size_t length) {
    RC_ASSERT(pool_.read(client, name_of(chain, 0), length) == depth_of(chain, length));
  }
  // As an engine does: read the hit, report it, and the report arrives.
  void get(Client& client, std::uint64_t chain, std::size_t length) {
    look(client, chain, length);
    const std::size_t depth = depth_of(chain, length);
    if (depth == 0) return;
    use(client, name_of(chain, depth - 1));
  }
  // A hit that is reported, in so full a batch that the report is in flight.
  void use(Client& client, std::uint64_t name) {
    const BlockHash hash = hash_of(name);
    Found found;
    RC_ASSERT(client.lookup({&hash, 1}, {&found, 1}) == 1u);
    for (std::uint32_t i = 0; i < kUsesInHead; ++i) client.report_hit(found);
    RC_ASSERT(static_cast<bool>(client.requests().ping()));
    model_.touch(name);
  }
  void put(Client& client, std::uint64_t chain, std::size_t length) {
    const std::vector<Verdict> verdicts = pool_.put(client, name_of(chain, 0), length);
    for (std::size_t depth = 0; depth < length; ++depth) {
      const std::optional<std::uint64_t> parent =
          depth == 0 ? std::nullopt : std::optional(name_of(chain, depth - 1));
      RC_ASSERT(verdicts[depth] == model_.put(name_of(chain, depth), parent));
    }
  }
  // A second child, or one of a parent that is not there.
  void branch(Client& client, std::uint64_t chain, std::uint64_t depth) {
    const std::uint64_t parent = name_of(chain, depth), name = parent + 50;
    if (model_.has(parent)) use(client, parent);
    const BlockHash hash = hash_of(parent);
    const Verdict expected = model_.put(name, parent);
    RC_ASSERT(pool_.put(client, name, 1, &hash).front() == expected);
  }
  void evict(Client& client, std::uint64_t chain, std::uint64_t depth) {
    const std::uint64_t name = name_of(chain, depth);
    const Result<std::uint32_t> evicted = client.requests().evict(hash_of(name));
    RC_ASSERT(evicted.ok() == model_.has(name));
    if (evicted) RC_ASSERT(*evicted == model_.evict(name));
  }
  void leave_and_enter(std::uint32_t index) {
    RC_ASSERT(static_cast<bool>(clients_[index]->detach()));
    enter(index);
  }
  // The order of use is not in the pool: it begins anew, so tell keeper and model the same.
  void replace_keeper(bool killed) {
    for (auto& client : clients_) RC_ASSERT(static_cast<bool>(client->detach()));
    killed ? pool_.kill_keeper() : pool_.stop_keeper();
    pool_.start_keeper();
    for (std::uint32_t i = 0; i < 2; ++i) enter(i);
    check();
    for (std::uint64_t chain = 0; chain < kChains; ++chain) {
      for (std::uint64_t depth = 0; depth < kDepth; ++depth) {
        for (const std::uint64_t name : {name_of(chain, depth), name_of(chain, depth) + 50}) {
          if (model_.has(name)) use(*clients_[0], name);
        }
      }
    }
  }

  TestPool pool_;
  Model model_;
  std::unique_ptr<Client> clients_[2];
};

RC_GTEST_PROP(PoolState, ExactlyTheBlocksAreInThatTheModelExpects, ()) {
  World world;
  const auto moves =
      *rc::gen::container<std::vector<std::uint32_t>>(rc::gen::arbitrary<std::uint32_t>());
  for (const std::uint32_t dice : moves) {
    const std::uint64_t mixed = base::mix64(dice);
    world.make({static_cast<std::uint8_t>(mixed), static_cast<std::uint8_t>(mixed >> 8),
                static_cast<std::uint8_t>(mixed >> 16), static_cast<std::uint8_t>(mixed >> 24)});
    world.check();
  }
}

RC_GTEST_PROP(PoolState, TheSameOverLongRuns, ()) {
  base::Rng rng(*rc::gen::arbitrary<std::uint64_t>());
  World world;
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t dice = rng.next();
    world.make({static_cast<std::uint8_t>(dice), static_cast<std::uint8_t>(dice >> 8),
                static_cast<std::uint8_t>(dice >> 16), static_cast<std::uint8_t>(dice >> 24)});
    world.check();
  }
}

}  // namespace
}  // namespace cachalot::pool
