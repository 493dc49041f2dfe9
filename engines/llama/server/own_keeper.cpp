#include "own_keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cinttypes>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "os/child.h"
#include "os/file_descriptor.h"

namespace cachalot::llama {
namespace {

constexpr std::uint64_t kSecondNs = 1'000'000'000;
constexpr std::uint64_t kSpareBlocksPerClient =
    16;  // grants of 8 blocks, and those that are asked for meanwhile

struct Pipe {
  os::FileDescriptor from, to;
};

Result<Pipe> make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return Error::from_errno(errno, "a pipe for `cachalot serve`");
  return Pipe{os::FileDescriptor(ends[0]), os::FileDescriptor(ends[1])};
}

// Beside this program, where a build has it, in PATH.
Result<std::string> find_program() {
  std::array<char, PATH_MAX> file;
  const ssize_t length = readlink("/proc/self/exe", file.data(), file.size());
  if (length < 0) return Error::from_errno(errno, "/proc/self/exe: reading");
  const std::string own(file.data(), static_cast<std::size_t>(length));
  const std::string folder = own.substr(0, own.rfind('/'));
  std::vector<std::string> places = {folder + "/cachalot",
                                     folder + "/../../../apps/cachalot/cachalot"};
  const char* const variable = std::getenv("PATH");
  const std::string path = variable == nullptr ? "" : variable;
  for (std::size_t at = 0; at < path.size();) {
    const std::size_t end = std::min(path.find(':', at), path.size());
    if (path[at] == '/') places.push_back(path.substr(at, end - at) + "/cachalot");
    at = end + 1;
  }
  for (const std::string& place : places) {
    if (access(place.c_str(), X_OK) == 0) return place;
  }
  return Error::make(Code::kUnsupported,
                     "--storage: the program `cachalot` is neither in %.150s nor in PATH",
                     folder.c_str());
}

Result<std::vector<std::string>> words_of(const OwnKeeperOptions& options) {
  const std::uint64_t clients = options.clients + 1;  // storage is one
  const std::uint64_t blocks = options.memory_bytes / options.block_bytes;
  const std::uint64_t spare = kSpareBlocksPerClient * clients;
  if (blocks < 2 * spare) {
    return Error::make(
        Code::kInvalidArgument,
        "--host-cache is %" PRIu64 " bytes, %" PRIu64
        " blocks: with --storage and this number of --slots expected at least %" PRIu64 " bytes",
        options.memory_bytes, blocks, 2 * spare * options.block_bytes);
  }
  CACHALOT_TRY_ASSIGN(const std::string program, find_program());
  std::vector<std::string> words = {program,
                                    "serve",
                                    "--pool",
                                    "memfd:cachalot-llama",
                                    "--create",
                                    "--block-bytes",
                                    std::to_string(options.block_bytes),
                                    "--capacity-blocks",
                                    std::to_string(blocks - spare),
                                    "--spare-blocks",
                                    std::to_string(spare),
                                    "--clients",
                                    std::to_string(clients),
                                    "--storage",
                                    options.storage};
  if (!options.storage_capacity.empty())
    words.insert(words.end(), {"--storage-capacity", options.storage_capacity});
  return words;
}

// In the child. Returns only where it cannot run.
int become(const std::vector<std::string>& words, int out, int errors) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  // A Ctrl-C in a terminal is for the engine, which ends its keeper after its requests.
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (dup2(out, STDOUT_FILENO) < 0 || dup2(errors, STDERR_FILENO) < 0) return 3;
  execv(words[0].c_str(), arguments.data());
  return 3;
}

// Reads what is there. @return false: the other end is closed
bool read_some(int from, std::string& text) {
  char bytes[4096];
  const ssize_t got = read(from, bytes, sizeof bytes);
  if (got > 0) text.append(bytes, static_cast<std::size_t>(got));
  return got > 0 || (got < 0 && errno == EINTR);
}

