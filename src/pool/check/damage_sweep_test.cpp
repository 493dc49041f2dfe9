// Damages a small pool in one place at a time: bytes, pages that are lost, pages that are older than the rest.
//
// Whatever is damaged: fsck and the keeper do not crash, no reader gets a wrong byte, fsck names the fault, and after
// a repair the pool is clean, served, and takes blocks. CACHALOT_SWEEP_ALL=1 flips every bit of every byte
// (`make soak-fsck`).

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "pool/check/client_check.h"
#include "pool/check/entry_check.h"
#include "pool/check/keeper_check.h"
#include "pool/check/mend.h"
#include "pool/check/pool_check.h"
#include "pool/format/context_lines.h"
#include "pool/format/notes.h"
#include "pool/reader/published_blocks.h"
#include "testing/pool/test_pool.h"

namespace cachalot::pool {
namespace {

constexpr std::uint32_t kReaderPid = 77;
constexpr std::uint64_t kReigns = 6, kNamesOfReign = 20;
// The last keeper evicts for these, so that pages of its own epoch differ.
constexpr std::uint64_t kFirstLate = kReigns * kNamesOfReign, kLate = 40;
constexpr std::uint64_t kNames = kFirstLate + kLate;
constexpr std::uint32_t kReaderSlot = 2, kWriterSlot = 3;
constexpr std::uint64_t kNewName = 1000;  // of blocks that are stored after a repair

// All clients but the reader have ended.
class AllButReader final : public Evidence {
 public:
  bool has_exited(const ProcessIdentity& process) override { return process.pid != kReaderPid; }
};

Geometry swept_geometry() {
  Geometry g = small_geometry(64, 32);
  g.clients = 5;  // fewer have no room for contexts
  g.note_bytes = 64;
  return g;
}

bool takes_all() {
  return std::getenv("CACHALOT_SWEEP_ALL") != nullptr;
}

using Image = std::vector<std::byte>;

class DamageSweep : public testing::Test {
 protected:
  DamageSweep() : pool_(swept_geometry()) {
    pool_.evidence = &evidence_;
    for (std::uint64_t reign = 0; reign < kReigns; ++reign) {
      pool_.start_keeper();
      ClientOptions options;
      options.fingerprint = reign % 2 == 0 ? "one" : "two";
      options.name = options.fingerprint;
      options.write_checksums = options.verify_checksums = true;
      options.pid = kReaderPid;
      const auto client = pool_.attach(reign % 2, options);
      pool_.put(*client, reign * kNamesOfReign, 12);
      older_.push_back(image());  // of the same epoch as what follows
      pool_.put(*client, reign * kNamesOfReign + 12, 5);
      if (reign + 2 >= kReigns) {
        EXPECT_TRUE(
            client->requests().create_context(hash_of(reign * kNamesOfReign + 2), 1u << 20));
      }
      EXPECT_EQ(pool_.read(*client, reign * kNamesOfReign, 12), 12u);
      add_notes(reign * kNamesOfReign);
      older_.push_back(image());
      if (reign + 1 < kReigns) {
        EXPECT_TRUE(client->detach());
      } else {
        pool_.put(*client, kFirstLate, kLate);
      }
      reign % 2 == 0 ? pool_.kill_keeper() : pool_.stop_keeper();
    }
    now_ = image();
  }
  ~DamageSweep() override {
    std::printf(
        "  damages: %zu, of which fsck named %zu; blocks read: %zu; left after repairs: %zu "
        "faults\n",
        tried_, named_, blocks_read_, left_);
  }

  const Access& access() const { return pool_.access(); }
  const Layout& layout() const { return access().layout; }
  std::byte* base() const { return access().view.bases[0]; }

  Image image() const { return {base(), base() + access().geometry.device_bytes}; }
  void restore() { std::memcpy(base(), now_.data(), now_.size()); }

  void add_notes(std::uint64_t first) {
    const std::vector<std::uint32_t> tokens = {1, 2, 3};
    for (std::uint64_t name = first; name < first + 17; name += 4) {
      const Entry entry = pool_.entry_of(hash_of(name));
      if (entry.state == kEntryLive)
        write_note(access(), {entry.block, entry.generation}, hash_of(name), tokens);
    }
  }

  CheckReport check(FaultLog& log) { return check_pool(access(), 1, log); }

