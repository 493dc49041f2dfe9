#include "peers.h"

#include <arpa/inet.h>
#include <cachalot/opaque_client.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "base/rng.h"
#include "companions.h"
#include "kv_transfer.h"
#include "mooncake_peer.h"
#include "mooncake_script.h"
#include "os/child.h"
#include "os/file_descriptor.h"

namespace cachalot::apps::bench {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::uint64_t kBatch = 128;
constexpr int kNotStarted = 127;
constexpr const char* kPull = "256MiB";  // a second

// A pool of a host of its own, with the keeper that users run.
class Host {
 public:
  static Result<Host> start(const std::string& folder, const std::string& name,
                            std::uint64_t block_bytes, std::uint64_t blocks,
                            const std::vector<std::string>& more) {
    const std::string pool = "/dev/shm/cachalot_bench." + std::to_string(getpid()) + "." + name;
    std::vector<std::string> words = {"cachalot",
                                      "serve",
                                      "--pool",
                                      pool,
                                      "--create",
                                      "--block-bytes",
                                      std::to_string(block_bytes),
                                      "--capacity-blocks",
                                      std::to_string(blocks),
                                      "--peers",
                                      "file:" + folder,
                                      "--peer-listen",
                                      "tcp:127.0.0.1:0"};
    words.insert(words.end(), more.begin(), more.end());
    const std::string log = folder + "." + name + ".log";
    CACHALOT_TRY_ASSIGN(const std::string own, own_folder());
    CACHALOT_TRY_ASSIGN(os::Child keeper, os::Child::start([&] {
                          const int fd =
                              ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
                          dup2(fd, STDOUT_FILENO);
                          dup2(fd, STDERR_FILENO);
                          std::vector<char*> arguments;
                          for (std::string& word : words) arguments.push_back(word.data());
                          arguments.push_back(nullptr);
                          execv((own + "/cachalot").c_str(), arguments.data());
                          execvp("cachalot", arguments.data());
                          return kNotStarted;
                        }));
    Host host(std::move(keeper), pool);
    const OpaqueOptions options{
        .pool = {pool}, .fingerprint = "a model", .block_bytes = block_bytes, .block_tokens = 1};
    const std::uint64_t until_ns = now_ns() + 60 * kSecond;
    for (;;) {
      Result<OpaqueClient> client = OpaqueClient::attach(options);
      if (client) {  // the keeper serves
        host.client_ = std::make_unique<OpaqueClient>(*std::move(client));
        return host;
      }
      CACHALOT_TRY_ASSIGN(const std::optional<os::ChildStatus> ended, host.keeper_.wait_for(20));
      if (ended || now_ns() > until_ns) {
        return Error::make(Code::kIo, "bench peers: cachalot serve does not start: %s, see %s",
                           ended ? ended->text().c_str() : client.error().message, log.c_str());
      }
    }
  }
  Host(Host&& other) noexcept = default;
  Host& operator=(Host&&) = delete;
  ~Host() {
    client_.reset();
    std::error_code ignored;
    if (!pool_.empty()) std::filesystem::remove(pool_, ignored);
  }

  OpaqueClient& client() { return *client_; }

 private:
  Host(os::Child keeper, std::string pool) : keeper_(std::move(keeper)), pool_(std::move(pool)) {}

  os::Child keeper_;
  std::string pool_;
  std::unique_ptr<OpaqueClient> client_;
};

// Memory for a batch, with other bytes in each block.
class Blocks {
 public:
  Blocks(std::uint64_t block_bytes, std::uint64_t count) : bytes_(block_bytes * count) {
    base::Rng random(block_bytes);
    for (std::size_t i = 0; i < bytes_.size(); i += 512) bytes_[i] = std::byte(random.next());
    for (std::uint64_t i = 0; i < count; ++i) at_.push_back(bytes_.data() + i * block_bytes);
  }
  std::span<std::byte* const> room(std::size_t count) const { return std::span(at_).first(count); }
  std::vector<const std::byte*> sources(std::size_t count) const {
    return {at_.begin(), at_.begin() + static_cast<std::ptrdiff_t>(count)};
  }
  std::byte* data() { return bytes_.data(); }

