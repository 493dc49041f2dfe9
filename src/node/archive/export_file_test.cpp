// Namespaces are carried from pool to pool by a file, whole or not at all, and no damaged byte of it gets into a pool.

#include "node/archive/export_file.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "pool/check/pool_check.h"
#include "pool/format/notes.h"
#include "pool/pool.h"
#include "testing/os/shm_folder.h"
#include "testing/pool/chains.h"

namespace cachalot::node {
namespace {

using pool::hash_of;

// A pool with a keeper in a thread.
class Served {
 public:
  Served(std::uint32_t capacity, std::uint64_t block_bytes, memory::DomainKind domain,
         std::uint32_t note_bytes = 128) {
    pool::CreateOptions options;
    options.paths = {"memfd:export"};
    pool::Geometry& g = options.geometry;
    g.domain = domain;
    g.block_bytes = block_bytes;
    g.capacity_blocks = capacity;
    g.blocks = capacity + 64;
    g.directory_slots = pool::rated_directory_slots(capacity);
    g.clients = 4;
    g.note_bytes = note_bytes;
    options.huge_pages = options.populate = false;
    Result<pool::Pool> made = pool::Pool::create(options);
    EXPECT_TRUE(made) << made.error().message;
    pool_.emplace(*std::move(made));
    std::atomic<bool> is_ready{false};
    keeper_ = std::thread([this, &is_ready] {
      Result<pool::PoolKeeper> keeper = pool_->serve({});
      ASSERT_TRUE(keeper) << keeper.error().message;
      is_ready = true;
      (void)keeper->run(stop_);
    });
    while (!is_ready) std::this_thread::yield();
  }
  ~Served() {
    stop_ = true;
    keeper_.join();
  }

  pool::PoolClient attach(const char* space = "one", std::optional<BlockHash> digest = {}) {
    pool::ClientOptions options;
    options.fingerprint = options.name = space;
    options.namespace_digest = digest;
    options.write_checksums = options.verify_checksums = true;
    Result<pool::PoolClient> client = pool_->attach(options);
    EXPECT_TRUE(client) << client.error().message;
    return *std::move(client);
  }
  void put(std::uint64_t first, std::size_t n, const char* space = "one",
           const BlockHash* parent = nullptr) {
    pool::PoolClient client = attach(space);
    for (const pool::Verdict verdict :
         pool::put_chain(client.client(), access().geometry.block_bytes, first, n, parent))
      EXPECT_EQ(verdict, pool::Verdict::kCommitted);
  }
  // Reads a block that came from a pool with blocks of `from_bytes`.
  std::size_t read(std::uint64_t first, std::size_t n, std::uint64_t from_bytes) {
    return pool::read_chain(attach().client(), from_bytes, first, n);
  }
  std::vector<pool::NamespaceName> namespaces() { return pool_->state().read_namespaces(); }
  const pool::Access& access() const { return pool_->access(); }
  bool is_clean() const {
    pool::FaultLog log(10);
    pool::check_served_pool(access(), 1, log);
    return log.faults_in_all() + log.remnants_in_all() == 0;
  }
  ExportReport export_to(const std::string& file) {
    const pool::NamespaceName one = namespaces()[0];
    const Result<ExportReport> report =
        export_namespace(access(), {one.id, one.digest, one.name}, file);
    EXPECT_TRUE(report) << report.error().message;
    return *report;
  }
  Result<ImportReport> import_from(const std::string& file, std::uint64_t room = 1000) {
    CACHALOT_TRY_ASSIGN(ImportFile opened, ImportFile::open(file));
    pool::PoolClient client = attach(opened.name().c_str(), opened.digest());
    return opened.store(client.client(), room);
  }

