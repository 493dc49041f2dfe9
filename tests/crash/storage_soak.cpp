// `make soak-storage`: kills the process that uses a storage directory, at random moments: while it stores, reads
// and evicts, and while it opens the directory. After each kill the directory is opened and all that it holds is
// compared.
//
//   cachalot_storage_soak [--kills N] [--seed N] [--directory DIR]
//
// Ends after N kills, or with the first fault. Exit code 0: no fault. It is a fault if
//   1. a get reports other bytes than were put;
//   2. the directory does not open;
//   3. a block is gone that was reported as stored and that the limit cannot have evicted;
//   4. a block is gone that a get returned after the last kill, and nothing was stored since.

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "base/log.h"
#include "os/child.h"
#include "storage/file/file_backend.h"
#include "testing/storage/chains.h"

namespace cachalot::crash {
namespace {

using storage::Chain;
using storage::FileBackend;
using storage::Store;

constexpr std::size_t kBlocks = 8;  // of a chain
constexpr std::size_t kLimitChains = 64;
// Of the last chains that were stored, readers touch these. So at most three times as many chains are used after
// one of them was stored, and the limit never evicts them.
constexpr std::size_t kRecentChains = 16;

// Two classes of slots: segments are made and removed, too.
Chain chain_of(std::uint64_t name) {
  return Chain(name, kBlocks, name % 5 == 0 ? 69632 : 20480, 2);
}

// What a child tells.
struct Message {
  enum Kind : std::uint64_t { kOpening, kOpened, kStored } kind;
  std::uint64_t name = 0;    // of a chain
  std::uint64_t blocks = 0;  // of it, are stored
};

struct Setting {
  std::string directory;
  storage::IoBatch::Kind io = storage::IoBatch::Kind::kUring;
  bool sync = false;
};

Result<std::unique_ptr<Store>> open_store(const Setting& setting) {
  storage::FileOptions options{.directory = setting.directory, .segment_bytes = 1u << 20};
  options.io = setting.io;
  options.sync = setting.sync;
  CACHALOT_TRY_ASSIGN(std::unique_ptr<FileBackend> backend, FileBackend::open(options));
  if (!backend->is_valid())
    return Error::make(Code::kCorrupt, "the index and the tables do not agree");
  return Store::make(std::move(backend), {.limits = {.objects = kLimitChains * kBlocks}});
}

std::uint64_t put(Store& store, const Chain& chain) {
  std::vector<std::vector<storage::Bytes>> payloads;
  std::vector<storage::BlockPut> blocks;
  for (std::size_t i = 0; i < kBlocks; ++i) payloads.push_back(chain.payload(i));
  for (std::size_t i = 0; i < kBlocks; ++i)
    blocks.push_back({chain.hashes()[i], payloads[i], chain.tokens(i)});
  return store.put(storage::kSpace, nullptr, blocks, storage::soon());
}

struct Got {
  std::size_t leading = 0;  // blocks before the first that is gone
  std::size_t blocks = 0;
  bool is_right = true;
};

Got get(Store& store, std::uint64_t name) {
  Chain chain = chain_of(name);
  std::vector<std::vector<storage::Room>> rooms;
  std::vector<storage::Get> gets;
  for (std::size_t i = 0; i < kBlocks; ++i) {
    chain.clear(i);
    rooms.push_back(chain.room(i));
  }
  for (std::size_t i = 0; i < kBlocks; ++i) gets.push_back({chain.key(i), rooms[i]});
  store.get(gets, storage::soon());
  Got got;
  for (std::size_t i = 0; i < kBlocks; ++i) {
    if (!gets[i].status) continue;
    if (got.leading == i) ++got.leading;
    ++got.blocks;
    got.is_right = got.is_right && chain.is_right(i) && gets[i].tokens == chain.tokens(i);
  }
  return got;
}

// --- The child -------------------------------------------------------------------------------------

enum Exit { kDoesNotOpen = 11, kCannotTell = 12, kWrongBytes = 13, kLost = 14 };

// Two threads store chains, one reads those that were stored last. It ends by being killed.
class Load {
 public:
  Load(Store& store, int to, std::uint64_t first_name)
      : store_(store), to_(to), next_(first_name) {}

  [[noreturn]] void run() {
    std::thread writer([this] { write_chains(); }), reader([this] { read_chains(); });
    write_chains();
  }

