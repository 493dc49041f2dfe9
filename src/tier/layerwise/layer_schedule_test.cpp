#include "tier/layerwise/layer_schedule.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>

#include "tier/layerwise/resident_layers.h"

namespace cachalot::tier::layerwise {
namespace {

using Kind = LayerSchedule::Kind;

constexpr auto kAll = [](std::uint64_t) { return true; };

// All works there are now, as "L3" and "O2".
std::string works(LayerSchedule& schedule) {
  std::string out;
  for (;;) {
    const LayerSchedule::Work work = schedule.next();
    if (work.kind == Kind::kNone) return out;
    if (!out.empty()) out += ' ';
    out += (work.kind == Kind::kLoad ? 'L' : 'O') + std::to_string(work.layer);
    schedule.done(work);
    EXPECT_TRUE(schedule.is_valid());
  }
}

std::string step(LayerSchedule& schedule) {
  std::string out;
  for (std::uint64_t layer = 0; layer < schedule.layers(); ++layer) {
    out += works(schedule) + " | ";
    schedule.acquire(layer);
    out += works(schedule) + " || ";
    schedule.release(layer);
  }
  return out + works(schedule);
}

TEST(LayerSchedule, LoadsOneLayerAheadAndTheFirstOnesForTheNextStep) {
  LayerSchedule schedule(5, 0);
  schedule.begin(kAll);
  // Before each acquire() | while the layer is in use || after its release.
  EXPECT_EQ(step(schedule), "L0 L1 |  || O0 L2 |  || O1 L3 |  || O2 L4 |  || O3 L0 |  || O4 L1");
  EXPECT_EQ(schedule.on_device(), 2u);
}

TEST(LayerSchedule, NeverOffloadsAResidentLayer) {
  LayerSchedule schedule(6, 3);
  schedule.begin(kAll);
  EXPECT_EQ(step(schedule),
            "L0 L1 L2 L3 L5 |  || O0 L4 |  ||  |  || O2 L0 |  ||  |  || O4 L2 |  || ");
  EXPECT_EQ(schedule.on_device(), 5u);
  schedule.begin([](std::uint64_t layer) { return layer == 4; });
  EXPECT_EQ(works(schedule), "");  // 0 and 2 take both places
}

TEST(LayerSchedule, KeepsAllLayersIfTheOthersFitIntoTheStagingPlaces) {
  LayerSchedule schedule(4, 2);
  schedule.begin(kAll);
  EXPECT_EQ(step(schedule), "L0 L1 L2 L3 |  ||  |  ||  |  ||  |  || ");
  schedule.begin([](std::uint64_t) { return false; });
  EXPECT_EQ(step(schedule), " |  ||  |  ||  |  ||  |  || ");
}

TEST(LayerSchedule, OffloadsWhatIsNoLongerResident) {
  LayerSchedule schedule(6, 6);
  schedule.begin(kAll);
  step(schedule);
  schedule.set_resident(2);
  EXPECT_EQ(schedule.most_on_device(), 6u);
  EXPECT_EQ(works(schedule), "O0 O1 O3 L0 O4 L1");
  EXPECT_EQ(schedule.on_device(), schedule.most_on_device());
  EXPECT_EQ(schedule.most_on_device(), 4u);
}

TEST(LayerSchedule, OnlyOffloadsAfterALoadFailed) {
  LayerSchedule schedule(4, 0);
  schedule.begin(kAll);
  works(schedule);
  schedule.acquire(0);
  schedule.release(0);
  EXPECT_EQ(schedule.next(false).kind, Kind::kOffload);
  schedule.done({.kind = Kind::kOffload, .layer = 0});
  EXPECT_EQ(schedule.next(false).kind, Kind::kNone);
  EXPECT_EQ(schedule.next().layer, 2u);
}

// The computation, the thread and changes of the number in any order. A layer that is acquired was loaded after it was
// last offloaded, and neither side waits for ever.
RC_GTEST_PROP(LayerSchedule, NeverStopsAndKeepsItsBound, ()) {
  const auto layers = *rc::gen::inRange<std::uint64_t>(1, 13);
  LayerSchedule schedule(layers, *rc::gen::inRange<std::uint64_t>(0, layers + 1));
  std::vector<bool> is_loaded(layers, false);
  LayerSchedule::Work working;
  const auto lacks = [&](std::uint64_t layer) { return !is_loaded[layer]; };
  const auto start = [&] {
    working = schedule.next();
    if (working.kind == Kind::kOffload) is_loaded[working.layer] = false;
    return working.kind != Kind::kNone;
  };
  const auto finish = [&] {
    if (working.kind == Kind::kLoad) is_loaded[working.layer] = true;
    schedule.done(working);
    working = {};
  };
  for (const int choice : *rc::gen::container<std::vector<int>>(200, rc::gen::inRange(0, 20))) {
    const bool is_idle = working.kind == Kind::kNone;
    if (choice < 8) {  // the computation goes on; if it cannot, the thread has something to do
      if (!schedule.is_in_step()) {
        schedule.begin(lacks);
      } else if (schedule.is_in_use()) {
        schedule.release(schedule.position());
      } else if (schedule.is_ready(schedule.position())) {
        RC_ASSERT(is_loaded[schedule.position()]);
        schedule.acquire(schedule.position());
      } else if (is_idle) {
        RC_ASSERT(start());
      }
    } else if (choice < 18) {
      if (is_idle) {
        start();
      } else {
        finish();
      }
    } else if (is_idle && choice == 18 && !schedule.is_in_step()) {
      schedule.set_resident(*rc::gen::inRange<std::uint64_t>(0, layers + 1));
    } else if (is_idle && choice == 19 && schedule.is_in_step()) {
      schedule.cancel();
    }
    RC_ASSERT(schedule.is_valid());
    RC_ASSERT(schedule.on_device() <= schedule.most_on_device());
  }
  // A step from here ends.
  if (working.kind != Kind::kNone) finish();
  if (!schedule.is_in_step()) schedule.begin(lacks);
  for (int i = 0; schedule.is_in_step(); ++i) {
    RC_ASSERT(i < 1000);
    if (schedule.is_in_use()) {
      schedule.release(schedule.position());
    } else if (schedule.is_ready(schedule.position())) {
      schedule.acquire(schedule.position());
    } else {
      RC_ASSERT(start());
      finish();
    }
  }
  while (start()) finish();
  RC_ASSERT(schedule.most_on_device() == most_on_device(layers, schedule.resident()));
}

}  // namespace
}  // namespace cachalot::tier::layerwise
