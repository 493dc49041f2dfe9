// The plug-in for Python classes (bindings/python_storage): the suite of all backends, faults, and what a class does wrong.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/clock.h"
#include "storage/backends.h"
#include "testing/storage/conformance.h"
#include "testing/storage/faults.h"

namespace cachalot::storage {
namespace {

// LeakSanitizer does not look into the arenas of Python's own allocator, and would call what only they refer to lost.
const int kPlainAllocator = ::setenv("PYTHONMALLOC", "malloc", 0);

std::string uri_of(const std::string& name, const std::string& rest) {
  return "plugin:" CACHALOT_PYTHON_PLUGIN "?path=" CACHALOT_PYTHON_CLASSES
         "&module=classes&class=" +
         name + rest;
}
std::function<Result<std::unique_ptr<Backend>>(const std::string&)> opener(
    const std::string& name, const std::string& rest = "") {
  return [=](const std::string& folder) {
    return open_backend(uri_of(name, "&folder=" + folder + rest), {});
  };
}

INSTANTIATE_TEST_SUITE_P(
    PythonClass, BackendConformance,
    ::testing::Values(BackendUnderTest{"python_dict", opener("Dict"), true},
                      BackendUnderTest{"python_pieces", opener("InPieces"), true},
                      BackendUnderTest{"python_one_thread", opener("Dict", "&threads=1"), true}),
    name_of_backend);

std::string hex_of(const ObjectKey& key) {
  std::string text;
  for (const std::byte byte : std::as_bytes(std::span(&key, 1))) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(byte));
    text += digits;
  }
  return text;
}

class PythonRig final : public FaultRig {
 public:
  PythonRig(std::string folder, std::string how) : folder_(std::move(folder)), how_(how) {}
  // @param how  what the class does; "": as the fault is called
  static std::function<std::unique_ptr<FaultRig>(const std::string&)> maker(std::string how = "") {
    return [how](const std::string& folder) { return std::make_unique<PythonRig>(folder, how); };
  }
  Result<std::unique_ptr<Backend>> open() override { return opener("Faulty")(folder_); }
  void begin(Fault fault) override { tell(how_.empty() ? name_of(fault) : how_); }
  void end(Fault) override { std::filesystem::remove(file()); }
  void damage(Fault fault, const Chain& chain, std::size_t i, const Chain& other) override {
    tell(std::string(name_of(fault)) + " " + hex_of(chain.key(i)) + " " + hex_of(other.key(0)));
  }

 private:
  std::string file() const { return folder_ + "/fault"; }
  void tell(const std::string& text) const {
    std::ofstream(file() + ".new") << text;
    std::filesystem::rename(file() + ".new", file());
  }
  const std::string folder_, how_;
};

INSTANTIATE_TEST_SUITE_P(
    PythonClass, StorageOutage,
    ::testing::Values(RigUnderTest{"hangs", PythonRig::maker(), Fault::kPaused},
                      RigUnderTest{"hangs_with_the_lock", PythonRig::maker("stuck"),
                                   Fault::kPaused},
                      RigUnderTest{"raises", PythonRig::maker("raises"), Fault::kReset}),
    name_of_rig);
INSTANTIATE_TEST_SUITE_P(PythonClass, StorageFull,
                         ::testing::Values(RigUnderTest{"python", PythonRig::maker(),
                                                        Fault::kFull}),
                         name_of_rig);
INSTANTIATE_TEST_SUITE_P(
    PythonClass, StorageDamage,
    ::testing::Values(RigUnderTest{"python", PythonRig::maker(), Fault::kBitFlipped},
                      RigUnderTest{"python", PythonRig::maker(), Fault::kTruncated},
                      RigUnderTest{"python", PythonRig::maker(), Fault::kSwapped}),
    name_of_rig);

// "" if it opens.
std::string refusal(const std::string& uri, Code code = Code::kInvalidArgument) {
  const Result<std::unique_ptr<Backend>> opened = open_backend(uri, {});
  if (opened) return "";
  EXPECT_EQ(opened.error().code, code) << opened.error().message;
  return opened.error().message;
}
void says(const std::string& message, std::string_view text) {
  EXPECT_NE(message.find(text), std::string::npos) << message << ": expected " << text;
}

