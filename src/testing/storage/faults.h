// The fixture of the fault matrix: each fault with each backend that can have it. A backend's own test says how the
// fault is made:
//
//   INSTANTIATE_TEST_SUITE_P(Mine, StorageOutage, ::testing::Values(RigUnderTest{"mine", make_rig, Fault::kKilled}),
//                            name_of_rig);
//
// The tests themselves are in src/storage/fault_test.cpp, which the test program compiles, too.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "testing/os/scratch_folder.h"
#include "testing/storage/chains.h"

namespace cachalot::storage {

enum class Fault {
  kKilled,      // the server: kill -9
  kPaused,      // the server: SIGSTOP
  kReset,       // its connections, also new ones
  kFull,        // its disk or memory
  kBitFlipped,  // in the payload of an object
  kTruncated,   // an object
  kSwapped,     // an object: the one of another key is in its place
};

inline const char* name_of(Fault fault) {
  constexpr const char* kNames[] = {"killed",      "paused",    "reset",  "full",
                                    "bit_flipped", "truncated", "swapped"};
  return kNames[static_cast<int>(fault)];
}

// A storage in a folder of the test's, with a hand on its other side.
class FaultRig {
 public:
  virtual ~FaultRig() = default;
  virtual Result<std::unique_ptr<Backend>> open() = 0;
  // kKilled to kFull.
  virtual void begin(Fault fault) = 0;
  virtual void end(Fault fault) = 0;
  // The others, while the storage is closed: to object `i` of the chain. kSwapped: object 0 of `other` takes its place.
  virtual void damage(Fault fault, const Chain& chain, std::size_t i, const Chain& other) = 0;
  // Whether objects outlive a killed server.
  virtual bool is_durable() const { return true; }
  // Whether a put into a full disk replaces the coldest objects.
  virtual bool replaces_when_full() const { return false; }
  // Whether one file has many objects.
  virtual bool shares_files() const { return false; }
};

struct RigUnderTest {
  std::string name;
  std::function<std::unique_ptr<FaultRig>(const std::string& folder)> make;
  Fault fault;
};
inline void PrintTo(const RigUnderTest& rig, std::ostream* to) {
  *to << rig.name << ", " << name_of(rig.fault);
}
inline std::string name_of_rig(const ::testing::TestParamInfo<RigUnderTest>& info) {
  return info.param.name + "_" + name_of(info.param.fault);
}

// Mounts `bytes` of memory as a file system, which goes with the process.
// @return false: the process may not
bool mount_memory(const std::string& folder, std::uint64_t bytes);
// Writes a file there until nothing more fits.
void fill_up(const std::string& file);
// Changes the first place in the files of a folder that has these bytes: flips a bit of `replacement`'s first byte
// if that is empty, else writes it there. @return the file, "" if no file has them
std::string overwrite_bytes(const std::string& folder, Bytes found, Bytes replacement);
// Cuts the file that has these bytes off in the middle of them. @return as above
std::string cut_off(const std::string& folder, Bytes found);
// Damages the object with this body of a backend that keeps bodies in files, whole and in one piece.
void damage_files(const std::string& folder, Fault fault, Bytes body, Bytes other_body);

class StorageFaults : public ::testing::TestWithParam<RigUnderTest> {
 protected:
  void SetUp() override;
  void open();
  std::size_t put(const Chain& chain, std::uint64_t timeout_ns = 20'000'000'000);
  // @return per object: read and verified. Each that is has the right bytes, or the test fails
  std::vector<bool> get(Chain& chain, std::uint64_t timeout_ns = 20'000'000'000);
  // Puts and gets new chains until one comes back, for a minute at most.
  bool comes_back(std::uint64_t name);

  const os::ScratchFolder scratch_{"/var/tmp"};
  const std::string folder_ = scratch_.path();
  std::unique_ptr<FaultRig> rig_;
  std::unique_ptr<Store> store_;
};
class StorageOutage : public StorageFaults {};
class StorageFull : public StorageFaults {};
class StorageDamage : public StorageFaults {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StorageOutage);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StorageFull);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StorageDamage);

}  // namespace cachalot::storage