  // Blocks of this namespace that a reader gets; a wrong byte fails the test (read_chain).
  std::vector<std::uint64_t> names_of(const char* fingerprint) {
    std::vector<std::uint64_t> names;
    ClientOptions options;
    options.fingerprint = fingerprint;
    options.verify_checksums = true;
    options.reads_only = true;
    options.pid = kReaderPid;
    Result<std::unique_ptr<Client>> reader = pool_.try_attach(kReaderSlot, options);
    EXPECT_TRUE(reader) << reader.error().message;
    if (!reader) return names;
    for (std::uint64_t name = 0; name < kNames; ++name) {
      if (pool_.read(**reader, name, 1) == 1) names.push_back(name);
    }
    EXPECT_TRUE((*reader)->detach());
    blocks_read_ += names.size();
    return names;
  }
  // @param must_store  blocks can be stored and read; else it may be that none is free
  std::size_t serve(bool must_store) {
    pool_.start_keeper();
    const std::size_t blocks = names_of("one").size() + names_of("two").size();
    if (must_store) store_new_blocks();
    EXPECT_TRUE(pool_.keeper().is_valid());
    pool_.stop_keeper();
    return blocks;
  }
  // As an operator does once all clients of before have ended.
  void store_new_blocks() {
    ClientOptions options;
    options.fingerprint = "new";
    options.write_checksums = options.verify_checksums = true;
    options.pid = kReaderPid;
    Result<std::unique_ptr<Client>> writer = pool_.try_attach(kWriterSlot, options);
    ASSERT_TRUE(writer) << writer.error().message;
    static_cast<void>((*writer)->requests().fence_unknown());  // there may be none
    pool_.put(**writer, kNewName, 3);
    EXPECT_EQ(pool_.read(**writer, kNewName, 3), 3u);
    EXPECT_TRUE((*writer)->detach());
  }

  // A keeper serves, and a reader is attached, when the damage comes.
  void damage_while_served(const std::function<void()>& damage) {
    restore();
    pool_.start_keeper();
    ClientOptions options;
    options.fingerprint = "one";
    options.verify_checksums = true;
    options.reads_only = true;
    options.pid = kReaderPid;
    const auto reader = pool_.attach(kReaderSlot, options);
    damage();
    for (std::uint64_t name = 0; name < kNames; name += 5)
      blocks_read_ += pool_.read(*reader, name, 5);
    pool_.keeper().tend();
    EXPECT_TRUE(pool_.keeper().is_valid());
    pool_.stop_keeper();
  }

  // One damage, from the healthy pool, before a keeper begins, while one serves, and before a repair.
  // @param must_be_seen  fsck must find a fault
  void try_damage(const std::function<void()>& damage, bool must_be_seen) {
    restore();
    damage();
    FaultLog log(4);
    const CheckReport found = check(log);
    named_ += log.faults_in_all() != 0;
    if (must_be_seen) {
      EXPECT_NE(log.faults_in_all(), 0u);
    }
    const std::size_t served = serve(false);
    damage_while_served(damage);
    restore();
    damage();
    KeeperOptions options;
    options.verify_payloads = true;
    pool_.start_keeper(options);
    pool_.stop_keeper();
    mend_lines(access(), [](std::uint32_t) { return true; });
    FaultLog after(4);
    const CheckReport left = check(after);
    left_ += after.faults_in_all() + after.remnants_in_all();
    for (const Fault& fault : after.faults())
      ADD_FAILURE() << "after the repair: " << text_of(fault.kind).name << " " << fault.what;
    // What fsck called lost is gone, and no more.
    EXPECT_EQ(found.figures.blocks.sum(), access().geometry.blocks);
    EXPECT_EQ(left.figures.blocks.sum(), access().geometry.blocks);
    const std::size_t repaired = serve(true);
    EXPECT_EQ(repaired, left.figures.blocks.live);
    EXPECT_GE(served, repaired);
    ++tried_;
  }

  void flip(std::uint64_t offset, unsigned flip, bool must_be_seen = true) {
    SCOPED_TRACE("byte " + std::to_string(offset) + " xor " + std::to_string(flip));
    try_damage([&] { base()[offset] ^= static_cast<std::byte>(flip); }, must_be_seen);
  }
  // A byte in use: one of its bits, or each.
  void flip_byte(std::uint64_t offset, bool must_be_seen = true) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      if (takes_all() || bit == offset % 8) flip(offset, 1u << bit, must_be_seen);
    }
  }
  void flip_line(std::uint64_t offset) {
    if (pool_.domain().read_line(base() + offset) == memory::Line{}) return;
    for (std::uint64_t at = 0; at < memory::kLineBytes; ++at) flip_byte(offset + at);
  }

