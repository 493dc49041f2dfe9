// Pools whose device files were cut off, and every command that opens one: an error, no signal, no hang, nothing written.
// CACHALOT_SWEEP_ALL=1 cuts at every page (`make soak-fsck`).
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "program.h"

namespace cachalot::process_test {
namespace {

constexpr int kFault = 1, kUsage = 2;
constexpr std::uint64_t kPage = 4096, kStripe = 2u << 20;

bool takes_all() {
  return std::getenv("CACHALOT_SWEEP_ALL") != nullptr;
}

class CutPool : public ProcessTest {
 protected:
  ~CutPool() override { std::printf("  cuts: %zu, commands: %zu\n", cuts_, commands_); }

  std::vector<Arguments> openers(const std::string& pool) const {
    return {{"pool", "info", pool},
            {"pool", "info", pool, "--all", "--json", "-"},
            {"pool", "blocks", pool},
            {"pool", "export", pool, "--namespace", "default", "--to", path("out")},
            {"pool", "import", pool, "--from", path("exported")},
            {"pool", "fence", pool, "--unknown"},
            {"pool", "destroy", pool},
            {"top", pool, "--once"},
            {"serve", pool},
            {"serve", pool, "--standby"},
            {"serve", pool, "--create", "--block-bytes", "4096", "--capacity-blocks", "32",
             "--clients", "4"},
            {"stop", pool},
            {"put", "b", "--pool", pool, "--file", "/proc/self/comm"},
            {"get", "a", "--pool", pool},
            {"get", "a", "--pool", pool, "--wait", "1"},
            {"lookup", "a", "--pool", pool},
            {"evict", "a", "--pool", pool},
            {"context", "create", "a", "--pool", pool, "--for", "60"},
            {"context", "list", "--pool", pool}};
  }

  // A pool of this many devices with a block, and the block in a file.
  std::string make_pool(const std::string& name, int devices) {
    const std::string pool = create_pool(name, {"--devices", std::to_string(devices)});
    Serving keeper({"serve", pool});
    EXPECT_TRUE(keeper.is_ready());
    expect_done(run({"put", "a", "--pool", pool}, {.in = noise(4096, 1)}));
    expect_done(run({"pool", "export", pool, "--namespace", "default", "--to", path("exported")}));
    expect_done(run({"stop", pool}));
    expect_done(keeper.wait());
    return pool;
  }

  // @param device  the file that was cut to `bytes`
  void expect_refused(const std::string& pool, const std::string& device, std::uint64_t bytes) {
    SCOPED_TRACE(device + " of " + std::to_string(bytes) + " bytes");
    ASSERT_EQ(truncate(device.c_str(), static_cast<off_t>(bytes)), 0);
    const int expected = bytes < kStripe ? kUsage : kFault;
    const auto before = listing();
    for (const Arguments& command : openers(pool)) {
      // It waits a second for a pool that may come.
      if (!takes_all() && command[command.size() - 2] == "--wait") continue;
      // An empty file is what a killed maker leaves: it is made anew, unless another device has something.
      const bool makes = command.size() > 2 && command[2] == "--create";
      if (makes && bytes == 0 && !std::filesystem::exists(pool + ".1")) continue;
      SCOPED_TRACE(command[0] + " " + command[1]);
      expect_error(run(command), command[0] == "top" ? kFault : expected, {device});
      ++commands_;
    }
    for (const Arguments& more : {Arguments{}, Arguments{"--repair"}}) {
      Arguments command = {"pool", "fsck", pool};
      command.insert(command.end(), more.begin(), more.end());
      const Outcome outcome = run(command);
      ++commands_;
      if (bytes < kStripe) {
        expect_error(outcome, kUsage, {device});
        continue;
      }
      EXPECT_EQ(outcome.exit_code, kFault);
      EXPECT_NE(outcome.out.find("fault short_device: " + device), std::string::npos)
          << outcome.out << outcome.err;
    }
    expect_done(run({"pool", "list", path("")}));
    ++commands_;
    EXPECT_EQ(listing(), before);
    struct stat status {};
    ASSERT_EQ(stat(device.c_str(), &status), 0);
    EXPECT_EQ(status.st_size, static_cast<off_t>(bytes));
    ++cuts_;
  }
  // From the end to nothing.
  void cut_down(const std::string& pool, const std::string& device, std::uint64_t step) {
    const std::string whole = read(device);
    for (std::uint64_t bytes = whole.size() - 1; !HasFailure();
         bytes = bytes < step ? 0 : (bytes - 1) / step * step) {
      expect_refused(pool, device, bytes);
      if (bytes == 0) break;
    }
    // A device that has its bytes again serves as before.
    const os::FileDescriptor file(open(device.c_str(), O_WRONLY | O_CLOEXEC));
    ASSERT_EQ(pwrite(file.get(), whole.data(), whole.size(), 0),
              static_cast<ssize_t>(whole.size()));
    Serving keeper({"serve", pool});
    ASSERT_TRUE(keeper.is_ready());
    EXPECT_EQ(run({"get", "a", "--pool", pool}).out, noise(4096, 1));
    expect_done(run({"stop", pool}));
  }

