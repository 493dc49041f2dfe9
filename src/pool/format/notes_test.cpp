// Notes: what was written for this use of a block is read, and nothing else is.

#include "pool/format/notes.h"

#include <gtest/gtest.h>

#include <numeric>

#include "testing/memory/lossy_memory.h"
#include "testing/pool/test_pool.h"

namespace cachalot::pool {
namespace {

constexpr BlockHash kHash{11, 22};
constexpr BlockUse kUse{5, 3};
constexpr std::uint32_t kNoteBytes = 256;  // 56 tokens

std::vector<std::uint32_t> tokens_from(std::uint32_t first, std::uint32_t count) {
  std::vector<std::uint32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

Geometry geometry_with_notes() {
  Geometry geometry = small_geometry();
  geometry.note_bytes = kNoteBytes;
  return geometry;
}

class NotesTest : public testing::Test {
 protected:
  bool read(const BlockUse& use = kUse, const BlockHash& hash = kHash) {
    return read_note(access(), use, hash, found_);
  }
  const Access& access() const { return pool_.access(); }

  TestPool pool_{geometry_with_notes()};
  std::vector<std::uint32_t> found_;
};

TEST_F(NotesTest, TokensAreReadAsTheyWereWrittenWhateverTheirNumber) {
  for (std::uint32_t count = 0; count <= most_note_tokens(access().geometry); ++count) {
    const std::vector<std::uint32_t> tokens = tokens_from(0xfffffff0u, count);
    write_note(access(), kUse, kHash, tokens);
    ASSERT_TRUE(read()) << count;
    ASSERT_EQ(found_, tokens);
  }
}

TEST_F(NotesTest, ANoteOfAnotherUseOfTheBlockIsNone) {
  write_note(access(), kUse, kHash, tokens_from(1, 8));
  EXPECT_FALSE(read({kUse.block, kUse.generation + 1}));
  EXPECT_TRUE(found_.empty());
  EXPECT_FALSE(read(kUse, {12, 22}));
  EXPECT_FALSE(read(kUse, {11, 23}));
  EXPECT_FALSE(read({kUse.block + 1, kUse.generation}));
  EXPECT_TRUE(read());
}

TEST_F(NotesTest, ANoteThatLiesAtAnotherBlockIsNone) {
  write_note(access(), kUse, kHash, tokens_from(1, 8));
  std::byte* const notes = access().view.bases[0] + access().layout.notes;
  std::memcpy(notes + 6 * kNoteBytes, notes + 5 * kNoteBytes, kNoteBytes);
  EXPECT_FALSE(read({6, kUse.generation}));
}

TEST_F(NotesTest, EveryDamagedByteIsNoticed) {
  write_note(access(), kUse, kHash, tokens_from(1, 20));
  std::byte* const note = access().view.bases[0] + access().layout.notes + 5 * kNoteBytes;
  for (std::uint32_t at = 0; at < 32 + 20 * 4; ++at) {
    note[at] ^= std::byte{0x40};
    EXPECT_FALSE(read()) << at;
    note[at] ^= std::byte{0x40};
  }
  EXPECT_TRUE(read());
}

TEST_F(NotesTest, NotesOfNeighboursDoNotOverlap) {
  const std::uint32_t most = most_note_tokens(access().geometry);
  const std::uint32_t blocks = access().geometry.blocks;
  for (std::uint32_t block = 0; block < blocks; ++block)
    write_note(access(), {block, 1}, hash_of(block), tokens_from(block * 1000, most));
  for (std::uint32_t block = 0; block < blocks; ++block) {
    ASSERT_TRUE(read({block, 1}, hash_of(block))) << block;
    ASSERT_EQ(found_, tokens_from(block * 1000, most));
  }
  EXPECT_LE(access().layout.notes + blocks * std::uint64_t{kNoteBytes},
            access().layout.data_offset);
  EXPECT_GE(access().layout.notes, access().layout.entry(access().geometry.directory_slots));
}

TEST(Notes, APoolWithoutThemHasNone) {
  const TestPool pool;
  std::vector<std::uint32_t> found = {1};
  EXPECT_EQ(most_note_tokens(pool.access().geometry), 0u);
  EXPECT_FALSE(read_note(pool.access(), kUse, kHash, found));
  EXPECT_TRUE(found.empty());
}

// Two hosts with caches of their own: one writes notes and then a line, the other reads the line and then the
// note. @return notes that were not the newest
int count_missed_notes(std::uint64_t seed, bool is_ordered) {
  Geometry geometry = geometry_with_notes();
  geometry.domain = memory::DomainKind::kLossy;
  geometry.device_bytes = *device_bytes_needed(geometry);
  const memory::Adversary nasty = memory::adversary(memory::Mood::kNasty);
  memory::Scheduler scheduler(seed, nasty.pace);
  memory::LossyMemory world(scheduler, {1, geometry.device_bytes, nasty});
  memory::LossyHost& writer = world.add_host();
  memory::LossyHost& reader = world.add_host();
  const Result<Access> theirs = make_access({seed, 2}, geometry, writer.view(), writer);
  const Result<Access> ours = make_access({seed, 2}, geometry, reader.view(), reader);
  const std::uint64_t line = ours->layout.client_heartbeat(0);
  int missed = 0;
  for (std::uint32_t generation = 1; generation < 6; ++generation) {
    write_note(*theirs, {5, generation}, kHash, tokens_from(generation, 40));
    if (is_ordered) writer.order();
    HeartbeatLine heartbeat{};
    heartbeat.beat = generation;
    theirs->region.publish(line, heartbeat);
    heartbeat.beat = 0;
    for (int i = 0; i < 100'000; ++i) {
      if (ours->region.read_as(line, heartbeat) && heartbeat.beat == generation) break;
      if (i % 100 == 99) writer.order();
    }
    EXPECT_EQ(heartbeat.beat, generation);
    std::vector<std::uint32_t> found;
    missed +=
        !read_note(*ours, {5, generation}, kHash, found) || found != tokens_from(generation, 40);
  }
  return missed;
}

TEST(Notes, AHostWithoutCoherenceReadsTheNewestNote) {  // R2 to R4
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    ASSERT_EQ(count_missed_notes(seed, true), 0) << seed;
  }
}

TEST(Notes, WithoutAnOrderSomeAreMissed) {
  int missed = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) missed += count_missed_notes(seed, false);
  EXPECT_GT(missed, 0);
}

}  // namespace
}  // namespace cachalot::pool
