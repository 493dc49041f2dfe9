#include "share_tp.h"

#include <cachalot/client.h>
#include <cachalot/keeper.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>

#include "base/huge_allocator.h"
#include "base/rng.h"

namespace cachalot::apps::bench {
namespace {

using memory::DomainKind;

// Of a rank with all 8 heads: so many groups it has. 0: none, which is the limit.
constexpr std::uint32_t kGroups[] = {0, 1, 2, 4, 8};
constexpr std::size_t kWays = std::size(kGroups);
constexpr std::uint32_t kHeads = 8;

struct CopyModel {
  const char* name;
  const char* layout;
  const char* block_order;
};
constexpr CopyModel kCopyModels[] = {
    {"nhd", "vllm_bknhc", "layer_first"},
    {"hnd", "vllm_bhnkc", "layer_first_packed_hnd"},
};

KvGeometry qwen3_32b() {
  return *KvGeometry::of_model("Qwen3-32B", DType::kBf16, 16);
}
// A pool block of one group is a line.
KvGeometry smallest() {
  KvGeometry g;
  g.layers = 1;
  g.kv_heads = kHeads;
  g.head_dim = 32;
  g.dtype = DType::kI8;
  g.block_tokens = 1;
  return g;
}

// A pool for each way, and a client of it.
class Ways {
 public:
  // @param blocks  of the rank, that each pool has room for
  static Result<Ways> start(DomainKind domain, const KvGeometry& geometry, std::uint64_t blocks,
                            const char* block_order) {
    Ways ways;
    for (const std::uint32_t groups : kGroups) {
      const std::uint32_t pieces = std::max(groups, 1u);
      KeeperOptions serve;
      serve.pool = "/dev/shm/cachalot-bench-share-tp." + std::to_string(getpid()) + "." +
                   std::to_string(groups);
      serve.block_bytes = geometry.block_bytes() / pieces;
      serve.capacity_blocks = blocks * pieces;
      serve.domain = domain == DomainKind::kCoherent ? "coherent" : "noncoherent";
      CACHALOT_TRY_ASSIGN(EmbeddedKeeper keeper, EmbeddedKeeper::start(serve));
      ways.keepers_.push_back(std::make_unique<EmbeddedKeeper>(std::move(keeper)));
      ClientOptions options{.pool = {serve.pool}, .model = "bench@1", .geometry = geometry};
      options.block_order = block_order;
      options.share_tp = groups;
      CACHALOT_TRY_ASSIGN(Client client, Client::attach(options));
      ways.clients_.push_back(std::make_unique<Client>(std::move(client)));
    }
    return ways;
  }
  Client& client(std::size_t way) { return *clients_[way]; }

 private:
  std::vector<std::unique_ptr<EmbeddedKeeper>> keepers_;
  std::vector<std::unique_ptr<Client>> clients_;  // detach first
};

// The pages of an engine.
class Pages {
 public:
  Pages(const KvGeometry& geometry, const char* layout, std::uint32_t blocks)
      : tensor_bytes_(blocks * geometry.layer_bytes()),
        memory_(geometry.layers * tensor_bytes_),
        pages_(blocks) {
    for (std::size_t i = 0; i < memory_.size(); i += 64)
      memory_[i] = static_cast<std::byte>(rng_.next());
    std::iota(pages_.begin(), pages_.end(), PageId{0});
    cache_.layout = layout;
    cache_.pages = blocks;
    for (std::uint32_t layer = 0; layer < geometry.layers; ++layer)
      cache_.tensors.push_back({memory_.data() + layer * tensor_bytes_, tensor_bytes_});
  }
  const PagedCache& cache() const { return cache_; }
  std::span<const PageId> ids() const { return pages_; }
  // Other ones of them, in random order.
  std::span<const PageId> draw(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i)
      std::swap(pages_[i], pages_[i + rng_.below(pages_.size() - i)]);
    return std::span(pages_).first(count);
  }

