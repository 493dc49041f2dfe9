// Cases I of SGLang's host pool (facts of HiCache §3.2): slots are whole pages here, so nothing is unaligned.
#include "tier/controller/slot_pool.h"

#include <gtest/gtest.h>

namespace cachalot::tier {
namespace {

using Slots = std::vector<Slot>;

TEST(SlotPool, SlotsThatWereGivenBackComeAgain) {
  SlotPool pool("L2", 8);
  Slots slots;
  ASSERT_TRUE(pool.take(6, slots));
  EXPECT_EQ(slots, (Slots{0, 1, 2, 3, 4, 5}));
  ASSERT_TRUE(pool.give(Slots{0, 1}));
  Slots more;
  ASSERT_TRUE(pool.take(2, more));
  EXPECT_EQ(more, (Slots{0, 1}));
  EXPECT_FALSE(pool.take(3, more));  // two are free, none is taken
  EXPECT_EQ(pool.free_slots(), 2u);
  pool.clear();
  EXPECT_EQ(pool.free_slots(), 8u);
}

TEST(SlotPool, ASlotThatIsNotTakenIsNamedAndNothingIsGivenBack) {
  SlotPool pool("L2", 8);
  Slots slots;
  ASSERT_TRUE(pool.take(3, slots));
  ASSERT_TRUE(pool.give(Slots{1}));
  const auto expect_refused = [&](const Slots& given, const char* named) {
    const Status status = pool.give(given);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Code::kInvalidArgument);
    EXPECT_NE(std::string(status.error().message).find(named), std::string::npos)
        << status.error().message;
    EXPECT_EQ(pool.free_slots(), 6u);
  };
  expect_refused({0, 1}, "slot 1");  // given back before
  expect_refused({0, 0}, "slot 0");  // twice in one call
  expect_refused({5}, "slot 5");     // never taken
  expect_refused({8}, "not exist");
  pool.clear();
  EXPECT_FALSE(pool.give(Slots{0}));  // after clear()
}

}  // namespace
}  // namespace cachalot::tier
