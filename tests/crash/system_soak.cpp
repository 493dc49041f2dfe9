// `make soak-system`: a whole system in trouble. Engines share a pool whose storage is a real Redis that stalls, dies and
// comes back; engines and keepers are killed; subscribers of KV events do not read.
//
//   cachalot_system_soak [--seconds N] [--domain coherent|noncoherent] [--stalls N] [--seed N] [--pause-ms N]
//
// --pause-ms: an engine's rest after each prompt, on a machine that has other work.
// With --stalls only Redis is stopped, N times for eight seconds, while the pool makes more changes than the archive's
// queue holds. Exit code 0: no fault. It is a fault if
//   1. a block has other bytes than were stored under its hash;
//   2. a prefetch takes more than a second beyond its time, of which it promises 0.2;
//   3. a keeper that is told to stop runs for more than five seconds, or, with --stalls, whose storage works again, three;
//   4. storage that works again is out of use, or has not written what waits, half a minute later;
//   5. a keeper has more memory at the end than twice that of its first minute, and 64 MiB more;
//   6. a subscriber that reads has no answer to its replay request within five seconds.

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/rng.h"
#include "cachalot/opaque_client.h"
#include "os/child.h"
#include "pool/pool.h"
#include "system_soak_subscribers.h"
#include "testing/storage/redis_servers.h"

namespace cachalot::crash {
namespace {

using base::SteadyClock;

constexpr std::uint64_t kMs = 1'000'000, kSecond = 1000 * kMs;
constexpr std::size_t kEngines = 2;
constexpr std::uint64_t kBlockBytes = 256;
constexpr std::size_t kPoolBlocks = 8192;
constexpr std::uint64_t kPrefetchGraceNs = kSecond, kBackNs = 30 * kSecond;
// Storage that hangs is waited for two seconds.
constexpr std::uint64_t kStopNs = 5 * kSecond, kStopWithStorageNs = 3 * kSecond;

struct Options {
  std::uint64_t seconds = 60, stalls = 0, seed = 1, pause_ms = 0;
  std::string domain = "coherent";
};

// Shared with the engines.
struct Board {
  std::atomic<bool> is_paused{false};
  std::atomic<std::uint64_t> blocks_verified{0}, blocks_stored{0}, blocks_fetched{0};
  std::atomic<std::uint64_t> prefetches{0}, late_prefetches{0}, latest_ns{0}, wrong_blocks{0};
  SubscriberBoard subscribers;
};

std::uint64_t word_of(const BlockHash& hash, std::size_t at) {
  return base::mix64(hash.low ^ (hash.high + at));
}

// An engine: asks, loads and compares, stores. It ends with its keeper's patience or by a signal.
class EngineLoop {
 public:
  EngineLoop(Board& board, std::string pool, std::uint64_t seed, std::uint64_t pause_ms)
      : board_(board), pool_(std::move(pool)), rng_(seed), pause_ms_(pause_ms) {}

  int run() {
    for (;;) {
      OpaqueOptions options;
      options.pool = {pool_};
      options.fingerprint = "soak";
      options.block_bytes = kBlockBytes;
      options.block_tokens = 4;
      Result<OpaqueClient> client = OpaqueClient::attach(options);
      if (!client) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        continue;
      }
      while (one_prompt(*client)) {
      }
    }
  }