TEST(PythonStorage, AWrongModuleClassOrOptionIsNamed) {
  const std::string plugin = "plugin:" CACHALOT_PYTHON_PLUGIN;
  says(refusal(plugin), "no option module, expected module=NAME&class=NAME");
  says(refusal(plugin + "?module=json"), "no option class");
  says(refusal(plugin + "?module=no_such&class=C"), "No module named 'no_such'");
  says(refusal(uri_of("NoSuch", "")), "no attribute 'NoSuch'");
  says(refusal(uri_of("NoList", "")), "classes.NoList has no method list()");
  says(refusal(uri_of("Dict", "")), "missing 1 required positional argument: 'folder'");
  says(refusal(uri_of("Dict", "&folder=x&fodler=y")), "unexpected keyword argument 'fodler'");
  says(refusal(uri_of("Dict", "&folder=x&threads=0")), "threads is \"0\"");
  says(refusal(uri_of("Dict", "&folder=x&threads=4x")), "threads is \"4x\"");
  says(refusal(uri_of("Refusing", "&mode=value")), "Refusing(): ValueError: mode is wrong");
  says(refusal(uri_of("Refusing", "&mode=os"), Code::kIo), "its disk");
}

// A chain in a storage of the class Wrong.
struct WrongClass {
  explicit WrongClass(const std::string& how)
      : backend(*opener("Wrong", "&how=" + how)("wrong_" + how)) {}
  Status get(std::vector<Get>& gets) { return backend->get(gets, soon()); }
  std::vector<Get> gets() {
    std::vector<Get> all;
    for (std::size_t i = 0; i < 2; ++i) all.push_back(Get{chain.key(i), rooms[i]});
    return all;
  }
  std::unique_ptr<Backend> backend;
  Chain chain{1, 2, 4096};
  std::vector<std::vector<Room>> rooms = {chain.room(0), chain.room(1)};
};

TEST(PythonStorage, AnAnswerThatIsWrongFailsTheCallAndIsNamed) {
  const auto why = [](const std::string& how) {
    WrongClass wrong(how);
    std::vector<Get> gets = wrong.gets();
    const Status got = wrong.get(gets);
    return got ? "" : std::string(got.error().message);
  };
  says(why("few"), "Wrong.get(): 0 answers, expected 2");
  says(why("many"), "Wrong.get(): more than 2 answers, expected 2");
  says(why("late"), "Wrong.get(): TimeoutError: not now");
  WrongClass none("none");
  const ObjectKey key = none.chain.key(0);
  bool there = true;
  const Status asked = none.backend->exists({&key, 1}, {&there, 1}, soon());
  ASSERT_FALSE(asked);
  says(asked.error().message, "'NoneType' object is not iterable");
}

TEST(PythonStorage, AnExceptionOfOneValueIsThatValuesAlone) {
  WrongClass wrong("one");
  std::vector<Get> gets = wrong.gets();
  ASSERT_TRUE(wrong.get(gets));
  ASSERT_FALSE(gets[0].status || gets[1].status);
  EXPECT_EQ(gets[0].status.error().code, Code::kIo);
  EXPECT_EQ(gets[1].status.error().code, Code::kNotFound);
  std::vector<std::vector<Bytes>> bodies = {wrong.chain.body(0), wrong.chain.body(1)};
  Put puts[] = {{wrong.chain.head(0), bodies[0]}, {wrong.chain.head(1), bodies[1]}};
  ASSERT_TRUE(wrong.backend->put(puts, soon()));
  ASSERT_FALSE(puts[0].status);
  EXPECT_EQ(puts[0].status.error().code, Code::kPermission);
  EXPECT_TRUE(puts[1].status);
}

