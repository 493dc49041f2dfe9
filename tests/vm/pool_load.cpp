// An engine in a guest: stores and reads chains of blocks whose bytes follow from their names, checks every byte, and goes
// on whatever becomes of the keeper.
//
//   cachalot-pool-load PATH HOST SECONDS    for so long; then a line of JSON with what it counted
//   cachalot-pool-load PATH HOST hold       borrows blocks of the pool, says so, and stores into them until its end
// Exit: 0; 1: a byte was wrong; 2: it could not attach.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "pool/pool.h"
#include "testing/pool/chains.h"

namespace cachalot::pool {
namespace {

constexpr std::uint64_t kNsPerSecond = 1'000'000'000;
constexpr std::uint64_t kChains = 64,
                        kDepth = 8;  // of all guests: one finds what another one stored
constexpr std::uint64_t kNamesPerChain = 1000;

struct Counts {
  std::uint64_t committed = 0, duplicates = 0, refused = 0, read = 0, wrong = 0, failed_calls = 0;
  std::string last_error;
};

class Load {
 public:
  Load(Client& client, std::uint64_t block_bytes, std::uint64_t seed)
      : client_(client), block_bytes_(block_bytes), rng_(seed) {}

  void step() {
    const std::uint64_t first = rng_.next() % kChains * kNamesPerChain;
    if (rng_.next() % 2 == 0) {
      store(first);
    } else {
      read(first);
    }
  }
  const Counts& counts() const { return counts_; }

 private:
  void fail(const Error& error) {
    ++counts_.failed_calls;
    counts_.last_error = error.message;
    ::usleep(10'000);
  }
  void store(std::uint64_t first) {
    std::vector<std::vector<std::byte>> bytes;
    std::vector<PutItem> items;
    for (std::uint64_t i = 0; i < kDepth; ++i)
      bytes.push_back(payload_of(first + i, length_of(first + i, block_bytes_)));
    for (std::uint64_t i = 0; i < kDepth; ++i) items.push_back({hash_of(first + i), bytes[i]});
    std::vector<Verdict> verdicts(kDepth, Verdict::kBadItem);
    const Status stored = client_.put(nullptr, items, verdicts);
    if (!stored) return fail(stored.error());
    for (const Verdict verdict : verdicts) {
      counts_.committed += verdict == Verdict::kCommitted;
      counts_.duplicates += verdict == Verdict::kDuplicate;
      counts_.refused += verdict != Verdict::kCommitted && verdict != Verdict::kDuplicate;
    }
  }
  void read(std::uint64_t first) {
    std::vector<BlockHash> hashes;
    for (std::uint64_t i = 0; i < kDepth; ++i) hashes.push_back(hash_of(first + i));
    std::vector<Found> found(kDepth);
    const std::size_t hits = client_.lookup(hashes, found);
    std::vector<std::vector<std::byte>> buffers(hits);
    std::vector<std::byte*> to;
    for (std::size_t i = 0; i < hits; ++i) {
      buffers[i].resize(padded_bytes(found[i].entry.length));
      to.push_back(buffers[i].data());
    }
    const std::size_t valid = client_.read({found.data(), hits}, to);
    for (std::size_t i = 0; i < valid; ++i) {
      const std::uint64_t name = first + i;
      buffers[i].resize(found[i].entry.length);
      counts_.wrong += buffers[i] != payload_of(name, length_of(name, block_bytes_));
    }
    counts_.read += valid;
  }

  Client& client_;
  const std::uint64_t block_bytes_;
  base::Rng rng_;
  Counts counts_;
};

// Stores into blocks that it was lent and never commits, as a copy that is slow, or was stopped, does.
int hold(Client& client, const Access& access) {
  Result<Reservation> lent = client.reserve(16);
  if (!lent) {
    std::fprintf(stderr, "%s\n", lent.error().message);
    return 2;
  }
  const Result<OpenReservation> open = std::move(*lent).begin();
  if (!open) {
    std::fprintf(stderr, "%s\n", open.error().message);
    return 2;
  }
  std::printf("holds\n");
  std::fflush(stdout);
  for (std::uint64_t round = 0;; ++round) {
    const std::vector<std::byte> bytes(access.geometry.block_bytes, static_cast<std::byte>(round));
    for (const BlockUse& use : open->uses()) {
      std::uint64_t at = 0;
      access.for_each_extent(use.block, bytes.size(), [&](std::byte* to, std::uint64_t length) {
        access.domain().write_bulk(to, bytes.data() + at, length);
        at += length;
      });
    }
    access.domain().complete();
    ::usleep(1000);
  }
}

int run(const std::string& path, std::uint32_t host, const std::string& what) {
  Result<Pool> pool = Pool::open({path});
  if (!pool) {
    std::fprintf(stderr, "%s\n", pool.error().message);
    return 2;
  }
  ClientOptions options;
  options.fingerprint = "pool-load";
  options.host = host;
  options.recovery_ns = 120 * kNsPerSecond;
  Result<PoolClient> attached = pool->attach(options);
  if (!attached) {
    std::fprintf(stderr, "%s\n", attached.error().message);
    return 2;
  }
  Client& client = attached->client();
  if (what == "hold") return hold(client, pool->access());

  const std::uint64_t begun_ns = base::SteadyClock::read();
  const std::uint64_t until_ns = begun_ns + std::strtoull(what.c_str(), nullptr, 10) * kNsPerSecond;
  Load load(client, pool->access().geometry.block_bytes, begun_ns + host);
  std::printf("runs\n");
  std::fflush(stdout);
  while (base::SteadyClock::read() < until_ns) load.step();
  const Counts& counts = load.counts();
  std::printf(
      "{\"committed\": %llu, \"duplicates\": %llu, \"refused\": %llu, \"read\": %llu, \"wrong\": "
      "%llu, "
      "\"failed_calls\": %llu, \"last_error\": \"%s\"}\n",
      static_cast<unsigned long long>(counts.committed),
      static_cast<unsigned long long>(counts.duplicates),
      static_cast<unsigned long long>(counts.refused), static_cast<unsigned long long>(counts.read),
      static_cast<unsigned long long>(counts.wrong),
      static_cast<unsigned long long>(counts.failed_calls), counts.last_error.c_str());
  return counts.wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace cachalot::pool

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: cachalot-pool-load PATH HOST SECONDS|hold\n");
    return 2;
  }
  return cachalot::pool::run(argv[1], static_cast<std::uint32_t>(std::atoi(argv[2])), argv[3]);
}
