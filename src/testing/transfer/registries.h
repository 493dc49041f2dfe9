// The fixture of the suite that every kind of registry passes. A kind's own test says where it is:
//
//   INSTANTIATE_TEST_SUITE_P(Mine, RegistryConformance, ::testing::Values(PlaceUnderTest{"mine", make_place}),
//                            name_of_place);
//
// The tests themselves are in src/transfer/registry/conformance_test.cpp, which the test program compiles, too.
#pragma once

#include <gtest/gtest.h>

#include <unistd.h>

#include <functional>
#include <ostream>
#include <string>
#include <thread>

#include "base/clock.h"
#include "os/child.h"
#include "transfer/registry/registry.h"

namespace cachalot::transfer {

// Deadlines that only a failure reaches, and the time that a lapse takes at most on a busy machine.
inline std::uint64_t in_s(std::uint64_t seconds) {
  return base::SteadyClock::read() + seconds * 1'000'000'000;
}
inline std::uint64_t soon() {
  return in_s(20);
}

// Looks until it is so. @return false: not within 60 s
template <class Condition>
bool comes_true(const Condition& condition) {
  const std::uint64_t until_ns = in_s(60);
  while (!condition()) {
    if (base::SteadyClock::read() > until_ns) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

inline std::unique_ptr<Registry> open(const std::string& uri) {
  Result<std::unique_ptr<Registry>> registry = open_registry(uri);
  if (!registry) {
    ADD_FAILURE() << registry.error().message;
    std::abort();
  }
  return *std::move(registry);
}

inline PeerRecord record_of(const std::string& name) {
  Result<PeerRecord> record = PeerRecord::make(name, {"tcp:10.0.0.1:7001", "unix:@" + name});
  if (!record) {
    ADD_FAILURE() << record.error().message;
    std::abort();
  }
  record->facts = {{"role", "decode"}, {"version", "1"}};
  return *std::move(record);
}

// What went wrong, or "ok": for messages of a failed expectation.
template <class T>
std::string text_of(const Result<T>& result) {
  return result ? "ok"
                : std::string(code_name(result.error().code)) + ": " + result.error().message;
}
template <class T>
bool failed_with(const Result<T>& result, Code code) {
  return !result && result.error().code == code;
}

// Where a registry is, which outlives Registry objects.
class RegistryPlace {
 public:
  virtual ~RegistryPlace() = default;
  virtual std::string uri() const = 0;
  virtual void remove_record(const std::string& name) = 0;  // without its owner
};

struct PlaceUnderTest {
  std::string name;
  std::function<std::unique_ptr<RegistryPlace>()> make;  // null: its server is not installed
};
inline void PrintTo(const PlaceUnderTest& place, std::ostream* to) {
  *to << place.name;
}
inline std::string name_of_place(const ::testing::TestParamInfo<PlaceUnderTest>& info) {
  return info.param.name;
}

class RegistryConformance : public ::testing::TestWithParam<PlaceUnderTest> {
 protected:
  void SetUp() override {
    place_ = GetParam().make();
    if (place_ == nullptr) GTEST_SKIP() << GetParam().name << " is not installed";
  }
  std::unique_ptr<Registry> open() const { return transfer::open(place_->uri()); }
  // A process that publishes this record and lives on.
  os::Child start_peer(const PeerRecord& record) const {
    int ready[2];
    if (pipe(ready) != 0) std::abort();
    Result<os::Child> child = os::Child::start([&] {
      const std::unique_ptr<Registry> registry = open();
      const char said = registry->publish(record, soon()) ? '1' : '0';
      if (write(ready[1], &said, 1) != 1) return 1;
      while (true) pause();
    });
    close(ready[1]);
    char said = 0;
    EXPECT_EQ(read(ready[0], &said, 1), 1);
    EXPECT_EQ(said, '1');
    close(ready[0]);
    return *std::move(child);
  }

  std::unique_ptr<RegistryPlace> place_;
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RegistryConformance);

}  // namespace cachalot::transfer