 private:
  bool one_prompt(OpaqueClient& client) {
    if (board_.is_paused) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return true;
    }
    // Some prompts come again and again, most only once.
    const std::uint64_t name = rng_.chance(0.3) ? rng_.below(400) : rng_.next() % 1'000'000'000;
    std::vector<std::uint32_t> tokens(4 * (20 + name % 60));
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<std::uint32_t>(name * 4096 + i);
    const std::vector<BlockHash> hashes = client.hash_tokens(tokens);
    if (name < 400) prefetch(client, hashes);
    load(client, hashes);
    std::vector<const std::byte*> from;
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      for (std::size_t at = 0; at < kWords; ++at) pages_[i][at] = word_of(hashes[i], at);
      from.push_back(reinterpret_cast<const std::byte*>(pages_[i].data()));
    }
    const Result<Stored> stored = client.store(nullptr, hashes, from);
    if (stored) board_.blocks_stored += stored->blocks;
    if (pause_ms_ != 0) std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms_));
    return true;
  }
  void prefetch(OpaqueClient& client, const std::vector<BlockHash>& hashes) {
    const std::uint64_t wait_ns = rng_.below(3) * 50 * kMs;
    const std::uint64_t begin_ns = SteadyClock::read();
    const Result<Prefetched> found = client.prefetch(hashes, wait_ns);
    const std::uint64_t took_ns = SteadyClock::read() - begin_ns;
    ++board_.prefetches;
    if (found) board_.blocks_fetched += found->in_storage;
    const std::uint64_t late_ns = took_ns > wait_ns ? took_ns - wait_ns : 0;
    if (late_ns > kPrefetchGraceNs) ++board_.late_prefetches;
    std::uint64_t latest_ns = board_.latest_ns;
    while (late_ns > latest_ns && !board_.latest_ns.compare_exchange_weak(latest_ns, late_ns)) {
    }
  }
  void load(OpaqueClient& client, const std::vector<BlockHash>& hashes) {
    std::vector<std::byte*> to;
    for (std::size_t i = 0; i < hashes.size(); ++i)
      to.push_back(reinterpret_cast<std::byte*>(pages_[i].data()));
    const Result<std::size_t> loaded = client.load(hashes, to);
    for (std::size_t i = 0; loaded && i < *loaded; ++i) {
      for (std::size_t at = 0; at < kWords; ++at) {
        if (pages_[i][at] == word_of(hashes[i], at)) continue;
        ++board_.wrong_blocks;
        break;
      }
      ++board_.blocks_verified;
    }
  }

  static constexpr std::size_t kWords = kBlockBytes / 8;
  Board& board_;
  const std::string pool_;
  base::Rng rng_;
  const std::uint64_t pause_ms_;
  std::array<std::array<std::uint64_t, kWords>, 80> pages_{};
};

// The processes, and what happens to them. @threads one, which starts all children
class System {
 public:
  System(const Options& options, Board& board)
      : options_(options),
        board_(board),
        rng_(options.seed),
        folder_("/tmp/cachalot_system_soak." + std::to_string(getpid())),
        pool_("/dev/shm/cachalot_system_soak." + std::to_string(getpid())) {}
  ~System() {
    keeper_.reset();
    engines_.clear();
    std::filesystem::remove(pool_);
    std::filesystem::remove_all(folder_);
  }

  bool begin() {
    std::filesystem::create_directories(folder_);
    Result<storage::TestServer> redis = storage::start_redis(
        folder_, {"--maxmemory", "256mb", "--maxmemory-policy", "allkeys-lru"});
    if (!redis) return fault(redis.error().message);
    redis_.emplace(*std::move(redis));
    events_port_ = storage::free_port();
    replay_port_ = storage::free_port();
    if (!start_keeper()) return false;
    for (std::size_t i = 0; i < kEngines; ++i) start_engine(i);
    Result<os::Child> subscribers = os::Child::start(
        [this] { return run_subscribers(board_.subscribers, events_port_, replay_port_); });
    if (subscribers) subscribers_.emplace(*std::move(subscribers));
    return true;
  }

