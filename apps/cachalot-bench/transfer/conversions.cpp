// bench transfer-convert: heads are split and the layout changes, before, while or after the bytes are copied, or by an
// exchange among the receiving ranks.
#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "engine_pair.h"
#include "kv_transfer.h"
#include "transfer/pair/convert.h"

namespace cachalot::apps::bench {
namespace {

using namespace transfer;

constexpr std::uint32_t kLayers = 32, kSourceHeads = 8, kHeads = 4, kPageTokens = 16;

// Of Llama-3-8B, with so many heads.
KvGeometry geometry_of(std::uint32_t heads, std::uint32_t tp_size) {
  KvGeometry geometry;
  geometry.layers = kLayers;
  geometry.block_tokens = kPageTokens;
  geometry.kv_heads = heads;
  geometry.head_dim = 128;
  geometry.tp_size = tp_size;
  return geometry;
}

Result<kv::EngineCache> cache_at(std::byte* memory, const KvGeometry& geometry, const char* layout,
                                 std::uint32_t pages) {
  const kv::CacheShape shape{geometry, kPageTokens, pages, 0};
  CACHALOT_TRY_ASSIGN(const kv::Layout* found, kv::find_layout(layout));
  CACHALOT_TRY_ASSIGN(const kv::EngineStrides strides,
                      kv::strides_of(found->form(geometry.attention), shape, layout));
  const std::uint64_t bytes = geometry.token_bytes() * kPageTokens * pages / strides.tensors;
  std::vector<kv::Tensor> tensors;
  for (std::uint32_t i = 0; i < strides.tensors; ++i)
    tensors.push_back({memory + i * bytes, bytes});
  return kv::EngineCache::make(shape, layout, tensors);
}

KvSlice slice_of(const std::vector<std::uint32_t>& pages, const TokenShare& share,
                 std::uint32_t heads) {
  return {pages, share.first, share.tokens, {0, kLayers}, {0, heads}};
}

// All pages, in an order that no stride describes.
std::vector<std::uint32_t> shuffled(std::uint32_t pages) {
  std::vector<std::uint32_t> ids;
  for (std::uint32_t i = 0; i < pages; ++i) ids.push_back((i * 37 + 11) % pages);
  return ids;
}

void fill(std::byte* memory, std::uint64_t bytes) {
  base::Rng rng(1);
  for (std::uint64_t at = 0; at + 8 <= bytes; at += 8) {
    const std::uint64_t word = rng.next();
    std::memcpy(memory + at, &word, 8);
  }
}

struct Way {
  const char* name;
  std::vector<double> ms = {};
};

// A prefill rank of 8 heads, token by token; a decode rank of 4 heads, head by head. Its sister has the other 4.
class Conversion {
 public:
  static Result<Conversion> make(const PairMemory& memory, std::uint32_t pages) {
    const KvGeometry whole = geometry_of(kSourceHeads, 1), half = geometry_of(kHeads, 2);
    const std::uint64_t tokens = std::uint64_t{pages} * kPageTokens;
    const std::uint64_t half_bytes = half.token_bytes() * tokens;
    CACHALOT_TRY_ASSIGN(kv::EngineCache source,
                        cache_at(memory.shared_source(), whole, "vllm_kbnhc", pages));
    CACHALOT_TRY_ASSIGN(kv::EngineCache target,
                        cache_at(memory.target(), half, "vllm_kbhnc", pages));
    std::vector<std::uint32_t> ids = shuffled(pages);
    const KvSlice read{ids, 0, tokens, {0, kLayers}, {0, kHeads}};
    CACHALOT_TRY_ASSIGN(const StreamOrder source_order, own_order(source, read));
    CACHALOT_TRY_ASSIGN(const StreamOrder target_order, own_order(target, read));
    // Beyond the caches.
    CACHALOT_TRY_ASSIGN(RequestBuffer packed,
                        RequestBuffer::make(half, target_order, tokens,
                                            {memory.shared_source() + 2 * half_bytes, half_bytes}));
    CACHALOT_TRY_ASSIGN(RequestBuffer received,
                        RequestBuffer::make(half, source_order, tokens,
                                            {memory.target() + half_bytes, half_bytes}));
    // The buffer of `after` is free again when `exchange` runs.
    std::vector<RequestBuffer> shares;
    CACHALOT_TRY_ASSIGN(const StreamOrder share_order,
                        own_order(source, slice_of(ids, {0, tokens}, kSourceHeads)));
    std::byte* at = memory.target() + half_bytes;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      const std::uint64_t share = share_of(tokens, kPageTokens, kRanks, rank).tokens;
      const std::uint64_t bytes = whole.token_bytes() * share;
      CACHALOT_TRY_ASSIGN(RequestBuffer buffer,
                          RequestBuffer::make(whole, share_order, share, {at, bytes}));
      shares.push_back(std::move(buffer));
      at += bytes;
    }
    return Conversion(std::move(source), std::move(target), std::move(ids), tokens, source_order,
                      target_order, share_order, std::move(packed), std::move(received),
                      std::move(shares));
  }
  static std::uint64_t memory_bytes(std::uint32_t pages) {
    return 3 * geometry_of(kHeads, 2).token_bytes() * kPageTokens * pages;
  }

