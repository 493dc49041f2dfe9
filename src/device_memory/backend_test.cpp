// What the base class does when the device fails or two calls meet. Its rules are in conformance.h.
#include "device_memory/backend.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>

namespace cachalot::device_memory {
namespace {

constexpr std::uint64_t kChunk = 4096;

// Does nothing; each call asks `on_call` first, by its name.
class Scripted final : public Backend {
 public:
  Scripted() : Backend(kChunk) {}
  const char* name() const override { return "scripted"; }
  std::string description() const override { return name(); }

  std::function<Status(const std::string&)> on_call = [](const std::string&) { return Status(); };

 private:
  Result<Address> do_reserve(std::uint64_t bytes) override {
    CACHALOT_TRY(on_call("reserve"));
    return next_ += bytes;
  }
  Status do_free(Address, std::uint64_t) override { return on_call("free_range"); }
  Result<std::uint64_t> do_create(std::uint64_t) override {
    CACHALOT_TRY(on_call("create"));
    return std::uint64_t{7};
  }
  Status do_release(const Memory& memory) override {
    EXPECT_EQ(memory.native, 7u);
    return on_call("release");
  }
  Status do_map(Address, const Memory&) override { return on_call("map"); }
  Status do_set_access(const Span&, Access) override { return on_call("set_access"); }
  Status do_unmap(const Span&) override { return on_call("unmap"); }

  Address next_ = 1 << 20;
};

class FailingDevice : public testing::Test {
 protected:
  void SetUp() override {
    range_ = *backend_.reserve(4 * kChunk);
    handle_ = *backend_.create(kChunk);
    ASSERT_TRUE(backend_.map(range_, handle_));
    before_ = backend_.counts();
  }
  void fail(const std::string& call) {
    backend_.on_call = [call](const std::string& name) -> Status {
      if (name == call) return Error::make(Code::kIo, "the device failed");
      return {};
    };
  }
  void recover() {
    backend_.on_call = [](const std::string&) { return Status(); };
  }
  void expect_as_before() {
    EXPECT_EQ(backend_.counts(), before_);
    EXPECT_EQ(backend_.physical_bytes(), kChunk);
    EXPECT_EQ(backend_.reserved_bytes(), 4 * kChunk);
    EXPECT_EQ(backend_.mapped_bytes(), kChunk);
  }

