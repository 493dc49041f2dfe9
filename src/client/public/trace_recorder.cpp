// Writes requests as lines of a trace, in the format of trace/request/trace_writer.h, which engines do not link.
#include <cachalot/trace_recorder.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "client/fork_guard.h"

namespace cachalot {
namespace {

constexpr std::size_t kWriteBytes = std::size_t{64} << 10;
constexpr std::size_t kMostHeldBytes = std::size_t{4} << 20;
constexpr std::uint64_t kWriteEveryNs = 1'000'000'000;

std::uint64_t unix_ms() {
  using namespace std::chrono;
  return static_cast<std::uint64_t>(
      duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count());
}

void append(std::string& line, const char* text, std::uint64_t number) {
  char digits[20];
  line += text;
  line.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
}

}  // namespace

struct TraceRecorder::Impl {
  Impl(std::string file, int opened) : path(std::move(file)), fd(opened) {}
  ~Impl() {
    (void)write_held();
    if (fd >= 0) ::close(fd);
  }

  bool is_ours() const { return client::fork_generation() == forks; }

  Error error_of(int os_error) const {
    return Error::from_errno(os_error, "%.120s: recording", path.c_str());
  }

  // All lines in one write(). If the disk is full, the rest is written first the next time.
  Status write_held() {
    if (!is_ours() || fd < 0) return {};
    last_write_ns = base::SteadyClock::read();
    while (!held.empty()) {
      const ssize_t written = ::write(fd, held.data(), held.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) {
        first_error = first_error != 0 ? first_error : (written < 0 ? errno : ENOSPC);
        return error_of(written < 0 ? errno : ENOSPC);
      }
      held.erase(0, static_cast<std::size_t>(written));
    }
    return {};
  }

  void record(std::span<const BlockHash> hashes, std::uint64_t input, std::uint64_t output,
              std::uint64_t ms) {
    // In a forked child the lock may be held by a thread that it does not have
    if (!is_ours()) return;
    const std::lock_guard lock(mutex);
    if (fd < 0 || held.size() > kMostHeldBytes) {
      ++dropped;
      return;
    }
    append(held, "{\"timestamp\": ", ms);
    append(held, ", \"input_length\": ", input);
    append(held, ", \"output_length\": ", output);
    held += ", \"hash_ids\": [";
    const char* separator = "";
    for (const BlockHash& hash : hashes) {
      append(held, separator, hash.high);
      separator = ", ";
    }
    held += "]}\n";
    ++recorded;
    if (held.size() < kWriteBytes && base::SteadyClock::read() - last_write_ns < kWriteEveryNs)
      return;
    (void)write_held();
  }

  const std::string path;
  const std::uint64_t forks = client::fork_generation();
  mutable std::mutex mutex;
  int fd;  // -1: closed
  std::string held;
  std::uint64_t last_write_ns = base::SteadyClock::read();
  std::uint64_t recorded = 0, dropped = 0;
  int first_error = 0;
};

Result<TraceRecorder> TraceRecorder::open(const std::string& path) {
  // Without O_NONBLOCK a FIFO waits for its reader.
  const int fd =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
  struct stat status {};
  const bool is_other = fd >= 0 ? fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)
                                : errno == ENXIO;  // a FIFO without a reader, a socket
  if (is_other) {
    if (fd >= 0) ::close(fd);
    return Error::make(Code::kInvalidArgument, "%.120s: recording: expected a regular file",
                       path.c_str());
  }
  if (fd >= 0) return TraceRecorder(std::make_unique<Impl>(path, fd));
  Error error = Error::from_errno(errno, "%.120s: recording", path.c_str());
  if (error.code == Code::kNotFound) error.code = Code::kInvalidArgument;
  return error;
}

TraceRecorder::TraceRecorder(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TraceRecorder::TraceRecorder(TraceRecorder&&) noexcept = default;
TraceRecorder& TraceRecorder::operator=(TraceRecorder&&) noexcept = default;
TraceRecorder::~TraceRecorder() = default;

void TraceRecorder::record(std::span<const BlockHash> hashes, std::uint64_t input_tokens,
                           std::uint64_t output_tokens) {
  record(hashes, input_tokens, output_tokens, unix_ms());
}
void TraceRecorder::record(std::span<const BlockHash> hashes, std::uint64_t input_tokens,
                           std::uint64_t output_tokens, std::uint64_t timestamp_ms) {
  impl_->record(hashes, input_tokens, output_tokens, timestamp_ms);
}

std::uint64_t TraceRecorder::recorded() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->recorded;
}
std::uint64_t TraceRecorder::dropped() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->dropped;
}

Status TraceRecorder::flush() {
  if (!impl_->is_ours()) return {};
  const std::lock_guard lock(impl_->mutex);
  return impl_->write_held();
}

Status TraceRecorder::close() {
  if (!impl_->is_ours()) return {};
  const std::lock_guard lock(impl_->mutex);
  if (impl_->fd < 0)
    return Error::make(Code::kInvalidArgument, "%.120s: recording: it was closed already",
                       impl_->path.c_str());
  const Status written = impl_->write_held();
  const bool is_closed = ::close(std::exchange(impl_->fd, -1)) == 0;
  CACHALOT_TRY(written);
  if (!is_closed) return impl_->error_of(errno);
  if (impl_->dropped == 0) return {};
  Error error = impl_->error_of(impl_->first_error);
  error.detail = impl_->dropped;
  return error;
}

}  // namespace cachalot