Error refusal(int exit_code, std::string said) {
  constexpr std::string_view kPrefix = "cachalot: ";
  while (!said.empty() && said.back() == '\n') said.pop_back();
  if (said.starts_with(kPrefix)) said.erase(0, kPrefix.size());
  return Error::make(exit_code == 2 ? Code::kInvalidArgument : Code::kIo, "--storage: %.180s",
                     said.empty() ? "`cachalot serve` ended without a word" : said.c_str());
}

}  // namespace

struct OwnKeeper::Impl {
  ~Impl() {
    child->send(SIGTERM);
    constexpr std::uint64_t kPatienceMs = 10'000;
    const Result<std::optional<os::ChildStatus>> ended = child->wait_for(kPatienceMs);
    if (!ended || !*ended) child->send(SIGKILL);
    child.reset();
    if (log.joinable()) log.join();
  }

  // Waits for the ready line.
  Status read_ready();

  std::optional<os::Child> child;
  os::FileDescriptor out, errors;
  std::string pool;
  std::thread log;  // passes on what the child logs
};

Status OwnKeeper::Impl::read_ready() {
  const std::uint64_t deadline_ns = base::SteadyClock::read() + 60 * kSecondNs;
  std::string line, said;
  for (;;) {
    pollfd sources[] = {{out.get(), POLLIN, 0}, {errors.get(), POLLIN, 0}};
    poll(sources, 2, 100);
    if (sources[1].revents != 0) (void)read_some(errors.get(), said);
    const bool is_open = sources[0].revents == 0 || read_some(out.get(), line);
    if (line.find('\n') != std::string::npos) break;
    if (is_open && base::SteadyClock::read() < deadline_ns) continue;
    if (is_open) return Error::make(Code::kTimeout, "--storage: `cachalot serve` is not ready");
    CACHALOT_TRY_ASSIGN(const os::ChildStatus ended, child->wait());
    while (read_some(errors.get(), said)) {
    }
    return refusal(ended.exit_code, std::move(said));
  }
  constexpr std::string_view kField = " pool=";
  const std::size_t begin = line.find(kField);
  if (begin == std::string::npos)
    return Error::make(Code::kInternal, "`cachalot serve` said \"%.150s\"", line.c_str());
  const std::size_t at = begin + kField.size();
  pool = line.substr(at, line.find_first_of(" \n", at) - at);
  log = std::thread([from = errors.get(), text = std::move(said)]() mutable {
    do {
      std::fputs(text.c_str(), stderr);
      text.clear();
    } while (read_some(from, text));
  });
  return {};
}

OwnKeeper::OwnKeeper(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
OwnKeeper::OwnKeeper(OwnKeeper&&) noexcept = default;
OwnKeeper& OwnKeeper::operator=(OwnKeeper&&) noexcept = default;
OwnKeeper::~OwnKeeper() = default;

const std::string& OwnKeeper::pool() const {
  return impl_->pool;
}

Result<OwnKeeper> OwnKeeper::start(const OwnKeeperOptions& options) {
  CACHALOT_TRY_ASSIGN(const std::vector<std::string> words, words_of(options));
  CACHALOT_TRY_ASSIGN(Pipe out, make_pipe());
  CACHALOT_TRY_ASSIGN(Pipe errors, make_pipe());
  CACHALOT_TRY_ASSIGN(os::Child child, os::Child::start([&] {
                        return become(words, out.to.get(), errors.to.get());
                      }));
  auto impl = std::make_unique<Impl>();
  impl->child.emplace(std::move(child));
  impl->out = std::move(out.from);
  impl->errors = std::move(errors.from);
  // Only the child has the other ends now.
  out.to = os::FileDescriptor();
  errors.to = os::FileDescriptor();
  CACHALOT_TRY(impl->read_ready());
  return OwnKeeper(std::move(impl));
}

}  // namespace cachalot::llama