 private:
  std::vector<std::byte> bytes_;
  std::vector<std::byte*> at_;
};

// The limit: a process that answers each request by some bytes, with blocking calls and no protocol.
class BareExchange {
 public:
  static Result<BareExchange> open(std::uint64_t most_bytes) {
    const os::FileDescriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const raw = reinterpret_cast<sockaddr*>(&address);
    if (bind(listener.get(), raw, size) != 0 || listen(listener.get(), 1) != 0 ||
        getsockname(listener.get(), raw, &size) != 0)
      return Error::from_errno(errno, "bench peers: listen at 127.0.0.1");
    CACHALOT_TRY_ASSIGN(os::Child owner, os::Child::start([&] {
                          const os::FileDescriptor peer(accept(listener.get(), nullptr, nullptr));
                          set_no_delay(peer.get());
                          const std::vector<std::byte> bytes(most_bytes, std::byte{1});
                          std::uint64_t wanted = 0;
                          while (receive(peer.get(), &wanted, sizeof wanted) &&
                                 send_all(peer.get(), bytes.data(), wanted)) {
                          }
                          return 0;
                        }));
    os::FileDescriptor connection(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(connection.get(), raw, size) != 0)
      return Error::from_errno(errno, "bench peers: connect to 127.0.0.1");
    set_no_delay(connection.get());
    return BareExchange(std::move(owner), std::move(connection), most_bytes);
  }
  // Asks for bytes, and copies them to where they belong.
  Status get(std::uint64_t bytes, std::byte* to) {
    if (!send_all(connection_.get(), &bytes, sizeof bytes) ||
        !receive(connection_.get(), memory_.data(), bytes))
      return Error::make(Code::kIo, "bench peers: the bare exchange has ended");
    std::memcpy(to, memory_.data(), bytes);
    return {};
  }

 private:
  BareExchange(os::Child owner, os::FileDescriptor connection, std::uint64_t most_bytes)
      : owner_(std::move(owner)), connection_(std::move(connection)), memory_(most_bytes) {}
  static void set_no_delay(int fd) {
    const int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  static bool receive(int fd, void* to, std::uint64_t bytes) {
    return recv(fd, to, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes);
  }
  static bool send_all(int fd, const void* from, std::uint64_t bytes) {
    const auto* at = static_cast<const std::byte*>(from);
    while (bytes != 0) {
      const ssize_t sent = send(fd, at, bytes, MSG_NOSIGNAL);
      if (sent <= 0) return false;
      at += sent;
      bytes -= static_cast<std::uint64_t>(sent);
    }
    return true;
  }

  os::Child owner_;
  os::FileDescriptor connection_;
  std::vector<std::byte> memory_;
};

Result<double> us_of(const std::function<Status()>& work) {
  const std::uint64_t begin_ns = now_ns();
  CACHALOT_TRY(work());
  return static_cast<double>(now_ns() - begin_ns) / 1e3;
}

// One host's chains, each read once by the other host.
class PeerReads {
 public:
  static Result<PeerReads> open(const std::string& folder, std::uint64_t block_bytes,
                                std::uint64_t blocks, std::uint64_t reader_blocks,
                                const std::vector<std::string>& of_owner) {
    CACHALOT_TRY_ASSIGN(Host owner, Host::start(folder, "owner", block_bytes, blocks, of_owner));
    CACHALOT_TRY_ASSIGN(Host reader, Host::start(folder, "reader", block_bytes, reader_blocks, {}));
    return PeerReads(std::move(owner), std::move(reader), block_bytes);
  }

