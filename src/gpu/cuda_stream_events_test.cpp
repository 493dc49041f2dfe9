// Events and contexts, on an emulated GPU.
#include "gpu/cuda_stream_events.h"

#include <gtest/gtest.h>

#include "gpu/device_scope.h"
#include "testing/gpu/fake_gpu.h"

namespace cachalot::gpu {
namespace {

class CudaStreamEventsTest : public testing::Test {
 protected:
  CudaStreamEventsTest() { driver_.primary_context_retain(&context_, 1); }

  FakeMachine machine_;
  const Driver driver_ = machine_.driver();
  Context context_ = nullptr;
};

TEST_F(CudaStreamEventsTest, AnEventIsDoneWhenWhatItsStreamHadIsDone) {
  const DeviceScope scope(driver_, context_);
  CudaStreamEvents events(driver_);
  machine_.begin(7);
  const auto busy = *events.record(7), idle = *events.record(8);
  EXPECT_FALSE(events.is_done(busy));
  EXPECT_TRUE(events.is_done(idle));
  machine_.finish(7);
  machine_.begin(7);  // comes after the event
  EXPECT_TRUE(events.is_done(busy));
  const auto later = *events.record(7);
  EXPECT_TRUE(events.wait(later));
  EXPECT_EQ(machine_.waits, 1);
}

TEST_F(CudaStreamEventsTest, DroppedEventsAreUsedAgainAndAllAreDestroyed) {
  const DeviceScope scope(driver_, context_);
  {
    CudaStreamEvents events(driver_);
    for (int i = 0; i < 10; ++i) {
      machine_.begin(i);
      events.drop(*events.record(i));
    }
    EXPECT_EQ(events.events(), 1u);
    EXPECT_EQ(machine_.events(), 1u);
  }
  EXPECT_EQ(machine_.events(), 0u);
}

TEST_F(CudaStreamEventsTest, NothingIsRecordedOnAStreamThatIsCaptured) {
  const DeviceScope scope(driver_, context_);
  CudaStreamEvents events(driver_);
  machine_.set_capturing(7, true);
  const auto event = *events.record(7), legacy = *events.record(0);
  EXPECT_FALSE(events.is_done(event));
  EXPECT_FALSE(events.is_done(legacy));
  const Status waited = events.wait(event);
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.error().code, Code::kBusy);
  machine_.set_capturing(7, false);
  machine_.begin(7);
  EXPECT_FALSE(events.is_done(event));  // recorded now
  EXPECT_TRUE(events.is_done(legacy));
  machine_.finish(7);
  EXPECT_TRUE(events.is_done(event));
  EXPECT_EQ(machine_.recorded_in_capture, 0u);
}

TEST_F(CudaStreamEventsTest, OfADestroyedStreamTheWholeDeviceIsWaitedFor) {
  const DeviceScope scope(driver_, context_);
  CudaStreamEvents events(driver_);
  for (const bool is_recorded : {false, true}) {
    const StreamId stream = is_recorded ? 8 : 7;
    machine_.begin(stream);
    if (is_recorded) events.drop(*events.record(stream));
    machine_.destroy(stream);
    EXPECT_FALSE(machine_.is_idle(stream));
    const auto event = events.record(stream);
    ASSERT_TRUE(event) << event.error().message;
    EXPECT_TRUE(machine_.is_idle(stream));
    EXPECT_TRUE(events.is_done(*event));
    EXPECT_TRUE(events.wait(*event));
  }
  // The place is used again for a stream that is there.
  events.drop(*events.record(7));
  machine_.begin(9);
  EXPECT_FALSE(events.is_done(*events.record(9)));
}

TEST_F(CudaStreamEventsTest, ADestroyedStreamIsKnownByWhateverDriversAnswer) {
  const DeviceScope scope(driver_, context_);
  CudaStreamEvents events(driver_);
  machine_.of_destroyed_streams = kInvalidContext;
  for (const bool knows : {false, true}) {
    const StreamId stream = knows ? 8 : 7;
    machine_.knows_destroyed_streams = knows;
    machine_.begin(stream);
    machine_.destroy(stream);
    const auto event = events.record(stream);
    ASSERT_TRUE(event) << event.error().message;
    EXPECT_TRUE(machine_.is_idle(stream));
    EXPECT_TRUE(events.is_done(*event));
  }
}

TEST_F(CudaStreamEventsTest, OfADestroyedStreamNothingIsKnownWhileAnotherIsCaptured) {
  const DeviceScope scope(driver_, context_);
  CudaStreamEvents events(driver_);
  events.note(5);
  machine_.begin(7);
  machine_.destroy(7);
  machine_.set_capturing(5, true);
  const auto event = events.record(7);
  ASSERT_TRUE(event);
  EXPECT_FALSE(events.is_done(*event));
  EXPECT_EQ(events.wait(*event).error().code, Code::kBusy);
  EXPECT_FALSE(machine_.is_idle(7));
  machine_.set_capturing(5, false);
  EXPECT_TRUE(events.is_done(*event));
  EXPECT_TRUE(machine_.is_idle(7));
  EXPECT_EQ(machine_.refused, 0u);
}

// The capturing caller has noted it, or the driver reports it; then some captures are lost, nothing else.
TEST_F(CudaStreamEventsTest, ACaptureThatNobodyHasNotedPutsTheWaitOff) {
  const DeviceScope scope(driver_, context_);
  bool may_capture = true;
  CudaStreamEvents events(driver_, [&] { return may_capture; });
  machine_.begin(7);
  machine_.destroy(7);
  machine_.set_capturing(5, true);
  const auto held = events.record(7);
  ASSERT_TRUE(held);
  EXPECT_FALSE(events.is_done(*held));
  EXPECT_EQ(machine_.refused, 0u);
  may_capture = false;
  const auto refused = events.record(7);
  ASSERT_TRUE(refused);
  EXPECT_EQ(machine_.refused, 1u);
  EXPECT_EQ(events.wait(*refused).error().code, Code::kBusy);
  machine_.set_capturing(5, false);
  EXPECT_TRUE(events.is_done(*held) && events.is_done(*refused));
  EXPECT_TRUE(machine_.is_idle(7));
}

// This context's work says nothing of it.
TEST_F(CudaStreamEventsTest, AStreamOfAnotherContextIsAnError) {
  const DeviceScope scope(driver_, context_);
  CudaStreamEvents events(driver_);
  machine_.failing = {{"event_record", kInvalidHandle}};
  const auto event = events.record(7);
  ASSERT_FALSE(event);
  EXPECT_NE(std::string(event.error().message).find("cuEventRecord"), std::string::npos);
}

TEST_F(CudaStreamEventsTest, FailuresOfTheDriverAreErrorsThatNameTheCall) {
  const DeviceScope scope(driver_, context_);
  CudaStreamEvents events(driver_);
  const auto event = *events.record(7);
  for (const auto& [function, call] : {std::pair{"event_create", "cuEventCreate"},
                                       {"stream_is_capturing", "cuStreamIsCapturing"},
                                       {"event_record", "cuEventRecord"}}) {
    machine_.failing = {{function, 700}};
    const auto failed = events.record(7);
    ASSERT_FALSE(failed);
    EXPECT_NE(std::string(failed.error().message).find(call), std::string::npos);
  }
  machine_.failing = {{"event_query", 700}, {"event_synchronize", 700}};
  EXPECT_FALSE(events.is_done(event));
  EXPECT_EQ(events.wait(event).error().code, Code::kIo);
  machine_.failing = {};
  EXPECT_TRUE(events.record(7));
  EXPECT_EQ(events.events(), 2u);  // what could not be recorded was not lost
}

TEST_F(CudaStreamEventsTest, AScopeLeavesTheThreadOnTheDeviceItWasOn) {
  Context other = nullptr, current = nullptr;
  driver_.primary_context_retain(&other, 2);
  driver_.context_set_current(other);
  {
    const DeviceScope scope(driver_, context_);
    ASSERT_TRUE(scope.status());
    driver_.context_get_current(&current);
    EXPECT_EQ(current, context_);
    const DeviceScope inner(driver_, context_);
    EXPECT_TRUE(inner.status());
  }
  driver_.context_get_current(&current);
  EXPECT_EQ(current, other);
  int mode = 1;
  driver_.exchange_capture_mode(&mode);
  EXPECT_EQ(mode, 0);  // as it was before the scope
}

TEST_F(CudaStreamEventsTest, AScopeSaysThatTheDriverHasEnded) {
  machine_.deinitialize();
  const DeviceScope scope(driver_, context_);
  EXPECT_TRUE(scope.has_ended());
  EXPECT_EQ(scope.status().error().code, Code::kUnsupported);
}

}  // namespace
}  // namespace cachalot::gpu