 private:
  std::uint64_t tensor_bytes_;
  base::HugeVector<std::byte> memory_;
  std::vector<PageId> pages_;
  base::Rng rng_{1};
  PagedCache cache_;
};

std::vector<BlockHash> prompt_of(const Client& client, std::uint64_t number, std::size_t blocks) {
  std::vector<std::uint32_t> tokens(blocks * client.geometry().block_tokens);
  base::Rng rng(number);
  for (std::uint32_t& token : tokens) token = static_cast<std::uint32_t>(rng.below(100'000));
  return client.hash_tokens(tokens);
}

std::string name_of(const char* what, std::size_t way, DomainKind domain) {
  return std::string(what) + "/groups_" + std::to_string(kGroups[way]) + suffix(domain);
}

void add_rows(const char* what, const char* unit, DomainKind domain,
              const std::vector<double> (&samples)[kWays], Report& report) {
  for (std::size_t way = 1; way < kWays; ++way) {
    const Spread spread = spread_of(samples[way]);
    Row row{name_of(what, way, domain), spread.median, unit, "without share_tp",
            median_of(samples[0])};
    add_spread(row, spread);
    report.add(std::move(row));
  }
}

// Prefixes of 128 blocks out of a directory that no cache holds.
Status bench_lookups(const Settings& settings, DomainKind domain, Report& report) {
  constexpr std::size_t kBlocks = 128, kAtOnce = 16;
  const std::uint64_t prefixes = settings.quick ? 64 : 512;
  const KvGeometry geometry = smallest();
  CACHALOT_TRY_ASSIGN(Ways ways,
                      Ways::start(domain, geometry, prefixes * kBlocks * 9 / 8, "layer_first"));
  Pages pages(geometry, "vllm_bknhc", kBlocks);
  std::vector<std::vector<BlockHash>> prompts[kWays];
  for (std::size_t way = 0; way < kWays; ++way) {
    show_progress("share-tp: filling the directory");
    CACHALOT_TRY_ASSIGN(const CacheId cache, ways.client(way).register_cache(pages.cache()));
    for (std::uint64_t i = 0; i < prefixes; ++i) {
      prompts[way].push_back(prompt_of(ways.client(way), i, kBlocks));
      CACHALOT_TRY_ASSIGN(const Stored stored,
                          ways.client(way).store(cache, nullptr, prompts[way][i], pages.ids()));
      if (stored.blocks != kBlocks)
        return Error::make(Code::kInternal, "bench: stored %zu of %zu blocks", stored.blocks,
                           kBlocks);
    }
  }
  std::vector<double> ns[kWays];
  base::Rng rng(7);
  for (std::uint32_t round = 0; round < settings.repeats * 16; ++round) {
    for (std::size_t way = 0; way < kWays; ++way) {
      const std::uint64_t start = now_ns();
      for (std::size_t i = 0; i < kAtOnce; ++i) {
        CACHALOT_TRY_ASSIGN(const std::size_t found,
                            ways.client(way).lookup(prompts[way][rng.below(prefixes)]));
        if (found != kBlocks)
          return Error::make(Code::kInternal, "bench: found %zu of %zu blocks", found, kBlocks);
      }
      ns[way].push_back(static_cast<double>(now_ns() - start) / (kAtOnce * kBlocks));
    }
  }
  add_rows("lookup_per_block", "ns", domain, ns, report);
  return {};
}

// Stores of 16 new blocks of 4 MiB, and loads of the same.
Status bench_copies(const Settings& settings, DomainKind domain, const CopyModel& model,
                    Report& report) {
  constexpr std::uint32_t kBlocks = 16, kPages = 45;
  show_progress(std::string("share-tp: copies, ") + model.name);
  const KvGeometry geometry = qwen3_32b();
  CACHALOT_TRY_ASSIGN(Ways ways, Ways::start(domain, geometry, 3 * kBlocks, model.block_order));
  // Loads go to other pages than those that were just read, which are in the processor's caches.
  Pages pages(geometry, model.layout, kPages), others(geometry, model.layout, kPages);
  std::vector<CacheId> from, to;
  for (std::size_t way = 0; way < kWays; ++way) {
    CACHALOT_TRY_ASSIGN(const CacheId stored, ways.client(way).register_cache(pages.cache()));
    CACHALOT_TRY_ASSIGN(const CacheId loaded, ways.client(way).register_cache(others.cache()));
    from.push_back(stored);
    to.push_back(loaded);
  }
  std::vector<double> stores[kWays], loads[kWays];
  for (std::uint32_t round = 0; round < settings.repeats; ++round) {
    for (std::size_t k = 0; k < kWays; ++k) {
      const std::size_t way = (round + k) % kWays;  // none always comes after the same other
      Client& client = ways.client(way);
      const std::vector<BlockHash> hashes = prompt_of(client, round, kBlocks);
      const std::span<const PageId> out = pages.draw(kBlocks), in = others.draw(kBlocks);
      const std::uint64_t start = now_ns();
      CACHALOT_TRY_ASSIGN(const Stored stored, client.store(from[way], nullptr, hashes, out));
      const std::uint64_t middle = now_ns();
      CACHALOT_TRY_ASSIGN(const std::size_t loaded, client.load(to[way], hashes, in));
      const std::uint64_t end = now_ns();
      if (stored.written != kBlocks || loaded != kBlocks)
        return Error::make(Code::kInternal, "bench: stored %zu and loaded %zu of %u blocks",
                           stored.written, loaded, kBlocks);
      if (round == 0) continue;  // the pool's memory is touched for the first time
      stores[way].push_back(static_cast<double>(middle - start) * 1e-3 / kBlocks);
      loads[way].push_back(static_cast<double>(end - middle) * 1e-3 / kBlocks);
    }
  }
  add_rows((std::string("store_per_block/") + model.name).c_str(), "us", domain, stores, report);
  add_rows((std::string("load_per_block/") + model.name).c_str(), "us", domain, loads, report);
  return {};
}

}  // namespace

Status bench_share_tp(const Settings& settings, Report& report) {
  for (const DomainKind domain : settings.domains) {
    CACHALOT_TRY(bench_lookups(settings, domain, report));
    for (const CopyModel& model : kCopyModels)
      CACHALOT_TRY(bench_copies(settings, domain, model, report));
  }
  report.note(
      "groups_N: a rank with all 8 KV heads in N groups (G / t); blocks of Qwen3-32B, 4 MiB");
  return {};
}

}  // namespace cachalot::apps::bench