 private:
  [[noreturn]] void write_chains() {
    for (;;) {
      const std::uint64_t name = next_.fetch_add(1);
      const Message message{Message::kStored, name, put(store_, chain_of(name))};
      {
        const std::lock_guard lock(mutex_);
        recent_.push_back(name);
        if (recent_.size() > kRecentChains / 2) recent_.pop_front();
      }
      // Less than PIPE_BUF: whole or not at all.
      if (::write(to_, &message, sizeof message) != sizeof message) _exit(kCannotTell);
    }
  }
  [[noreturn]] void read_chains() {
    for (std::uint64_t round = 0;; ++round) {
      std::uint64_t name = 0;
      {
        const std::lock_guard lock(mutex_);
        if (!recent_.empty()) name = recent_[round % recent_.size()];
      }
      if (name == 0) {
        std::this_thread::yield();
        continue;
      }
      const Got got = get(store_, name);
      if (!got.is_right) _exit(kWrongBytes);
      if (got.blocks != kBlocks) _exit(kLost);
    }
  }

  Store& store_;
  const int to_;
  std::atomic<std::uint64_t> next_;
  std::mutex mutex_;
  std::deque<std::uint64_t> recent_;
};

int run_child(const Setting& setting, int to, bool has_load, std::uint64_t first_name) {
  const auto tell = [to](Message::Kind kind) {
    const Message message{kind};
    return ::write(to, &message, sizeof message) == sizeof message;
  };
  if (!tell(Message::kOpening)) return kCannotTell;
  Result<std::unique_ptr<Store>> store = open_store(setting);
  if (!store) {
    std::fprintf(stderr, "%s\n", store.error().message);
    return kDoesNotOpen;
  }
  if (!tell(Message::kOpened)) return kCannotTell;
  if (!has_load) ::pause();
  Load(**store, to, first_name).run();
}

// --- The parent ------------------------------------------------------------------------------------

struct Tally {
  std::uint64_t in_recovery = 0, in_load = 0, idle = 0;  // kills
  std::uint64_t reported = 0;                            // blocks that puts reported
  std::uint64_t equal = 0, gone = 0;                     // of them, after the kill
  std::uint64_t compared = 0;                            // blocks, over all openings
  std::uint64_t damaged = 0;                             // objects whose seal did not match: misses
};

class Soak {
 public:
  Soak(std::string directory, std::uint64_t seed)
      : directory_(std::move(directory)), random_(seed) {}

  const Tally& tally() const { return tally_; }
  const std::string& fault() const { return fault_; }

  // One kill, and what is true after it. @return false: a fault
  bool kill_once() {
    setting_ = {directory_,
                random_.below(4) == 0 ? storage::IoBatch::Kind::kSystemCalls
                                      : storage::IoBatch::Kind::kUring,
                random_.below(8) == 0};
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return fail("no pipe");
    const os::FileDescriptor from(ends[0]);
    os::FileDescriptor to(ends[1]);
    const bool has_load = random_.below(5) < 3;
    Result<os::Child> child =
        os::Child::start([&] { return run_child(setting_, to.get(), has_load, next_name_); });
    if (!child) return fail(child.error().message);
    to = os::FileDescriptor();
    Message message;
    if (::read(from.get(), &message, sizeof message) != sizeof message) return fail("no message");
    const std::uint64_t load_ns = random_.below(4) == 0 ? 500'000'000 : 60'000'000;
    const std::uint64_t most_ns = has_load ? load_ns : opening_ns_ * 5 / 4;
    const std::uint64_t until_ns = base::SteadyClock::read() + random_.below(most_ns);
    while (base::SteadyClock::read() < until_ns)
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    child->send(SIGKILL);
    const Result<os::ChildStatus> ended = child->wait();
    if (!ended || ended->signal != SIGKILL)
      return fail("the child ended by itself: " + (ended ? ended->text() : std::string()));
    return take_messages(from.get(), has_load) && check(has_load);
  }

 private:
  bool fail(const std::string& what) {
    if (fault_.empty()) fault_ = what;
    return false;
  }

  bool take_messages(int from, bool has_load) {
    bool is_open = false;
    new_chains_.clear();
    for (Message message; ::read(from, &message, sizeof message) == sizeof message;) {
      is_open = true;
      if (message.kind != Message::kStored) continue;
      next_name_ = std::max(next_name_, message.name + 1);
      if (message.blocks == 0) return fail("a put was refused");
      new_chains_.emplace_back(message.name, message.blocks);
      recent_.emplace_back(message.name, message.blocks);
      tally_.reported += message.blocks;
    }
    next_name_ += 2;  // those of a put that was not reported
    while (recent_.size() > kRecentChains) recent_.pop_front();
    ++(!is_open ? tally_.in_recovery : has_load ? tally_.in_load : tally_.idle);
    return true;
  }