  // The issue's own case.
  bool stall() {
    const std::uint64_t stored = board_.blocks_stored;
    redis_->stop();
    nap(8 * kSecond);
    redis_->resume();
    std::printf("  stood still for 8 s, %llu changes\n",
                static_cast<unsigned long long>(2 * (board_.blocks_stored - stored)));
    return await_storage() && stop_keeper() && start_keeper();
  }
  bool inject() {
    nap((200 + rng_.below(2000)) * kMs);
    switch (rng_.below(8)) {
      case 0:
        redis_->stop();
        nap((1 + rng_.below(8)) * kSecond);
        redis_->resume();
        return await_storage();
      case 1:
        redis_->kill();
        nap(rng_.below(3000) * kMs);
        if (!redis_->restart()) return fault("Redis does not start again");
        return await_storage();
      case 2:
      case 3: {
        const std::size_t i = rng_.below(kEngines);
        engines_.erase(engines_.begin() + static_cast<std::ptrdiff_t>(i));
        start_engine(i);
        return true;
      }
      case 4:
        keeper_->send(SIGKILL);
        (void)keeper_->wait();
        return start_keeper();
      case 5:
        return stop_keeper() && start_keeper();
      case 6: {
        redis_->stop();
        nap(rng_.below(4000) * kMs);
        const bool has_stopped = stop_keeper();
        redis_->resume();
        return has_stopped && start_keeper() && await_storage();
      }
      default:
        keeper_->send(SIGSTOP);
        nap((100 + rng_.below(3000)) * kMs);
        keeper_->send(SIGCONT);
        return true;
    }
  }
  bool has_fault() {
    if (board_.wrong_blocks != 0) return !fault("a block has wrong bytes");
    if (board_.late_prefetches != 0) return !fault("a prefetch took longer than it promises");
    if (board_.subscribers.late_replays != 0)
      return !fault("a replay request was not answered in time");
    const std::uint64_t now_kib = keeper_kib();
    if (first_kib_ == 0 && SteadyClock::read() - keeper_since_ns_ > 60 * kSecond)
      first_kib_ = now_kib;
    most_kib_ = std::max(most_kib_, now_kib);
    if (first_kib_ != 0 && now_kib > 2 * first_kib_ + (64u << 10))
      return !fault("the keeper's memory has grown");
    return false;
  }
  void print(double seconds) const {
    const auto value = [](const std::atomic<std::uint64_t>& count) {
      return static_cast<unsigned long long>(count.load());
    };
    std::printf(
        "%6.0f s: %llu blocks stored, %llu verified, %llu found in storage; %llu prefetches, the "
        "latest "
        "%.0f ms beyond its wait; longest stop %.2f s, storage back after %.1f s at most; keeper "
        "%llu MiB "
        "(most %llu); replays %llu, first answer after %.0f ms at most\n",
        seconds, value(board_.blocks_stored), value(board_.blocks_verified),
        value(board_.blocks_fetched), value(board_.prefetches),
        static_cast<double>(board_.latest_ns) / 1e6, static_cast<double>(longest_stop_ns_) / 1e9,
        static_cast<double>(longest_back_ns_) / 1e9,
        static_cast<unsigned long long>(keeper_kib() >> 10),
        static_cast<unsigned long long>(most_kib_ >> 10), value(board_.subscribers.replays),
        static_cast<double>(board_.subscribers.slowest_ns) / 1e6);
    std::fflush(stdout);
  }

 private:
  static void nap(std::uint64_t ns) { std::this_thread::sleep_for(std::chrono::nanoseconds(ns)); }
  static bool fault(const std::string& what) {
    std::printf("FAULT: %s\n", what.c_str());
    return false;
  }

  void start_engine(std::size_t i) {
    const std::uint64_t seed = rng_.next();
    Result<os::Child> child = os::Child::start([this, seed] {
      base::set_log_level(base::LogLevel::kOff);
      return EngineLoop(board_, pool_, seed, options_.pause_ms).run();
    });
    if (child)
      engines_.insert(engines_.begin() + static_cast<std::ptrdiff_t>(std::min(i, engines_.size())),
                      *std::move(child));
  }
  bool start_keeper() {
    const std::string log = folder_ + "/keeper.log", ready = folder_ + "/ready.json";
    std::filesystem::remove(ready);
    const std::vector<std::string> words = {CACHALOT_BINARY,
                                            "serve",
                                            "--pool",
                                            pool_,
                                            "--create",
                                            "--block-bytes",
                                            std::to_string(kBlockBytes),
                                            "--capacity-blocks",
                                            std::to_string(kPoolBlocks),
                                            "--clients",
                                            "8",
                                            "--domain",
                                            options_.domain,
                                            "--json",
                                            ready,
                                            "--storage",
                                            "redis://127.0.0.1:" + std::to_string(redis_->port()),
                                            "--kv-events",
                                            "tcp://127.0.0.1:" + std::to_string(events_port_),
                                            "--kv-events-replay",
                                            "tcp://127.0.0.1:" + std::to_string(replay_port_),
                                            "--metrics",
                                            "127.0.0.1:0"};
    Result<os::Child> child = os::Child::start([&] {
      const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      ::dup2(out, 1);
      ::dup2(out, 2);
      std::vector<char*> arguments;
      for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
      arguments.push_back(nullptr);
      ::execv(arguments[0], arguments.data());
      return 127;
    });
    if (!child) return fault(child.error().message);
    keeper_.emplace(*std::move(child));
    keeper_since_ns_ = SteadyClock::read();
    first_kib_ = 0;
    while (!std::filesystem::exists(ready) || std::filesystem::file_size(ready) == 0) {
      const Result<std::optional<os::ChildStatus>> ended = keeper_->wait_for(5);
      if (!ended || *ended) return fault("the keeper does not start: " + text_of(log));
      if (SteadyClock::read() - keeper_since_ns_ > 30 * kSecond)
        return fault("the keeper does not serve: " + text_of(log));
    }
    if (!opened_) {
      Result<pool::Pool> pool = pool::Pool::open({pool_}, {});
      if (!pool) return fault(pool.error().message);
      opened_.emplace(*std::move(pool));
    }
    return true;
  }
  static std::string text_of(const std::string& path) {
    std::ifstream file(path);
    std::string text((std::istreambuf_iterator<char>(file)), {});
    return text.size() > 2000 ? text.substr(text.size() - 2000) : text;
  }
  bool stop_keeper() {
    const std::uint64_t begin_ns = SteadyClock::read();
    keeper_->send(SIGTERM);
    const Result<std::optional<os::ChildStatus>> ended = keeper_->wait_for(10 * kStopNs / kMs);
    const std::uint64_t took_ns = SteadyClock::read() - begin_ns;
    longest_stop_ns_ = std::max(longest_stop_ns_, took_ns);
    if (took_ns > (options_.stalls != 0 ? kStopWithStorageNs : kStopNs))
      return fault("a keeper did not stop in its time");
    if (!ended || !*ended || !(**ended).ok())
      return fault("a keeper stopped with a fault: " + text_of(folder_ + "/keeper.log"));
    return true;
  }
  // Storage is in use, and has written what waits, once the engines pause.
  bool await_storage() {
    const std::uint64_t begin_ns = SteadyClock::read();
    board_.is_paused = true;
    bool is_back = false;
    while (!is_back && SteadyClock::read() - begin_ns < kBackNs) {
      nap(5 * kMs);
      const std::optional<pool::StorageState> state = opened_->state().read_storage();
      is_back = state && state->is_up && state->queued_blocks == 0;
    }
    board_.is_paused = false;
    longest_back_ns_ = std::max(longest_back_ns_, SteadyClock::read() - begin_ns);
    return is_back ||
           fault("storage works again, and is not used: " + text_of(folder_ + "/keeper.log"));
  }
  std::uint64_t keeper_kib() const {
    std::ifstream file("/proc/" + std::to_string(keeper_->pid()) + "/status");
    for (std::string line; std::getline(file, line);) {
      if (line.rfind("RssAnon:", 0) == 0) return std::strtoull(line.c_str() + 8, nullptr, 10);
    }
    return 0;
  }