 private:
  std::optional<pool::Pool> pool_;
  std::atomic<bool> stop_{false};
  std::thread keeper_;
};

class ExportFileTest : public os::ShmFolder,
                       public testing::WithParamInterface<memory::DomainKind> {
 protected:
  static std::string content(const std::string& file) {
    std::ostringstream out;
    out << std::ifstream(file, std::ios::binary).rdbuf();
    return out.str();
  }
};

TEST_P(ExportFileTest, CarriesBlocksParentsAndNotes) {
  Served from(64, 512, GetParam());
  from.put(1, 6);
  const BlockHash third = hash_of(3);
  from.put(11, 4, "one", &third);
  from.put(900, 3, "two");
  {  // a note
    pool::KeeperView view;
    pool::Found found;
    ASSERT_EQ(pool::DirectoryReader(from.access()).lookup({&third, 1}, 1, view, {&found, 1}), 1u);
    const std::vector<std::uint32_t> tokens = {4, 5, 6};
    pool::write_note(from.access(), {found.entry.block, found.entry.generation}, third, tokens);
  }
  const ExportReport exported = from.export_to(path("blocks"));
  EXPECT_EQ(exported.blocks, 10u);
  EXPECT_EQ(exported.notes, 1u);
  EXPECT_EQ(exported.skipped, 0u);

  // Larger blocks, another number of them, the other domain.
  Served to(40, 1024,
            GetParam() == memory::DomainKind::kCoherent ? memory::DomainKind::kNoncoherent
                                                        : memory::DomainKind::kCoherent);
  const Result<ImportReport> imported = to.import_from(path("blocks"));
  ASSERT_TRUE(imported) << imported.error().message;
  EXPECT_EQ(imported->blocks, 10u);
  EXPECT_EQ(imported->bytes, exported.bytes);
  EXPECT_EQ(imported->notes, 1u);
  EXPECT_EQ(imported->did_not_fit, 0u);
  EXPECT_EQ(to.namespaces()[0].name, "one");
  EXPECT_EQ(to.namespaces()[0].digest, from.namespaces()[0].digest);
  EXPECT_EQ(to.read(1, 6, 512), 6u);
  EXPECT_EQ(to.read(11, 4, 512), 4u);
  EXPECT_TRUE(to.is_clean());
  // Once more: all is there, and the same file comes out.
  const Result<ImportReport> again = to.import_from(path("blocks"));
  ASSERT_TRUE(again);
  EXPECT_EQ(again->there, 10u);
  EXPECT_EQ(to.export_to(path("again")).blocks, 10u);
}

TEST_P(ExportFileTest, WhatDoesNotFitIsCountedAndParentsComeFirst) {
  Served from(64, 512, GetParam());
  for (std::uint64_t chain = 0; chain < 5; ++chain) from.put(1 + chain * 10, 8);
  ASSERT_EQ(from.export_to(path("blocks")).blocks, 40u);
  Served to(64, 512, GetParam());
  const Result<ImportReport> imported = to.import_from(path("blocks"), 12);
  ASSERT_TRUE(imported) << imported.error().message;
  EXPECT_EQ(imported->blocks, 12u);
  EXPECT_EQ(imported->did_not_fit, 28u);
  std::size_t found = 0;
  for (std::uint64_t chain = 0; chain < 5; ++chain) {
    const std::size_t of_chain = to.read(1 + chain * 10, 8, 512);
    EXPECT_GE(of_chain, 2u);
    EXPECT_LE(of_chain, 3u);
    found += of_chain;
  }
  EXPECT_EQ(found, 12u);
  EXPECT_TRUE(to.is_clean());
  // Smaller blocks: what is longer stays out, with what continues it.
  Served small(64, 256, GetParam());
  const Result<ImportReport> into_small = small.import_from(path("blocks"));
  ASSERT_TRUE(into_small);
  EXPECT_GT(into_small->did_not_fit, 0u);
  EXPECT_EQ(into_small->blocks + into_small->did_not_fit, 40u);
  EXPECT_TRUE(small.is_clean());
}

TEST_P(ExportFileTest, NoByteMayBeWrongAndNoneMayBeMissing) {
  Served from(64, 512, GetParam());
  from.put(1, 3);
  from.export_to(path("blocks"));
  const std::string whole = content(path("blocks"));
  for (std::size_t at = 0; at < whole.size(); at += 7) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x20);
    std::ofstream(path("damaged"), std::ios::binary) << damaged;
    Served to(64, 512, GetParam());
    EXPECT_FALSE(to.import_from(path("damaged"))) << "byte " << at;
    const std::size_t came = to.read(1, 3, 512);  // and checks their bytes
    EXPECT_LE(came, 3u);
  }
  for (std::size_t bytes = 0; bytes < whole.size(); bytes += 97) {
    std::ofstream(path("short"), std::ios::binary) << whole.substr(0, bytes);
    Served to(64, 512, GetParam());
    EXPECT_FALSE(to.import_from(path("short"))) << bytes << " bytes";
  }
}

TEST_P(ExportFileTest, ABlockWithWrongBytesIsLeftOutWithWhatContinuesIt) {
  Served from(64, 512, GetParam());
  from.put(1, 5);
  pool::KeeperView view;
  pool::Found found;
  const BlockHash third = hash_of(3);
  ASSERT_EQ(pool::DirectoryReader(from.access()).lookup({&third, 1}, 1, view, {&found, 1}), 1u);
  from.access().for_each_extent(found.entry.block, 64,
                                [](std::byte* at, std::uint64_t) { at[9] ^= std::byte{2}; });
  const ExportReport report = from.export_to(path("blocks"));
  EXPECT_EQ(report.blocks, 2u);
  EXPECT_EQ(report.skipped, 3u);
}

TEST_P(ExportFileTest, AFileThatCannotBeWrittenIsNotThere) {
  Served from(64, 512, GetParam());
  from.put(1, 2);
  const pool::NamespaceName one = from.namespaces()[0];
  EXPECT_FALSE(
      export_namespace(from.access(), {one.id, one.digest, one.name}, path("absent/blocks")));
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

INSTANTIATE_TEST_SUITE_P(Domains, ExportFileTest,
                         testing::Values(memory::DomainKind::kCoherent,
                                         memory::DomainKind::kNoncoherent),
                         [](const auto& domain) { return memory::domain_name(domain.param); });

}  // namespace
}  // namespace cachalot::node
