// Bulk transfers: that the right order of steps brings the bytes, whenever they happen, and that each
// step left out is found, whenever they happen.
#include "ptx/bulk.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "ptx/run_text.h"

namespace cachalot::ptx {
namespace {

constexpr Mood kMoods[] = {Mood::kEarly, Mood::kLate, Mood::kRandom};

// 256 bytes from `out` to `out` + 512, through shared memory. A step may be left out, or be another one.
struct Steps {
  std::string init = "mbarrier.init.shared::cta.b64 [barrier], 1;";
  std::string fence = "fence.proxy.async.shared::cta;";
  std::string expect = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], 256;";
  std::string load =
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [stage], [%d9], 256, "
      "[barrier];";
  std::string after_load = "";
  std::string wait =
      "again: mbarrier.try_wait.parity.shared::cta.b64 %p0, [barrier], 0; @!%p0 bra again;";
  std::string before_store = "";
  std::string store = "cp.async.bulk.global.shared::cta.bulk_group [%d9+512], [stage], 256;";
  std::string commit = "cp.async.bulk.commit_group;";
  std::string after_store = "";
  std::string drain = "cp.async.bulk.wait_group 0;";
  std::string end = "";

  std::string text() const {
    return ".shared .align 8 .b64 barrier; .shared .align 128 .b8 stage[256];" + init + fence +
           expect + load + after_load + wait + before_store + store + commit + after_store + drain +
           end;
  }
};

// @return  whether the bytes are there, or what is wrong
std::string outcome(const Steps& steps, Mood mood, std::uint64_t seed) {
  std::vector<std::byte> out(1024);
  for (std::size_t i = 0; i < 512; ++i) out[i] = static_cast<std::byte>(i * 7 + 1);
  try {
    run_text(steps.text(), out, {}, seed, mood);
  } catch (const Violation& violation) {
    return violation.what();
  }
  return std::memcmp(out.data(), out.data() + 512, 256) == 0 ? "copied" : "not copied";
}

void expect_always(const Steps& steps, const std::string& part) {
  for (const Mood mood : kMoods) {
    for (std::uint64_t seed = 1; seed < 20; ++seed) {
      const std::string found = outcome(steps, mood, seed);
      ASSERT_NE(found.find(part), std::string::npos) << found << "\nmood " << static_cast<int>(mood)
                                                     << ", seed " << seed << ": " << steps.text();
    }
  }
}

TEST(PtxBulk, BringsTheBytesWheneverTransfersHappen) {
  expect_always({}, "copied");
  // Bytes may complete before they are announced, while an arrival is pending.
  Steps late;
  std::swap(late.expect, late.load);
  expect_always(late, "copied");
  // Stores that were read need not have arrived when the kernel ends.
  expect_always({.drain = "cp.async.bulk.wait_group.read 0;"}, "copied");
}

TEST(PtxBulk, FindsAStepThatIsLeftOut) {
  expect_always({.init = ""}, "nobody has initialised it");
  expect_always({.fence = ""}, "without a proxy fence");
  expect_always({.fence = "fence.proxy.async.global;"}, "without a proxy fence");
  expect_always({.expect = ""}, "waits for ever");
  expect_always({.wait = ""}, "that a load may still write");
  expect_always({.wait = "mbarrier.try_wait.parity.shared::cta.b64 %p0, [barrier], 1;"},
                "that a load may still write");
  expect_always({.commit = ""}, "may still read its shared memory");
  expect_always({.drain = ""}, "may still read its shared memory");
  expect_always({.drain = "cp.async.bulk.wait_group 1;"}, "may still read its shared memory");
  expect_always({.wait = "", .store = "", .drain = ""}, "nobody has waited for");
}

TEST(PtxBulk, FindsWrongCounts) {
  expect_always({.init = "mbarrier.init.shared::cta.b64 [barrier], 2;"}, "waits for ever");
  expect_always({.init = "mbarrier.init.shared::cta.b64 [barrier], 0;"}, "for 0 arrivals");
  expect_always({.expect = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], 272;"},
                "waits for ever");
  expect_always({.expect = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], 256;"
                           "mbarrier.arrive.shared::cta.b64 _, [barrier];"},
                "more arrivals");
  expect_always({.expect = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], 1048576;"},
                "counts to");
}

TEST(PtxBulk, FindsTransfersThatAreNotAligned) {
  const std::string load = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes ";
  expect_always({.load = load + "[stage], [%d9], 250, [barrier];"}, "no multiple of 16");
  expect_always({.load = load + "[stage+8], [%d9], 64, [barrier];"}, "is not a multiple of 16");
  expect_always({.load = load + "[stage], [%d9+4], 64, [barrier];"}, "is not a multiple of 16");
  expect_always({.load = load + "[stage+128], [%d9], 256, [barrier];"}, "shared memory");
  expect_always({.load = load + "[stage], [%d9], 256, [barrier+4];"}, "is not a multiple of 8");
  expect_always({.load = load + "[stage], [%d9+4096], 256, [barrier];"}, "does not reach");
}

TEST(PtxBulk, FindsAStageThatIsUsedByOthersMeanwhile) {
  const std::string read = "ld.shared.u32 %r0, [stage];", write = "st.shared.u32 [stage], 1;";
  expect_always({.after_load = read}, "which a transfer may still write");
  expect_always({.after_load = write}, "which a transfer may still write");
  expect_always({.before_store = read}, "copied");
  expect_always({.after_store = read}, "copied");
  expect_always({.after_store = write}, "which a transfer may still read");
  expect_always({.drain = "cp.async.bulk.wait_group.read 0;" + write}, "copied");
  expect_always({.before_store = write}, "without a proxy fence");
  expect_always({.before_store = write + "fence.proxy.async.shared::cta;"}, "not copied");
  expect_always({.after_load = "ld.shared.u64 %d0, [barrier];"}, "is a barrier");
}

TEST(PtxBulk, FindsGlobalMemoryThatIsUsedByOthersMeanwhile) {
  expect_always({.after_store = "ld.global.u32 %r0, [%d9+512];"},
                "which a transfer may still write");
  expect_always({.after_store = "st.global.u32 [%d9+512], 1;"}, "which a transfer may still write");
  expect_always({.after_store = "st.global.u32 [%d9+768], 1;"}, "copied");
  expect_always({.end = "ld.global.u32 %r0, [%d9+512];"}, "copied");
  expect_always({.after_load = "st.global.u32 [%d9], 1;"}, "which a transfer may still read");
  expect_always({.fence = "fence.proxy.async.shared::cta; st.global.u32 [%d9], 1;"},
                "without a proxy fence");
  expect_always({.fence = "st.global.u32 [%d9], 1; fence.proxy.async;"}, "copied");
}

TEST(PtxBulk, FindsAStageThatIsLoadedAgainTooEarly) {
  const std::string again =
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], 256;"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [stage], [%d9+256], 256, "
      "[barrier];"
      "twice: mbarrier.try_wait.parity.shared::cta.b64 %p0, [barrier], 1; @!%p0 bra twice;";
  expect_always({.after_store = again}, "that a store may still read");
  expect_always({.after_store = "cp.async.bulk.wait_group.read 1;" + again},
                "that a store may still read");
  expect_always({.after_store = "cp.async.bulk.wait_group.read 0;" + again}, "copied");
  expect_always({.after_load = Steps().load}, "that a load may still write");
}

}  // namespace
}  // namespace cachalot::ptx