  KvSlice slice() const { return {pages_, 0, tokens_, {0, kLayers}, {0, kHeads}}; }
  std::uint64_t bytes() const { return tokens_ * target_.geometry().token_bytes(); }

  Status copy_directly() const { return repack(source_, slice(), target_, slice()); }

  // What the child pushes for each way. The object outlives them.
  Result<std::vector<PreparedPush>> pushes() const {
    std::vector<PreparedPush> all(3 + kRanks);
    CACHALOT_TRY_ASSIGN(all[0].stream, kv_stream(packed_.cache(), packed_.slice(), target_order_));
    all[0].before = [this] { (void)repack(source_, slice(), packed_.cache(), packed_.slice()); };
    CACHALOT_TRY_ASSIGN(const StreamOrder order, common_order());
    CACHALOT_TRY_ASSIGN(all[1].stream, kv_stream(source_, slice(), order));
    CACHALOT_TRY_ASSIGN(all[2].stream, kv_stream(source_, slice(), source_order_));
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      CACHALOT_TRY_ASSIGN(all[3 + rank].stream, kv_stream(source_, share(rank), share_order_));
    }
    return all;
  }

  // @return seconds until the pages of the decode rank are complete
  Result<double> run(EnginePair& pair, std::size_t way) const {
    if (way == 3) return exchange(pair);
    if (way == 2) {
      CACHALOT_TRY_ASSIGN(const ByteStream buffer,
                          kv_stream(received_.cache(), received_.slice(), source_order_));
      CACHALOT_TRY_ASSIGN(const double copy, pair.push_prepared(2, buffer));
      const std::uint64_t start_ns = now_ns();
      CACHALOT_TRY(repack(received_.cache(), received_.slice(), target_, slice()));
      return copy + static_cast<double>(now_ns() - start_ns) / 1e9;
    }
    CACHALOT_TRY_ASSIGN(const StreamOrder order, common_order());
    CACHALOT_TRY_ASSIGN(const ByteStream pages,
                        kv_stream(target_, slice(), way == 0 ? target_order_ : order));
    return pair.push_prepared(way, pages);
  }

 private:
  static constexpr std::uint32_t kRanks = kSourceHeads / kHeads;

  Conversion(kv::EngineCache source, kv::EngineCache target, std::vector<std::uint32_t> pages,
             std::uint64_t tokens, StreamOrder source_order, StreamOrder target_order,
             StreamOrder share_order, RequestBuffer packed, RequestBuffer received,
             std::vector<RequestBuffer> shares)
      : source_(std::move(source)),
        target_(std::move(target)),
        pages_(std::move(pages)),
        tokens_(tokens),
        source_order_(source_order),
        target_order_(target_order),
        share_order_(share_order),
        packed_(std::move(packed)),
        received_(std::move(received)),
        shares_(std::move(shares)) {}

  // All heads of the tokens that a rank receives in an exchange.
  KvSlice share(std::uint32_t rank) const {
    return slice_of(pages_, share_of(tokens_, kPageTokens, kRanks, rank), kSourceHeads);
  }