  // Stores a chain at the owner.
  Result<std::vector<BlockHash>> put(std::uint64_t blocks) {
    std::vector<std::uint32_t> tokens(blocks);
    for (std::uint32_t& token : tokens) token = next_token_++;
    std::vector<BlockHash> hashes = owner_.client().hash_tokens(tokens);
    CACHALOT_TRY(owner_.client().store(nullptr, hashes, blocks_.sources(blocks)));
    return hashes;
  }
  // Waits until the reader has heard of all that was put. A connection keeps the order.
  Status settle() {
    CACHALOT_TRY_ASSIGN(const std::vector<BlockHash> last, put(1));
    const std::uint64_t until_ns = now_ns() + 60 * kSecond;
    while (now_ns() < until_ns) {
      CACHALOT_TRY_ASSIGN(const Prefetched found, reader_.client().prefetch(last, kSecond));
      if (found.in_pool == 1) return {};
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return Error::make(Code::kTimeout, "bench peers: the reader hears of no block in 60 s");
  }
  // From the peer's pool to the caller's memory, by way of the own pool. On a busy machine a peer may answer later than a
  // keeper waits for it, and rests then, a minute at most; what is missing is asked for again, and the time counts.
  Status get(std::span<const BlockHash> hashes) {
    const std::uint64_t until_ns = now_ns() + 300 * kSecond;
    CACHALOT_TRY_ASSIGN(Prefetched found, reader_.client().prefetch(hashes, 10 * kSecond));
    while (found.in_pool < hashes.size() && now_ns() < until_ns) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      CACHALOT_TRY_ASSIGN(found, reader_.client().prefetch(hashes, 10 * kSecond));
    }
    CACHALOT_TRY_ASSIGN(const std::size_t loaded,
                        reader_.client().load(hashes, blocks_.room(hashes.size())));
    if (loaded == hashes.size()) return {};
    return Error::make(Code::kIo, "bench peers: %zu of %zu blocks came, %zu are in the pool",
                       loaded, hashes.size(), found.in_pool);
  }
  OpaqueClient& owner() { return owner_.client(); }
  OpaqueClient& reader() { return reader_.client(); }
  Blocks& blocks() { return blocks_; }

 private:
  PeerReads(Host owner, Host reader, std::uint64_t block_bytes)
      : owner_(std::move(owner)), reader_(std::move(reader)), blocks_(block_bytes, kBatch) {}

