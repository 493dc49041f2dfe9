// Threads of a block: turns, barriers, lanes that meet.
#include "ptx/block.h"

#include <gtest/gtest.h>

#include "ptx/run_text.h"

namespace cachalot::ptx {
namespace {

// Each thread's %r0, in order.
std::vector<std::uint32_t> values_of(const std::string& body, const Shape& shape,
                                     std::uint64_t seed = 1) {
  std::vector<std::byte> out(4 * shape.threads() * shape.blocks());
  run_text(body +
               "mov.u32 %r8, %tid.x; mov.u32 %r7, %ctaid.x; mov.u32 %r6, %ntid.x;"
               "mad.lo.s32 %r8, %r7, %r6, %r8; mul.wide.u32 %d8, %r8, 4; add.s64 %d8, %d8, %d9;"
               "st.global.u32 [%d8], %r0;",
           out, shape, seed);
  std::vector<std::uint32_t> values(out.size() / 4);
  std::memcpy(values.data(), out.data(), out.size());
  return values;
}

TEST(PtxBlock, TellsThreadsWhereTheyAre) {
  Shape shape;
  shape.grid = {3, 1, 1};
  shape.block = {40, 1, 1};
  const auto values = values_of(
      "mov.u32 %r0, %laneid; mov.u32 %r1, %warpid; mad.lo.s32 %r0, %r1, 100, %r0;"
      "mov.u32 %r2, %nctaid.x; mad.lo.s32 %r0, %r2, 1000, %r0;",
      shape);
  EXPECT_EQ(values[0], 3000u);
  EXPECT_EQ(values[2 * 40 + 39], 3107u);
  const char* const cube =
      "mov.u32 %r0, %tid.x; mov.u32 %r1, %tid.y; mad.lo.s32 %r0, %r1, 10, %r0; mov.u32 %r1, %tid.z;"
      "mad.lo.s32 %r0, %r1, 100, %r0; mov.u32 %r2, 0; setp.ne.s32 %p0, %r0, 211; @%p0 ret; "
      "st.global.u32 [%d9], %r0;";
  shape.grid = {1, 1, 1};
  shape.block = {2, 2, 3};
  EXPECT_EQ(result_of<std::uint32_t>(cube, shape), 211u);
}

// Every thread hands its number to the next one by way of shared memory.
const char* const kHandOver =
    ".shared .align 4 .b8 words[256]; mov.u32 %r1, %tid.x; mov.u32 %r5, words; shl.b32 %r2, %r1, 2;"
    "add.s32 %r2, %r2, %r5; st.shared.u32 [%r2], %r1;";
const char* const kTakeOver =
    "add.s32 %r3, %r1, 1; and.b32 %r3, %r3, 63; shl.b32 %r3, %r3, 2; add.s32 %r3, %r3, %r5;"
    "ld.shared.u32 %r0, [%r3];";

TEST(PtxBlock, WaitsAtABarrierForAllThreads) {
  for (std::uint64_t seed = 1; seed < 20; ++seed) {
    const auto values =
        values_of(std::string(kHandOver) + "bar.sync 0;" + kTakeOver, threads(64), seed);
    for (std::uint32_t i = 0; i < 64; ++i) ASSERT_EQ(values[i], (i + 1) % 64);
  }
  expect_complaint("nobody has written", std::string(kHandOver) + kTakeOver, threads(64));
}

TEST(PtxBlock, FindsBarriersThatNotAllReach) {
  const std::string some = "mov.u32 %r0, %tid.x; setp.lt.u32 %p0, %r0, 32;";
  expect_complaint("waits for ever", some + "@%p0 bar.sync 1, 64;", threads(64));
  // Those that have ended are not waited for.
  EXPECT_EQ(complaint_of(some + "@%p0 ret; bar.sync 0;", threads(64)), "");
  expect_complaint("at different places",
                   "mov.u32 %r0, %tid.x; setp.lt.u32 %p0, %r0, 7; @%p0 bra other; bar.sync 0; ret;"
                   "other: bar.sync 0;",
                   threads(32));
  expect_complaint("no whole warps", "bar.sync 0, 20;", threads(32));
}

TEST(PtxBlock, ShufflesWithinAWarp) {
  const auto shuffled = [](const std::string& how) {
    return values_of("mov.u32 %r1, %tid.x; shfl.sync." + how +
                         "; selp.u32 %r2, 100, 0, %p0; add.s32 %r0, %r0, %r2;",
                     threads(64), 3);
  };
  const auto bfly = shuffled("bfly.b32 %r0|%p0, %r1, 16, 31, -1");
  const auto down = shuffled("down.b32 %r0|%p0, %r1, 1, 31, -1");
  const auto up = shuffled("up.b32 %r0|%p0, %r1, 1, 0, -1");
  const auto idx = shuffled("idx.b32 %r0|%p0, %r1, 3, 6175, -1");  // in segments of 8
  for (std::uint32_t i = 0; i < 64; ++i) {
    const std::uint32_t lane = i % 32, warp = i - lane;
    EXPECT_EQ(bfly[i], warp + (lane ^ 16) + 100);
    EXPECT_EQ(down[i], lane == 31 ? i : i + 101);
    EXPECT_EQ(up[i], lane == 0 ? i : i + 99);
    EXPECT_EQ(idx[i], warp + lane / 8 * 8 + 3 + 100);
  }
}

TEST(PtxBlock, VotesAndReduces) {
  const std::string lane = "mov.u32 %r1, %laneid; setp.lt.u32 %p1, %r1, 3;";
  EXPECT_EQ(values_of(lane + "vote.sync.ballot.b32 %r0, %p1, -1;", threads(32))[9], 7u);
  EXPECT_EQ(
      values_of(lane + "vote.sync.any.pred %p0, %p1, -1; selp.u32 %r0, 1, 0, %p0;", threads(32))[9],
      1u);
  EXPECT_EQ(
      values_of(lane + "vote.sync.all.pred %p0, %p1, -1; selp.u32 %r0, 1, 0, %p0;", threads(32))[9],
      0u);
  EXPECT_EQ(values_of(lane + "redux.sync.add.u32 %r0, %r1, -1;", threads(32))[9], 496u);
  EXPECT_EQ(
      values_of(lane + "sub.s32 %r1, 3, %r1; redux.sync.min.s32 %r0, %r1, -1;", threads(32))[9],
      static_cast<std::uint32_t>(-28));
}

TEST(PtxBlock, FindsLanesThatDoNotMeet) {
  const std::string lane = "mov.u32 %r1, %laneid; setp.lt.u32 %p1, %r1, 8;";
  expect_complaint("waits for ever", lane + "@!%p1 bar.warp.sync -1; bar.sync 0;", threads(32));
  expect_complaint("not in its own mask", lane + "bar.warp.sync 255;", threads(32));
  // Whether some come before the others is chance.
  std::string complaints;
  for (std::uint64_t seed = 1; seed < 20; ++seed) {
    complaints +=
        complaint_of(lane + "@%p1 bar.warp.sync -1; @!%p1 bar.warp.sync -256;", threads(32), seed);
  }
  EXPECT_NE(complaints.find("with masks"), std::string::npos);
  expect_complaint("at different instructions",
                   lane + "@%p1 bar.warp.sync -1; @!%p1 vote.sync.any.pred %p0, %p1, -1;",
                   threads(32));
  EXPECT_EQ(complaint_of(lane + "@%p1 bar.warp.sync 255; @!%p1 bar.warp.sync -256;", threads(32)),
            "");
}

TEST(PtxBlock, WaitsForNoLaneThatHasEnded) {
  const std::string lane = "mov.u32 %r1, %laneid; setp.lt.u32 %p1, %r1, 8;";
  EXPECT_EQ(complaint_of(lane + "@%p1 ret; bar.warp.sync -1;", threads(32)), "");
  EXPECT_EQ(complaint_of("bar.warp.sync -1;", threads(20)), "");
  // But nothing is known of its registers.
  const std::string shuffle = "shfl.sync.idx.b32 %r0, %r1, 9, 31, -1;";
  EXPECT_EQ(complaint_of(lane + "@%p1 ret;" + shuffle, threads(32)), "");
  expect_complaint("which is not there", lane + "@!%p1 ret;" + shuffle, threads(32));
  expect_complaint("which is not there", lane + shuffle, threads(9));
}

TEST(PtxBlock, FindsSharedMemoryThatNothingPutsInOrder) {
  const std::string mine =
      ".shared .align 4 .b8 words[256]; mov.u32 %r1, %tid.x; mov.u32 %r5, words; shl.b32 %r2, %r1, "
      "2;"
      "add.s32 %r2, %r2, %r5; st.shared.u32 [%r2], %r1; bar.sync 0;";
  // The next one's word, in the same warp but for the last one, or in the other warp.
  const auto neighbour = [](const std::string& by) {
    return "xor.b32 %r3, %r1, " + by + "; shl.b32 %r3, %r3, 2; add.s32 %r3, %r3, %r5;";
  };
  const std::string read = "ld.shared.u32 %r4, [%r3];", write = "st.shared.u32 [%r3], %r1;";
  const std::string write_mine = "st.shared.u32 [%r2], %r1;";
  // A shuffle moves a register, and puts no memory in order.
  const std::string races[] = {read + write_mine, write_mine + read, write_mine + write,
                               read + "shfl.sync.idx.b32 %r6, %r1, 0, 31, -1;" + write_mine};
  const std::string none[] = {read + read,
                              read + "bar.sync 0;" + write_mine + "bar.sync 0;" + read};
  const std::string count = "atom.shared.add.u32 %r4, [%r3], 1;";
  EXPECT_EQ(complaint_of(mine + neighbour("1") + count + count, threads(64)), "");
  const std::string of_warps = read + "bar.warp.sync -1;" + write_mine;
  for (const char* const by : {"1", "32"}) {
    const std::string begin = mine + neighbour(by);
    // Whatever the order of turns is.
    for (std::uint64_t seed = 1; seed < 30; ++seed) {
      const auto complaint = [&](const std::string& body) {
        return complaint_of(begin + body, threads(64), seed);
      };
      for (const std::string& body : races) {
        ASSERT_NE(complaint(body).find("a race"), std::string::npos) << body;
      }
      for (const std::string& body : none) ASSERT_EQ(complaint(body), "") << body;
      ASSERT_EQ(complaint(of_warps).empty(), std::string(by) == "1");
    }
  }
}

TEST(PtxBlock, FindsALoopWithoutEnd) {
  expect_complaint(
      "waits for ever",
      ".shared .align 8 .b64 barrier; mbarrier.init.shared::cta.b64 [barrier], 1;"
      "again: mbarrier.try_wait.parity.shared::cta.b64 %p0, [barrier], 0; @!%p0 bra again;");
}

}  // namespace
}  // namespace cachalot::ptx