TEST(PythonStorage, WhatIsNoBufferIsAnError) {
  WrongClass wrong("text");
  std::vector<Get> gets = wrong.gets();
  ASSERT_TRUE(wrong.get(gets));
  ASSERT_FALSE(gets[0].status);
  says(gets[0].status.error().message, "a bytes-like object is required, not 'str'");
  const Status listed = wrong.backend->list([](const ObjectHead&) { return true; }, soon());
  ASSERT_FALSE(listed);
  says(listed.error().message, "Wrong.list(): TypeError");
  std::vector<Bytes> body = wrong.chain.body(0);
  Put put{wrong.chain.head(0), body};
  const Status stored = wrong.backend->put({&put, 1}, soon());
  ASSERT_FALSE(stored);
  says(stored.error().message, "answered True, expected None or an exception");
}

TEST(PythonStorage, WhatAClassPrintsGoesToStderr) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(opener("Printing")("printing"));
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "text of a class\n");
}

TEST(PythonStorage, ATooShortHeadIsNotListed) {
  WrongClass wrong("short");
  std::size_t heads = 0;
  EXPECT_TRUE(wrong.backend->list([&](const ObjectHead&) { return ++heads != 0; }, soon()));
  EXPECT_EQ(heads, 0u);
}

// A call that was stuck may still be writing into the folder: its removal is tried again.
void remove_folder(const std::string& folder) {
  std::error_code error;
  for (int i = 0; i < 500; ++i) {
    std::filesystem::remove_all(folder, error);
    if (!error) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  ADD_FAILURE() << folder << ": " << error.message();
}

// More calls than threads, all of them stuck: each still returns at its deadline, and its memory is free then.
TEST(PythonStorage, ACallThatAHangingClassKeepsTouchesNoMemoryOfItsCallerLater) {
  char folder[] = "/var/tmp/cachalot_python.XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::unique_ptr<Backend> backend = *opener("Faulty")(folder);
  Chain stored(99, 1, 65536);
  ASSERT_EQ(put_all(*backend, stored), 1u);
  std::ofstream(std::string(folder) + "/fault") << "paused";
  std::vector<std::thread> callers;
  for (std::uint64_t i = 0; i < 6; ++i) {
    callers.emplace_back([&, i] {
      const std::uint64_t deadline_ns = base::SteadyClock::read() + 200'000'000;
      auto chain = std::make_unique<Chain>(i, 1, 65536);
      std::vector<Bytes> body = chain->body(0);
      std::vector<Room> room = chain->room(0);
      Put put{chain->head(0), body};
      Get get{stored.key(0), room};
      const Status status =
          i % 2 == 0 ? backend->put({&put, 1}, deadline_ns) : backend->get({&get, 1}, deadline_ns);
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().code, Code::kTimeout);
    });
  }
  for (std::thread& caller : callers) caller.join();
  std::filesystem::remove(std::string(folder) + "/fault");
  EXPECT_EQ(get_all(*backend, stored), std::vector<bool>{true});
  remove_folder(folder);
}

// The thread that hangs comes back after the plug-in was unloaded: a crash if its code were unmapped.
TEST(PythonStorage, AStorageThatHangsIsClosedAllTheSame) {
  char folder[] = "/var/tmp/cachalot_python.XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string fault = std::string(folder) + "/fault", over = std::string(folder) + "/over",
                    hung = std::string(folder) + "/hung";
  std::unique_ptr<Backend> backend = *opener("Faulty", "&threads=1")(folder);
  std::ofstream(fault) << "paused";
  const ObjectKey key = Chain(1, 1, 64).key(0);
  bool there = false;
  // On a slow machine a call may end before its thread has begun with it.
  for (int i = 0; i < 300 && !std::filesystem::exists(hung); ++i)
    EXPECT_FALSE(backend->exists({&key, 1}, {&there, 1}, base::SteadyClock::read() + 100'000'000));
  ASSERT_TRUE(std::filesystem::exists(hung));
  backend.reset();
  EXPECT_FALSE(std::filesystem::exists(over));
  std::filesystem::remove(fault);
  for (int i = 0; i < 500 && !std::filesystem::exists(over); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(std::filesystem::exists(over));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // for its way out of Python
  remove_folder(folder);
}

}  // namespace
}  // namespace cachalot::storage