  Scripted backend_;
  Address range_ = 0;
  Handle handle_;
  CallCounts before_;
};

TEST_F(FailingDevice, LeavesTheBookAsItWas) {
  fail("reserve");
  EXPECT_EQ(backend_.reserve(kChunk).error().code, Code::kIo);
  fail("create");
  EXPECT_EQ(backend_.create(kChunk).error().code, Code::kIo);
  fail("map");
  EXPECT_EQ(backend_.map(range_ + kChunk, handle_).error().code, Code::kIo);
  fail("set_access");
  EXPECT_EQ(backend_.set_access(range_, kChunk, Access::kRead).error().code, Code::kIo);
  fail("unmap");
  EXPECT_EQ(backend_.unmap(range_, kChunk).error().code, Code::kIo);
  expect_as_before();
}

TEST_F(FailingDevice, LeavesAllThatItRefusedPossible) {
  fail("map");
  EXPECT_FALSE(backend_.map(range_ + kChunk, handle_));
  fail("unmap");
  EXPECT_FALSE(backend_.unmap(range_, kChunk));
  recover();
  EXPECT_TRUE(backend_.map(range_ + kChunk, handle_));
  EXPECT_TRUE(backend_.unmap(range_, 2 * kChunk));
  fail("free_range");
  EXPECT_FALSE(backend_.free_range(range_));
  EXPECT_EQ(backend_.reserved_bytes(), 4 * kChunk);
  recover();
  EXPECT_TRUE(backend_.free_range(range_));
  EXPECT_EQ(backend_.reserved_bytes(), 0u);
}

TEST_F(FailingDevice, GivesTheLimitBackWhatItDidNotCreate) {
  backend_.set_limit_bytes(2 * kChunk);
  fail("create");
  EXPECT_FALSE(backend_.create(kChunk));
  recover();
  EXPECT_TRUE(backend_.create(kChunk));
}

TEST_F(FailingDevice, KeepsCountingMemoryThatItDoesNotTakeBack) {
  fail("release");
  EXPECT_TRUE(backend_.release(handle_));  // still mapped: nothing to do yet
  EXPECT_EQ(backend_.unmap(range_, kChunk).error().code, Code::kIo);
  EXPECT_EQ(backend_.mapped_bytes(), 0u);
  EXPECT_EQ(backend_.physical_bytes(), kChunk);
  EXPECT_EQ(backend_.release(handle_).error().code, Code::kInvalidArgument);
}

TEST_F(FailingDevice, FreesWhatWasReleasedWhileItFailedToMapIt) {
  ASSERT_TRUE(backend_.unmap(range_, kChunk));
  backend_.on_call = [this](const std::string& name) -> Status {
    if (name != "map") return {};
    EXPECT_TRUE(backend_.release(handle_));
    EXPECT_EQ(backend_.physical_bytes(), kChunk) << "freed while it was being mapped";
    return Error::make(Code::kIo, "the device failed");
  };
  EXPECT_EQ(backend_.map(range_, handle_).error().code, Code::kIo);
  EXPECT_EQ(backend_.physical_bytes(), 0u);
}

TEST_F(FailingDevice, HoldsNoLockWhileItWorks) {
  backend_.on_call = [this](const std::string& name) -> Status {
    if (name != "create") return {};
    EXPECT_TRUE(backend_.set_access(range_, kChunk, Access::kRead));
    return {};
  };
  EXPECT_TRUE(backend_.create(kChunk));
}

// Every pair of calls on one range.
TEST_F(FailingDevice, RefusesASecondCallOnARangeThatIsBusy) {
  const auto refused = [](const Status& status) {
    EXPECT_FALSE(status);
    if (!status) {
      EXPECT_EQ(status.error().code, Code::kBusy);
      EXPECT_NE(std::strstr(status.error().message, "one at a time"), nullptr);
    }
  };
  int nested = 0;
  backend_.on_call = [&](const std::string&) -> Status {
    ++nested;
    refused(backend_.map(range_ + 2 * kChunk, handle_));
    refused(backend_.set_access(range_, kChunk, Access::kRead));
    refused(backend_.unmap(range_, kChunk));
    refused(backend_.free_range(range_));
    return {};
  };
  EXPECT_TRUE(backend_.map(range_ + kChunk, handle_));
  EXPECT_TRUE(backend_.set_access(range_, 2 * kChunk, Access::kRead));
  EXPECT_TRUE(backend_.unmap(range_, 2 * kChunk));
  EXPECT_EQ(nested, 3);
}

TEST(Backend, CountsEachKindOfCallThatSucceeds) {
  Scripted backend;
  const Address range = *backend.reserve(8 * kChunk);
  const Handle handle = *backend.create(kChunk);
  for (std::uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(backend.map(range + i * kChunk, handle));
  EXPECT_FALSE(backend.map(range, handle));
  ASSERT_TRUE(backend.set_access(range, 3 * kChunk, Access::kRead));
  ASSERT_TRUE(backend.set_access(range, kChunk, Access::kReadWrite));
  ASSERT_TRUE(backend.unmap(range, 3 * kChunk));
  ASSERT_TRUE(backend.release(handle));
  ASSERT_TRUE(backend.free_range(range));
  const CallCounts expected{.reserve = 1,
                            .free_range = 1,
                            .create = 1,
                            .release = 1,
                            .map = 3,
                            .set_access = 2,
                            .unmap = 1};
  EXPECT_EQ(backend.counts(), expected);
  EXPECT_EQ(backend.counts().total(), 10u);
}

}  // namespace
}  // namespace cachalot::device_memory