  Host owner_, reader_;
  Blocks blocks_;
  std::uint32_t next_token_ = 1;
};

struct Samples {
  std::vector<double> own, limit, mooncake;
};

// Single blocks, in microseconds, or batches, in GB/s.
void add_rows(const std::string& name, const Samples& samples, std::uint64_t bytes, bool is_batch,
              Report& report) {
  const auto figure = [&](double us) {
    return is_batch ? static_cast<double>(bytes) / us / 1e3 : us;
  };
  const auto figures = [&](std::vector<double> times) {
    std::transform(times.begin(), times.end(), times.begin(), figure);
    return times;
  };
  const Spread own = spread_of(figures(samples.own));
  Row row{name,
          own.median,
          is_batch ? "GB/s" : "us",
          "exchange over TCP",
          median_of(figures(samples.limit)),
          is_batch ? ratio_at_least(0.85) : ratio_at_most(1.5)};
  add_spread(row, own);
  report.add(row);
  if (samples.mooncake.empty()) return;
  Row beside{name + "/mooncake", own.median, row.unit, "Mooncake's store",
             median_of(figures(samples.mooncake))};
  if (!is_batch && bytes == 16u << 10) beside.target = ratio_at_most(1.0 / 3);
  report.add(beside);
}

Status measure_gets(PeerReads& reads, std::uint64_t block_bytes, std::uint64_t count,
                    const Settings& settings, BareExchange& bare, MooncakePeer* mooncake,
                    Report& report) {
  // A batch takes as long as many single blocks.
  const std::uint64_t repeats = count == 1 ? settings.repeats * 4u : std::min(settings.repeats, 5u);
  std::vector<std::vector<BlockHash>> chains;
  for (std::uint64_t i = 0; i <= repeats; ++i) {
    CACHALOT_TRY_ASSIGN(std::vector<BlockHash> chain, reads.put(count));
    chains.push_back(std::move(chain));
  }
  CACHALOT_TRY(reads.settle());
  const std::uint64_t bytes = block_bytes * count;
  Samples samples;
  for (std::uint64_t i = 0; i <= repeats; ++i) {
    show_progress("peers " + size_name(block_bytes) + ", " + std::to_string(count));
    CACHALOT_TRY_ASSIGN(const double own, us_of([&] { return reads.get(chains[i]); }));
    CACHALOT_TRY_ASSIGN(const double limit,
                        us_of([&] { return bare.get(bytes, reads.blocks().data()); }));
    if (i == 0) continue;  // the first one warms up
    samples.own.push_back(own);
    samples.limit.push_back(limit);
  }
  if (mooncake != nullptr) {
    CACHALOT_TRY_ASSIGN(const double us, mooncake->ask(block_bytes, count));
    samples.mooncake.push_back(us);
  }
  const std::string name = size_name(block_bytes) + (count == 1 ? "" : "x" + std::to_string(count));
  add_rows(name, samples, bytes, count != 1, report);
  return {};
}

// What an engine waits for before it knows what it need not compute.
Status measure_lookups(PeerReads& reads, const Settings& settings, Report& report) {
  std::vector<std::vector<BlockHash>> chains;
  for (std::uint32_t i = 0; i < settings.repeats; ++i) {
    CACHALOT_TRY_ASSIGN(std::vector<BlockHash> chain, reads.put(kBatch));
    chains.push_back(std::move(chain));
  }
  CACHALOT_TRY(reads.settle());
  Samples samples;
  for (const std::vector<BlockHash>& chain : chains) {
    CACHALOT_TRY_ASSIGN(const double own, us_of([&]() -> Status {
                          CACHALOT_TRY_ASSIGN(const Prefetched found,
                                              reads.reader().prefetch(chain));
                          if (found.in_pool + found.in_storage == chain.size()) return {};
                          return Error::make(Code::kIo, "bench peers: %zu of %zu blocks are known",
                                             found.in_storage, chain.size());
                        }));
    CACHALOT_TRY(reads.get(chain));
    CACHALOT_TRY_ASSIGN(const double limit, us_of([&]() -> Status {
                          CACHALOT_TRY(reads.reader().lookup(chain));
                          return {};
                        }));
    samples.own.push_back(own);
    samples.limit.push_back(limit);
  }
  const Spread own = spread_of(samples.own);
  Row row{"lookup x128",   own.median, "us", "lookup in the own pool", median_of(samples.limit),
          ratio_at_most(2)};
  add_spread(row, own);
  report.add(row);
  return {};
}

// The owner's own engine, while a peer reads as much as it may and while none does.
Status measure_owner(const std::string& folder, const Settings& settings, Report& report) {
  constexpr std::uint64_t kBlockBytes = 256u << 10, kChains = 6;
  // The reader's pool has room for half of the chains: what it asks for is never there.
  CACHALOT_TRY_ASSIGN(PeerReads reads,
                      PeerReads::open(folder, kBlockBytes, (kChains + 2) * kBatch,
                                      kChains / 2 * kBatch, {"--peer-bandwidth", kPull}));
  std::vector<std::vector<BlockHash>> chains;
  for (std::uint64_t i = 0; i <= kChains; ++i) {
    CACHALOT_TRY_ASSIGN(std::vector<BlockHash> chain, reads.put(kBatch));
    chains.push_back(std::move(chain));
  }
  CACHALOT_TRY(reads.settle());
  const std::vector<BlockHash> own = std::move(chains.back());
  std::atomic<bool> pulls{false}, ends{false};
  std::atomic<std::uint64_t> pulled_blocks{0};
  std::thread puller([&] {
    for (std::uint64_t i = 0; !ends; ++i) {
      if (!pulls) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      } else if (const auto found = reads.reader().prefetch(chains[i % kChains], kSecond)) {
        pulled_blocks += found->in_pool;
      }
    }
  });
  Samples samples;
  std::uint64_t pulling_ns = 0;
  Status failure;
  for (std::uint32_t turn = 0; turn < settings.repeats * 2 && failure; ++turn) {
    show_progress("peers: the owner's loads");
    pulls = turn % 2 == 1;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const std::uint64_t begin_ns = now_ns();
    for (int i = 0; i < 20 && failure; ++i) {
      const Result<double> us = us_of([&]() -> Status {
        CACHALOT_TRY_ASSIGN(const std::size_t loaded,
                            reads.owner().load(own, reads.blocks().room(kBatch)));
        if (loaded == kBatch) return {};
        return Error::make(Code::kIo, "bench peers: the owner has %zu of its blocks", loaded);
      });
      if (!us) failure = us.error();
      if (us) (pulls ? samples.own : samples.limit).push_back(*us);
    }
    if (pulls) pulling_ns += now_ns() - begin_ns + 50'000'000;
  }
  ends = true;
  puller.join();
  CACHALOT_TRY(failure);
  const Spread beside = spread_of(samples.own);
  Row row{"owner's loads x128",     beside.median,      "us", "while no peer reads",
          median_of(samples.limit), ratio_at_most(1.05)};
  add_spread(row, beside);
  row.extras.emplace_back("pulled_gb_s", static_cast<double>(pulled_blocks * kBlockBytes) /
                                             static_cast<double>(pulling_ns));
  report.add(row);
  return {};
}

}  // namespace