  const Options options_;
  Board& board_;
  base::Rng rng_;
  const std::string folder_, pool_;
  std::optional<storage::TestServer> redis_;
  std::optional<os::Child> keeper_, subscribers_;
  std::vector<os::Child> engines_;
  std::optional<pool::Pool> opened_;
  std::uint16_t events_port_ = 0, replay_port_ = 0;
  std::uint64_t keeper_since_ns_ = 0, longest_stop_ns_ = 0, longest_back_ns_ = 0;
  std::uint64_t first_kib_ = 0, most_kib_ = 0;
};

Options parse(int count, char** arguments) {
  Options options;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string flag = arguments[i];
    if (flag == "--domain") {
      options.domain = arguments[i + 1];
      continue;
    }
    std::uint64_t* const number = flag == "--seconds"    ? &options.seconds
                                  : flag == "--stalls"   ? &options.stalls
                                  : flag == "--seed"     ? &options.seed
                                  : flag == "--pause-ms" ? &options.pause_ms
                                                         : nullptr;
    if (number == nullptr) {
      std::fprintf(stderr, "cachalot_system_soak: unknown flag %s\n", flag.c_str());
      std::exit(2);
    }
    *number = std::strtoull(arguments[i + 1], nullptr, 10);
  }
  return options;
}

int soak(const Options& options) {
  void* const memory =
      ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  auto& board = *new (memory) Board;
  System system(options, board);
  const std::uint64_t begin_ns = SteadyClock::read();
  const auto seconds = [&] { return static_cast<double>(SteadyClock::read() - begin_ns) / 1e9; };
  bool is_right = system.begin();
  std::uint64_t rounds = 0;
  double printed = 0;
  const auto goes_on = [&] {
    return options.stalls != 0 ? rounds < options.stalls
                               : seconds() < static_cast<double>(options.seconds);
  };
  for (; is_right && goes_on(); ++rounds) {
    is_right = (options.stalls != 0 ? system.stall() : system.inject()) && !system.has_fault();
    if (seconds() - printed < 60) continue;
    printed = seconds();
    system.print(printed);
  }
  system.print(seconds());
  std::printf("%s: %llu rounds, %s\n", options.domain.c_str(),
              static_cast<unsigned long long>(rounds), is_right ? "no fault" : "a fault");
  return is_right ? 0 : 1;
}

}  // namespace
}  // namespace cachalot::crash

int main(int count, char** arguments) {
  return cachalot::crash::soak(cachalot::crash::parse(count, arguments));
}