  // Each rank receives as many bytes as in the other ways. The sister's are there before the clock starts: they
  // arrive on its own machine's link at the same time.
  Result<double> exchange(EnginePair& pair) const {
    double copy = 0;
    for (std::uint32_t rank = kRanks; rank-- > 0;) {
      CACHALOT_TRY_ASSIGN(const ByteStream buffer,
                          kv_stream(shares_[rank].cache(), shares_[rank].slice(), share_order_));
      CACHALOT_TRY_ASSIGN(copy, pair.push_prepared(3 + rank, buffer));  // rank 0 is the last one
    }
    std::array<const RequestBuffer*, kRanks> shares;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) shares[rank] = &shares_[rank];
    const std::uint64_t start_ns = now_ns();
    CACHALOT_TRY(take_shares(shares, {0, kHeads}, target_, slice()));
    return copy + static_cast<double>(now_ns() - start_ns) / 1e9;
  }

  Result<StreamOrder> common_order() const {
    CACHALOT_TRY_ASSIGN(const StreamShape read, stream_shape(source_, slice()));
    CACHALOT_TRY_ASSIGN(const StreamShape written, stream_shape(target_, slice()));
    return choose_order(read, written);
  }

  kv::EngineCache source_, target_;
  std::vector<std::uint32_t> pages_;
  std::uint64_t tokens_;
  StreamOrder source_order_, target_order_, share_order_;
  RequestBuffer packed_, received_;
  std::vector<RequestBuffer> shares_;
};

}  // namespace

Status bench_transfer_convert(const Settings& settings, Report& report) {
  const std::uint32_t pages = settings.quick ? 16 : 64;
  CACHALOT_TRY_ASSIGN(const PairMemory memory, PairMemory::make(Conversion::memory_bytes(pages)));
  CACHALOT_TRY_ASSIGN(const Conversion conversion, Conversion::make(memory, pages));
  fill(memory.shared_source(), memory.bytes());
  // In the decode rank's pages, without a transfer.
  CACHALOT_TRY(conversion.copy_directly());
  const std::vector<std::byte> expected(memory.target(), memory.target() + conversion.bytes());
  for (const Route route : {Route::kShared, Route::kTcp}) {
    CACHALOT_TRY_ASSIGN(std::vector<PreparedPush> pushes, conversion.pushes());
    show_progress("transfer convert");
    CACHALOT_TRY_ASSIGN(const std::unique_ptr<EnginePair> pair,
                        EnginePair::open(route, memory, std::move(pushes)));
    std::array<Way, 4> ways = {Way{"before"}, Way{"while"}, Way{"after"}, Way{"exchange"}};
    for (std::uint32_t turn = 0; turn < settings.repeats + 1; ++turn) {
      for (std::size_t i = 0; i < ways.size(); ++i) {
        if (turn == 0) std::memset(memory.target(), 0, memory.bytes());
        CACHALOT_TRY_ASSIGN(const double seconds, conversion.run(*pair, i));
        if (turn > 0) {
          ways[i].ms.push_back(seconds * 1e3);
          continue;
        }
        const std::span<const std::byte> written(memory.target(), conversion.bytes());
        if (!std::equal(written.begin(), written.end(), expected.begin()))
          return Error::make(Code::kInternal, "bench transfer-convert: \"%s\" gave other bytes",
                             ways[i].name);
      }
    }
    for (const Way& way : ways) {
      const Spread spread = spread_of(way.ms);
      Row row{(route == Route::kTcp ? "tcp/" : "shm/") + std::string(way.name), spread.median, "ms",
              "while", median_of(ways[1].ms)};
      add_spread(row, spread);
      row.extras.emplace_back("gb_s",
                              static_cast<double>(conversion.bytes()) / spread.median / 1e6);
      report.add(std::move(row));
    }
  }
  report.note("Half of the heads of Llama-3-8B (32 layers), " +
              std::to_string(pages * kPageTokens) +
              " tokens in pages of 16: from pages token by token to pages head by head.");
  report.note("before, after: through one more buffer in the sender, or in the receiver.");
  report.note(
      "exchange: two receiving ranks of one machine get all heads of half of the tokens each; then "
      "one takes its heads from both buffers.");
  return {};
}

}  // namespace cachalot::apps::bench