  // Whether a loss of this page must be seen: in the last keeper's area its line, namespaces and ledger, in other
  // places the directory, pages of clients that were admitted, and payloads.
  bool is_in_use(std::uint64_t page) {
    restore();
    const Predecessor last = find_predecessor(access());
    const auto is_among = [page](std::uint64_t first, std::uint64_t bytes) {
      return page >= first && page < first + bytes;
    };
    const std::uint64_t ledger = layout().ledger_line(last.area, 0);
    if (is_among(layout().keeper_line(last.area), kPageBytes) ||
        page == layout().namespace_line(last.area, 0) || is_among(ledger, kPageBytes) ||
        is_among(layout().directory, access().geometry.directory_slots * memory::kLineBytes)) {
      return true;
    }
    for (std::uint32_t client = 0; client < access().geometry.clients; ++client) {
      if (page == layout().client_line(client) && admitted_incarnation(access(), last, client) != 0)
        return true;
    }
    bool has_payload = false;
    for_each_published(access(), [&](const Entry& entry) {
      const std::uint64_t at = layout().data_offset + entry.block * access().geometry.block_bytes;
      has_payload |= is_among(at / kPageBytes * kPageBytes, kPageBytes);
    });
    return has_payload;
  }

  AllButReader evidence_;
  TestPool pool_;
  std::vector<Image> older_;
  Image now_;
  std::size_t tried_ = 0, named_ = 0, blocks_read_ = 0, left_ = 0;
};

TEST_F(DamageSweep, TheHealthyPoolIsCleanAndServed) {
  restore();
  FaultLog log(10);
  const CheckReport report = check(log);
  for (const Fault& fault : log.faults()) ADD_FAILURE() << fault.what;
  EXPECT_EQ(report.epoch, 6u);
  EXPECT_GT(report.figures.blocks.live, 40u);
  EXPECT_GT(report.figures.notes, 4u);
  EXPECT_EQ(read_contexts(access(), find_predecessor(access()).area, report.epoch).size(), 2u);
  EXPECT_EQ(serve(true), report.figures.blocks.live);
}

TEST_F(DamageSweep, EveryByteOfTheKeepersLines) {
  const std::uint32_t area = find_predecessor(access()).area;
  for (std::uint32_t each = 0; each < kKeeperSlots; ++each) {
    flip_line(layout().keeper_line(each));
    flip_line(layout().keeper_line_copy(each));
  }
  for_each_report_line(access(), area, [&](std::uint64_t at) { flip_line(at); });
  for (std::uint32_t id = 0; id < 2; ++id) {
    flip_line(layout().namespace_line(area, id));
    for (std::uint32_t part = 0; part < kNameLines; ++part)
      flip_line(layout().name_line(area, id, part));
  }
  for (std::uint32_t client = 0; client < access().geometry.clients; ++client)
    flip_line(layout().view_line(area, client));
  for (std::uint32_t index = 0; index < context_room(access()); ++index)
    flip_line(layout().context_line(area, index, access().geometry.clients));
  EXPECT_GT(tried_, 50u);
}

TEST_F(DamageSweep, EveryByteOfTheClientPages) {
  for (std::uint32_t client = 0; client < access().geometry.clients; ++client) {
    flip_line(layout().client_line(client));
    flip_line(layout().client_pins(client));
    for_each_report_line_of_client(access(), client, [&](std::uint64_t at) { flip_line(at); });
  }
  EXPECT_GT(tried_, 50u);
}

TEST_F(DamageSweep, EveryByteOfTheLedger) {
  const std::uint32_t area = find_predecessor(access()).area;
  for (std::uint32_t block = 0; block < access().geometry.blocks; block += kLedgerRecordsPerLine)
    flip_line(layout().ledger_line(area, block));
  EXPECT_GT(tried_, 50u);
}

TEST_F(DamageSweep, EveryByteOfTheDirectory) {
  for (std::uint32_t slot = 0; slot < access().geometry.directory_slots; ++slot)
    flip_line(layout().entry(slot));
  EXPECT_GT(tried_, 500u);
}