  // Compares all that the directory has.
  bool check(bool has_load) {
    const std::uint64_t start_ns = base::SteadyClock::read();
    Result<std::unique_ptr<Store>> opened = open_store(setting_);
    if (!opened) return fail(opened.error().message);
    Store& store = **opened;
    opening_ns_ = (opening_ns_ * 7 + base::SteadyClock::read() - start_ns) / 8;
    std::set<std::uint64_t> names;
    (void)store.backend().list(
        [&](const storage::ObjectHead& head) {
          names.insert(head.key.block.high);  // as Chain makes them
          return true;
        },
        storage::soon());
    std::map<std::uint64_t, std::size_t> found;
    for (const std::uint64_t name : names) {
      const Got got = get(store, name);
      if (!got.is_right) return fail("wrong bytes of chain " + std::to_string(name));
      found[name] = got.leading;
      tally_.compared += got.blocks;
    }
    tally_.damaged += store.counts().damaged_objects;
    for (const auto& [name, blocks] : new_chains_) {
      const std::size_t equal = std::min<std::size_t>(found[name], blocks);
      tally_.equal += equal;
      tally_.gone += blocks - equal;
    }
    for (const auto& [name, blocks] : recent_) {
      if (found[name] < blocks)
        return fail("a block of chain " + std::to_string(name) +
                    " is lost: " + std::to_string(found[name]) + " of " + std::to_string(blocks));
    }
    for (const auto& [name, blocks] : found_) {
      if (!has_load && found[name] < blocks)
        return fail("a block of chain " + std::to_string(name) + " was there and is gone");
    }
    found_ = std::move(found);
    return true;
  }

  const std::string directory_;
  base::Rng random_;
  Setting setting_;
  Tally tally_;
  std::string fault_;
  std::uint64_t opening_ns_ = 5'000'000;  // about
  std::uint64_t next_name_ = 1;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> new_chains_;  // since the kill before
  std::deque<std::pair<std::uint64_t, std::uint64_t>> recent_;       // names, blocks
  std::map<std::uint64_t, std::size_t> found_;                       // at the opening before
};

unsigned long long shown(std::uint64_t n) {
  return n;
}

int run(std::uint64_t kills, std::uint64_t seed, const std::string& parent) {
  std::string folder = parent + "/cachalot_storage_soak.XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    std::perror(folder.c_str());
    return 1;
  }
  Soak soak(folder + "/objects", seed);
  bool ok = true;
  for (std::uint64_t i = 0; ok && i < kills; ++i) ok = soak.kill_once();
  const Tally& tally = soak.tally();
  std::printf("seed %llu: %llu kills while opening, %llu under load, %llu after opening\n",
              shown(seed), shown(tally.in_recovery), shown(tally.in_load), shown(tally.idle));
  std::printf(
      "  blocks reported as stored: %llu; after the kill equal %llu, gone %llu (evicted by the "
      "limit)\n",
      shown(tally.reported), shown(tally.equal), shown(tally.gone));
  std::printf("  blocks compared: %llu; objects of evicted slots that were refused: %llu\n",
              shown(tally.compared), shown(tally.damaged));
  std::printf("  faults: %s\n", ok ? "0" : soak.fault().c_str());
  std::filesystem::remove_all(folder);
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace cachalot::crash

int main(int count, char** arguments) {
  std::uint64_t kills = 1000, seed = 1;
  std::string directory = "/var/tmp";
  for (int i = 1; i < count; i += 2) {
    const std::string flag = arguments[i];
    char* end = nullptr;
    const char* const value = i + 1 < count ? arguments[i + 1] : "";
    const std::uint64_t number = std::strtoull(value, &end, 10);
    const bool is_number = *value != '\0' && *end == '\0';
    if (flag == "--kills" && is_number) {
      kills = number;
    } else if (flag == "--seed" && is_number) {
      seed = number;
    } else if (flag == "--directory" && *value != '\0') {
      directory = value;
    } else {
      std::fprintf(stderr,
                   "usage: cachalot_storage_soak [--kills N] [--seed N] [--directory DIR]\n");
      return 2;
    }
  }
  cachalot::base::set_log_level(cachalot::base::LogLevel::kOff);
  return cachalot::crash::run(kills, seed, directory);
}
