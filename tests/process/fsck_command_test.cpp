// `cachalot pool fsck`: what it says of healthy and damaged pools, and what a repair leaves.
#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "os/file_descriptor.h"
#include "pool/pool.h"
#include "program.h"

namespace cachalot::process_test {
namespace {

class FsckCommand : public ProcessTest {
 protected:
  // A pool with a chain of three blocks, stopped in order.
  std::string make_pool() {
    const std::string pool = create_pool("kv", {"--domain", "noncoherent"});
    Serving keeper({"serve", pool});
    EXPECT_TRUE(keeper.is_ready());
    expect_done(run({"put", "a", "--pool", pool}, {.in = noise(4096, 1)}));
    expect_done(run({"put", "b", "--pool", pool, "--parent", "a"}, {.in = noise(4096, 2)}));
    expect_done(run({"put", "c", "--pool", pool, "--parent", "b"}, {.in = noise(4096, 3)}));
    expect_done(run({"stop", pool}));
    return pool;
  }
  static void flip(const std::string& file, std::uint64_t offset) {
    const os::FileDescriptor fd(open(file.c_str(), O_RDWR));
    unsigned char byte = 0;
    ASSERT_EQ(pread(fd.get(), &byte, 1, static_cast<off_t>(offset)), 1);
    byte ^= 0x10;
    ASSERT_EQ(pwrite(fd.get(), &byte, 1, static_cast<off_t>(offset)), 1);
  }
  // The directory entry of the block with these bytes.
  static std::uint64_t entry_offset(const std::string& file, std::uint32_t which_block_has_parent) {
    const Result<pool::Pool> pool = pool::Pool::open({file});
    EXPECT_TRUE(pool);
    const pool::Access& access = pool->access();
    for (std::uint32_t slot = 0; slot < access.geometry.directory_slots; ++slot) {
      pool::Entry entry{};
      if (access.region.read_as(access.layout.entry(slot), entry) &&
          entry.state == pool::kEntryLive &&
          (entry.parent != pool::kNoBlock) == (which_block_has_parent != 0)) {
        return access.layout.entry(slot);
      }
    }
    return 0;
  }
};

TEST_F(FsckCommand, AHealthyPoolIsClean) {
  const std::string pool = make_pool();
  const Outcome checked = run({"pool", "fsck", pool});
  expect_done(checked);
  EXPECT_NE(checked.out.find("clean"), std::string::npos) << checked.out;
  EXPECT_NE(checked.out.find("3 verified"), std::string::npos) << checked.out;
  const nlohmann::json json = run({"pool", "fsck", pool, "--json", "-"}).json();
  EXPECT_EQ(json["clean"], true);
  EXPECT_EQ(json["whole"], true);
  EXPECT_EQ(json["keeper"], "none");
  EXPECT_EQ(json["accounting"]["live_blocks"], 3);
  EXPECT_EQ(json["payloads"]["verified"], 3);
  EXPECT_EQ(json["payloads"]["bytes"], 3 * 4096);
  const nlohmann::json quick = run({"pool", "fsck", pool, "--no-payloads", "--json", "-"}).json();
  EXPECT_EQ(quick["payloads"]["verified"], 0);
}

TEST_F(FsckCommand, ADamagedEntryIsNamedAndRepaired) {
  const std::string pool = make_pool();
  const std::uint64_t root = entry_offset(pool, 0);
  ASSERT_NE(root, 0u);
  flip(pool, root + 20);
  const Outcome checked = run({"pool", "fsck", pool});
  EXPECT_EQ(checked.exit_code, 1);
  EXPECT_EQ(checked.err, "");
  EXPECT_NE(checked.out.find("fault entry_line: " + pool + " offset " + std::to_string(root)),
            std::string::npos)
      << checked.out;
  const Outcome repaired = run({"pool", "fsck", pool, "--repair", "--json", "-"});
  expect_done(repaired);
  EXPECT_EQ(repaired.json()["clean"], false);
  EXPECT_EQ(repaired.json()["repaired"]["clean"], true);
  EXPECT_EQ(repaired.json()["repaired"]["accounting"]["live_blocks"], 0);
  expect_done(run({"pool", "fsck", pool}));
  Serving keeper({"serve", pool});
  ASSERT_TRUE(keeper.is_ready());
  EXPECT_EQ(run({"get", "a", "--pool", pool}).exit_code, 1);
  expect_done(run({"put", "a", "--pool", pool}, {.in = noise(4096, 1)}));
  EXPECT_EQ(run({"get", "a", "--pool", pool}).out, noise(4096, 1));
}

TEST_F(FsckCommand, ADamagedPayloadIsNamedAndDropped) {
  const std::string pool = make_pool();
  {
    const Result<pool::Pool> opened = pool::Pool::open({pool});
    ASSERT_TRUE(opened);
    pool::Entry entry{};
    ASSERT_TRUE(opened->access().region.read_as(entry_offset(pool, 1), entry));
    flip(pool, opened->access().layout.data_offset + entry.block * 4096 + 77);
  }
  const nlohmann::json checked = run({"pool", "fsck", pool, "--json", "-"}).json();
  EXPECT_EQ(checked["counts"], (nlohmann::json{{"payload", 1}}));
  EXPECT_TRUE(checked["faults"][0]["block"].is_number());
  expect_done(run({"pool", "fsck", pool, "--no-payloads"}));
  expect_done(run({"pool", "fsck", pool, "--repair"}));
  expect_done(run({"pool", "fsck", pool}));
}

TEST_F(FsckCommand, AHeaderIsMended) {
  const std::string pool = make_pool();
  flip(pool, 20);
  expect_error(run({"pool", "info", pool}), 1, {pool, "header is damaged"});
  EXPECT_EQ(run({"pool", "fsck", pool}).exit_code, 1);
  expect_done(run({"pool", "fsck", pool, "--repair"}));
  expect_done(run({"pool", "info", pool}));
}

TEST_F(FsckCommand, MessagesOfOneKindAreLimited) {
  const std::string pool = make_pool();
  for (std::uint64_t slot = 0; slot < 20; ++slot) {
    const Result<pool::Pool> opened = pool::Pool::open({pool});
    ASSERT_TRUE(opened);
    flip(pool, opened->access().layout.entry(static_cast<std::uint32_t>(slot)) + 9);
  }
  const Outcome checked = run({"pool", "fsck", pool, "--messages", "3", "--json", "-"});
  EXPECT_EQ(checked.exit_code, 1);
  EXPECT_EQ(checked.json()["counts"]["entry_line"], 20);
  EXPECT_NE(checked.err.find("and 17 more of entry_line"), std::string::npos) << checked.err;
}

TEST_F(FsckCommand, AServedPoolIsReadOnly) {
  const std::string pool = make_pool();
  Serving keeper({"serve", pool});
  ASSERT_TRUE(keeper.is_ready());
  const Outcome checked = run({"pool", "fsck", pool, "--json", "-"});
  expect_done(checked);
  EXPECT_EQ(checked.json()["keeper"], "serving");
  expect_error(run({"pool", "fsck", pool, "--repair"}), 3,
               {pool, "a keeper serves", "cachalot stop"});
}

TEST_F(FsckCommand, WhatIsNoPoolIsRefused) {
  expect_error(run({"pool", "fsck", path("absent")}), 2, {path("absent")});
  const std::string other = write("other", std::string(4 << 20, 'x'));
  expect_error(run({"pool", "fsck", other}), 2, {other, "not a pool"});
  expect_error(run({"pool", "fsck", other, "--messages", "many"}), 2, {"--messages"});
}

}  // namespace
}  // namespace cachalot::process_test
