#include "creation.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "pool/expansion/expansion_device.h"
#include "pool/sizing.h"
#include "pool_flags.h"

namespace cachalot::apps {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

// What a handler can reach.
const std::vector<std::string>* paths_being_made = nullptr;

// A file is ours if this process has it open: Pool::create() opens no file that it did not make.
// One of another process, which was first to make it, stays.
bool is_open_here(const struct stat& named) {
  constexpr int kMostDescriptors = 1024;
  for (int fd = 3; fd < kMostDescriptors; ++fd) {
    struct stat open {};
    if (fstat(fd, &open) == 0 && open.st_dev == named.st_dev && open.st_ino == named.st_ino) {
      return true;
    }
  }
  return false;
}

// Then ends the program as the signal would have.
void remove_and_end(int signal) {
  for (const std::string& path : *paths_being_made) {
    struct stat named {};
    if (lstat(path.c_str(), &named) == 0 && S_ISREG(named.st_mode) && is_open_here(named)) {
      unlink(path.c_str());
    }
  }
  ::signal(signal, SIG_DFL);
  raise(signal);
}

class RemoveOnSignal {
 public:
  explicit RemoveOnSignal(std::vector<std::string> paths) : paths_(std::move(paths)) {
    paths_being_made = &paths_;
    struct sigaction action {};
    action.sa_handler = remove_and_end;
    for (std::size_t i = 0; i < std::size(kSignals); ++i) {
      sigaction(kSignals[i], nullptr, &before_[i]);
      if (before_[i].sa_handler != SIG_IGN) sigaction(kSignals[i], &action, nullptr);
    }
  }
  ~RemoveOnSignal() {
    for (std::size_t i = 0; i < std::size(kSignals); ++i) {
      sigaction(kSignals[i], &before_[i], nullptr);
    }
    paths_being_made = nullptr;
  }
  RemoveOnSignal(const RemoveOnSignal&) = delete;
  RemoveOnSignal& operator=(const RemoveOnSignal&) = delete;

 private:
  std::vector<std::string> paths_;
  struct sigaction before_[std::size(kSignals)] = {};
};

// Says on a terminal how much of a pool's space is there, where that takes long. The kernel counts it.
class Progress {
 public:
  explicit Progress(std::vector<std::string> paths) : paths_(std::move(paths)) {
    if (isatty(STDERR_FILENO) != 0) thread_ = std::jthread([this](std::stop_token s) { run(s); });
  }

 private:
  void run(const std::stop_token& stop) {
    constexpr std::chrono::milliseconds kInterval(1000);
    std::unique_lock lock(mutex_);
    bool has_said = false;
    while (!wake_.wait_for(lock, stop, kInterval, [] { return false; }) && !stop.stop_requested()) {
      std::fprintf(stderr, "\rcreating the pool: %.1f GiB allocated", allocated_gib());
      has_said = true;
    }
    if (has_said) std::fprintf(stderr, "\r\033[K");
  }
  double allocated_gib() const {
    std::uint64_t bytes = 0;
    for (const std::string& path : paths_) {
      constexpr std::uint64_t kUnit = 512;  // of st_blocks, on every file system
      struct stat made {};
      if (stat(path.c_str(), &made) == 0)
        bytes += static_cast<std::uint64_t>(made.st_blocks) * kUnit;
    }
    return static_cast<double>(bytes) / (1u << 30);
  }

  const std::vector<std::string> paths_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread thread_;  // ends first
};

}  // namespace

Result<pool::Pool> create_pool(const pool::CreateOptions& options) {
  std::vector<std::string> paths = pool::device_paths(options.paths, options.geometry.devices);
  for (std::string& path : paths) path = file_name_of(path);
  const Progress progress(paths);
  const RemoveOnSignal guard(std::move(paths));
  Result<pool::Pool> created = pool::Pool::create(options);
  // Of several devices it is not known which of them share a place.
  if (created || created.error().code != Code::kNoSpace || created.error().detail == 0 ||
      options.geometry.devices != 1)
    return created;
  // Also the least pool may be too large.
  if (!pool::fitting(options.geometry, created.error().detail)) return created;
  Error what_fits =
      Error::make(Code::kNoSpace, "%.300s: --size %llu would fit", created.error().message,
                  static_cast<unsigned long long>(created.error().detail));
  what_fits.detail = created.error().detail;
  return what_fits;
}

Result<pool::Expansion> create_expansion(const pool::Access& access, const std::string& path,
                                         std::uint64_t bytes) {
  const Progress progress({file_name_of(path)});
  const RemoveOnSignal guard({file_name_of(path)});
  return pool::make_expansion(access, path, bytes);
}

}  // namespace cachalot::apps