// By fsck, and by readers, for which the line's block is a miss.
TEST_F(DamageSweep, EveryBitOfTheDirectoryIsSeenWhileAKeeperServes) {
  restore();
  pool_.start_keeper();
  std::vector<std::unique_ptr<Client>> readers;
  for (const char* const fingerprint : {"one", "two"}) {
    ClientOptions options;
    options.fingerprint = fingerprint;
    options.verify_checksums = options.reads_only = true;
    options.pid = kReaderPid;
    readers.push_back(
        pool_.attach(kReaderSlot + static_cast<std::uint32_t>(readers.size()), options));
  }
  const Predecessor keeper = find_predecessor(access());
  FaultLog healthy(1);
  const std::vector<bool> is_known = check_keeper_area(access(), keeper, healthy);
  std::vector<std::uint64_t> name_in(access().geometry.directory_slots, kNames);
  for (std::uint64_t name = 0; name < kNames; ++name) {
    const std::uint32_t slot = pool_.slot_of(hash_of(name));
    if (slot != DirectoryWriter::kNoSlot) name_in[slot] = name;
  }
  for (std::uint32_t slot = 0; slot < access().geometry.directory_slots; ++slot) {
    for (unsigned bit = 0; bit < 8 * memory::kLineBytes && !HasFailure(); ++bit) {
      SCOPED_TRACE("slot " + std::to_string(slot) + ", bit " + std::to_string(bit));
      std::byte& byte = base()[layout().entry(slot) + bit / 8];
      byte ^= static_cast<std::byte>(1u << bit % 8);
      FaultLog log(1);
      EntryCheck(access(), keeper, is_known, log).run(0);
      EXPECT_EQ(log.count(FaultKind::kEntryLine), 1u);
      ++named_;
      const std::uint64_t name = name_in[slot] == kNames ? bit % kNames : name_in[slot];
      for (const auto& reader : readers) {
        const std::size_t read = pool_.read(*reader, name, 1);
        blocks_read_ += read;
        EXPECT_TRUE(read == 0 || name_in[slot] == kNames);
      }
      byte ^= static_cast<std::byte>(1u << bit % 8);
      ++tried_;
    }
  }
  readers.clear();
  pool_.stop_keeper();
}

// Blank lines, mailboxes and doorbells, too: seen or not, no harm is done.
TEST_F(DamageSweep, AByteOfEveryLineBeforeThePayloads) {
  const std::uint64_t lines = layout().data_offset / memory::kLineBytes;
  for (std::uint64_t line = kPageBytes / memory::kLineBytes; line < lines;
       line += takes_all() ? 1 : 61) {
    flip(line * memory::kLineBytes + line % memory::kLineBytes, 1u << line / 64 % 8, false);
  }
  EXPECT_GT(tried_, 50u);
}

// Of a note's head the checksum covers all; a wrong hash or generation makes it one of another use, which is no fault.
TEST_F(DamageSweep, EveryByteOfTheNotes) {
  for (std::uint32_t slot = 0; slot < access().geometry.directory_slots; ++slot) {
    restore();
    const auto entry = pool_.line_at<Entry>(layout().entry(slot));
    const BlockUse use{entry.block, entry.generation};
    if (entry.state != kEntryLive || !note_names(access(), use, {entry.hash_low, entry.hash_high}))
      continue;
    for (std::uint64_t at = 0; at < memory::kLineBytes; ++at) {
      const bool says_whose = at >= offsetof(NoteHead, hash_low) && at < offsetof(NoteHead, tokens);
      flip_byte(note_offset(access(), entry.block) + at, !says_whose);
    }
  }
  EXPECT_GT(tried_, 20u);
}

TEST_F(DamageSweep, Every61stByteOfThePayloads) {
  std::uint64_t at = 0;
  for (std::uint32_t slot = 0; slot < access().geometry.directory_slots; ++slot) {
    restore();
    const auto entry = pool_.line_at<Entry>(layout().entry(slot));
    if (entry.state != kEntryLive) continue;
    const std::uint64_t bytes = padded_bytes(entry.length);
    for (; at < bytes; at += 61) {
      flip(layout().data_offset + entry.block * access().geometry.block_bytes + at, 0x80);
    }
    at -= bytes;
  }
  EXPECT_GT(tried_, 50u);
}

// A lost page is seen where something of it was in use. An older one is seen only if it contradicts the rest.
TEST_F(DamageSweep, EveryPageLostOrOlder) {
  const std::uint64_t end = layout().data_offset +
                            std::uint64_t{access().geometry.blocks} * access().geometry.block_bytes;
  for (std::uint64_t page = kPageBytes; page < end; page += kPageBytes) {
    std::vector<Image> contents = {Image(kPageBytes)};
    for (const Image& older : older_)
      contents.emplace_back(older.begin() + page, older.begin() + page + kPageBytes);
    for (std::size_t i = 0; i < contents.size(); ++i) {
      SCOPED_TRACE("page at " + std::to_string(page) + ", content " + std::to_string(i));
      if (std::memcmp(contents[i].data(), now_.data() + page, kPageBytes) == 0) continue;
      try_damage([&] { std::memcpy(base() + page, contents[i].data(), kPageBytes); },
                 i == 0 && is_in_use(page));
    }
  }
  EXPECT_GT(tried_, 50u);
}

}  // namespace
}  // namespace cachalot::pool