  std::size_t cuts_ = 0, commands_ = 0;
};

TEST_F(CutPool, IsRefusedByEveryCommand) {
  const std::string pool = make_pool("kv", 1);
  cut_down(pool, pool, takes_all() ? kPage : 211 * kPage);
}

TEST_F(CutPool, IsRefusedWhicheverDeviceWasCut) {
  const std::string pool = make_pool("kv", 2);
  for (const std::string& device : {pool + ".1", pool})
    cut_down(pool, device, takes_all() ? 16 * kPage : 503 * kPage);
}

// Where the size of less than a header is left.
TEST_F(CutPool, IsRefusedWithinItsHeader) {
  const std::string pool = make_pool("kv", 1);
  for (const std::uint64_t bytes : {200, 128, 65, 64, 63, 8, 1}) expect_refused(pool, pool, bytes);
}

TEST_F(CutPool, IsRefusedAsAPartOfAFileThatWasCut) {
  const std::string file = write("device", std::string(16 << 20, '\x5a'));
  const std::string pool = file + "@2MiB+8MiB";
  {
    Serving keeper({"serve", pool, "--create", "--block-bytes", "4096", "--capacity-blocks", "32",
                    "--clients", "4"});
    ASSERT_TRUE(keeper.is_ready());
    expect_done(run({"put", "a", "--pool", pool}, {.in = noise(4096, 1)}));
    expect_done(run({"pool", "export", pool, "--namespace", "default", "--to", path("exported")}));
    expect_done(run({"stop", pool}));
  }
  for (const off_t bytes : {10 << 20, (10 << 20) - 1, 8 << 20, 4 << 20, 3 << 20, 2 << 20, 0}) {
    SCOPED_TRACE(bytes);
    ASSERT_EQ(truncate(file.c_str(), bytes), 0);
    if (bytes == 10 << 20) {
      expect_done(run({"pool", "fsck", pool}));
      continue;
    }
    for (const Arguments& command : openers(pool)) {
      if (command[0] == "serve" && command.back() != pool) continue;
      if (!takes_all() && command[command.size() - 2] == "--wait") continue;
      SCOPED_TRACE(command[0] + " " + command[1]);
      expect_error(run(command), command[0] == "top" ? kFault : kUsage, {file, "ends behind"});
      ++commands_;
    }
    expect_error(run({"pool", "fsck", pool}), kUsage, {file, "ends behind"});
    expect_error(run({"pool", "fsck", pool, "--repair"}), kUsage, {file, "ends behind"});
    ++cuts_;
  }
}

}  // namespace
}  // namespace cachalot::process_test
