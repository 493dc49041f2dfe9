#include "testing/storage/faults.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "os/file_descriptor.h"

namespace cachalot::storage {
namespace {

// Mounts of the tests are their own process' only, and end with it. Before any thread begins.
class OwnMounts : public ::testing::Environment {
 public:
  static bool is_there;
  void SetUp() override {
    is_there = ::unshare(CLONE_NEWNS) == 0 &&
               ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  }
};
bool OwnMounts::is_there = false;
const ::testing::Environment* const kOwnMounts = ::testing::AddGlobalTestEnvironment(new OwnMounts);

struct Place {
  std::string file;
  std::uint64_t offset = 0;
};

Place find_bytes(const std::string& folder, Bytes found) {
  const std::string_view text(reinterpret_cast<const char*>(found.data()), found.size());
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder)) {
    if (!file.is_regular_file()) continue;
    std::ifstream stream(file.path(), std::ios::binary);
    std::ostringstream bytes;
    bytes << stream.rdbuf();
    const std::string content = bytes.str();
    const std::size_t at = content.find(text);
    if (at != std::string::npos) return {file.path(), at};
  }
  return {};
}

}  // namespace

bool mount_memory(const std::string& folder, std::uint64_t bytes) {
  const std::string size = "size=" + std::to_string(bytes);
  return OwnMounts::is_there && ::mount("tmpfs", folder.c_str(), "tmpfs", 0, size.c_str()) == 0;
}

void fill_up(const std::string& path) {
  const os::FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  const std::string bytes(4096, 'f');
  while (::write(file.get(), bytes.data(), bytes.size()) > 0) {
  }
}

std::string overwrite_bytes(const std::string& folder, Bytes found, Bytes replacement) {
  const Place place = find_bytes(folder, found);
  if (place.file.empty()) return "";
  const std::byte flipped = found[0] ^ std::byte{1};
  const Bytes bytes = replacement.empty() ? Bytes(&flipped, 1) : replacement;
  const os::FileDescriptor file(::open(place.file.c_str(), O_WRONLY | O_CLOEXEC));
  EXPECT_EQ(::pwrite(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(place.offset)),
            static_cast<ssize_t>(bytes.size()));
  EXPECT_EQ(::fdatasync(file.get()), 0);
  return place.file;
}

std::string cut_off(const std::string& folder, Bytes found) {
  const Place place = find_bytes(folder, found);
  if (place.file.empty()) return "";
  std::filesystem::resize_file(place.file, place.offset + found.size() / 2);
  return place.file;
}

void damage_files(const std::string& folder, Fault fault, Bytes body, Bytes other_body) {
  std::string file;
  if (fault == Fault::kBitFlipped) file = overwrite_bytes(folder, body.subspan(8192), {});
  if (fault == Fault::kTruncated) file = cut_off(folder, body);
  if (fault == Fault::kSwapped) file = overwrite_bytes(folder, body, other_body);
  EXPECT_NE(file, "");
}

void StorageFaults::SetUp() {
  rig_ = GetParam().make(folder_);
  if (rig_ == nullptr)
    GTEST_SKIP() << "it cannot be made here: no server, or no right to mount a file system";
  open();
}

void StorageFaults::open() {
  store_.reset();
  Result<std::unique_ptr<Backend>> backend = rig_->open();
  ASSERT_TRUE(backend) << backend.error().message;
  store_ = Store::make(*std::move(backend), {});
}

std::size_t StorageFaults::put(const Chain& chain, std::uint64_t timeout_ns) {
  std::vector<std::vector<Bytes>> payloads;
  std::vector<BlockPut> blocks;
  for (std::size_t i = 0; i < chain.size(); ++i) payloads.push_back(chain.payload(i));
  for (std::size_t i = 0; i < chain.size(); ++i)
    blocks.push_back({chain.hashes()[i], payloads[i], chain.tokens(i)});
  return store_->put(kSpace, nullptr, blocks, base::SteadyClock::read() + timeout_ns);
}

std::vector<bool> StorageFaults::get(Chain& chain, std::uint64_t timeout_ns) {
  std::vector<std::vector<Room>> rooms;
  std::vector<Get> gets;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    chain.clear(i);
    rooms.push_back(chain.room(i));
  }
  for (std::size_t i = 0; i < chain.size(); ++i) gets.push_back({chain.key(i), rooms[i]});
  store_->get(gets, base::SteadyClock::read() + timeout_ns);
  std::vector<bool> is_read;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    is_read.push_back(gets[i].status.ok());
    if (gets[i].status) {
      EXPECT_TRUE(chain.is_right(i) && gets[i].tokens == chain.tokens(i)) << "wrong bytes of " << i;
    }
  }
  return is_read;
}

bool StorageFaults::comes_back(std::uint64_t name) {
  const std::uint64_t until_ns = base::SteadyClock::read() + 60'000'000'000;
  for (; base::SteadyClock::read() < until_ns; ++name) {
    Chain chain(name, 2, 20480, 1);
    if (put(chain) == 2 && get(chain) == std::vector<bool>(2, true)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return false;
}

}  // namespace cachalot::storage