Status bench_peers(const Settings& settings, Report& report) {
  std::string folder = settings.directory + "/cachalot_bench_peers.XXXXXX";
  if (mkdtemp(folder.data()) == nullptr)
    return Error::from_errno(errno, "--directory %.160s: make a folder in it",
                             settings.directory.c_str());
  // Children of this process must be started before it has threads.
  std::unique_ptr<MooncakePeer> mooncake;
  if (!settings.mooncake.empty()) {
    CACHALOT_TRY_ASSIGN(mooncake, MooncakePeer::open(settings.mooncake, kMooncakeStoreScript));
  }
  constexpr std::uint64_t kLargest = 2u << 20;
  CACHALOT_TRY_ASSIGN(BareExchange bare, BareExchange::open(kLargest * kBatch));
  Status done;
  for (const std::uint64_t bytes : {std::uint64_t{16} << 10, std::uint64_t{256} << 10, kLargest}) {
    const std::uint64_t blocks =
        settings.repeats * 4u + 4 + (std::min(settings.repeats, 5u) + 1) * kBatch;
    const auto measure = [&]() -> Status {
      CACHALOT_TRY_ASSIGN(PeerReads reads, PeerReads::open(folder, bytes, blocks, blocks, {}));
      for (const std::uint64_t count : {std::uint64_t{1}, kBatch})
        CACHALOT_TRY(measure_gets(reads, bytes, count, settings, bare, mooncake.get(), report));
      return {};
    };
    done = measure();
    if (!done) break;
  }
  if (done) {
    const std::uint64_t blocks = (settings.repeats + 1) * kBatch;
    const auto measure = [&]() -> Status {
      CACHALOT_TRY_ASSIGN(PeerReads reads, PeerReads::open(folder, 16u << 10, blocks, blocks, {}));
      return measure_lookups(reads, settings, report);
    };
    done = measure();
  }
  if (done) done = measure_owner(folder, settings, report);
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  report.note(
      "Two keepers with a pool each, 127.0.0.1; a block goes through the reader's pool into");
  report.note("memory. The exchange has one request and one answer, blocking calls, and a copy.");
  report.note(std::string("owner's loads: a peer reads other blocks, --peer-bandwidth ") + kPull +
              ".");
  return done;
}

}  // namespace cachalot::apps::bench
