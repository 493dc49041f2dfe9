#include "hash.h"

#include <numeric>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "block_hash/block_hasher.h"
#include "memory/line.h"
#include "plain_copies.h"

namespace cachalot::apps::bench {
namespace {

// Runs `f` often enough for a clock, `repeats` times: ns for one call.
template <class F>
Spread time_of(const Settings& settings, F&& f) {
  std::uint64_t calls = 1;
  for (;; calls *= 2) {
    const std::uint64_t start = now_ns();
    for (std::uint64_t i = 0; i < calls; ++i) f();
    if (now_ns() - start > 200'000) break;
  }
  std::vector<double> ns;
  for (std::uint32_t i = 0; i < 5 * settings.repeats; ++i) {
    const std::uint64_t start = now_ns();
    for (std::uint64_t n = 0; n < calls; ++n) f();
    ns.push_back(static_cast<double>(now_ns() - start) / static_cast<double>(calls));
  }
  return spread_of(ns);
}

template <class T>
void keep(const T& value) {
  asm volatile("" : : "g"(&value) : "memory");
}

void add_ns(Report& report, const std::string& name, const Spread& ns) {
  Row row{name, ns.median, "ns", "", 0};
  add_spread(row, ns);
  report.add(std::move(row));
}

void add_bandwidth(Report& report, const std::string& name, const Spread& ns, double bytes,
                   const Spread* baseline) {
  Row row{name, bytes / ns.median, "GB/s", "", 0};
  if (baseline != nullptr) {
    row.baseline = "libxxhash, as compiled for any x86-64";
    row.baseline_value = bytes / baseline->median;
  }
  add_spread(row, {bytes / ns.median, bytes / ns.high, bytes / ns.low});
  report.add(std::move(row));
}

Status add_block_hashes(const Settings& settings, Report& report) {
  std::vector<std::uint32_t> tokens(512);
  std::iota(tokens.begin(), tokens.end(), 1000u);
  block_hash::BlockHasher xxh3 = block_hash::BlockHasher::xxh3(block_hash::make_namespace("bench"));
  CACHALOT_TRY_ASSIGN(block_hash::BlockHasher sha256,
                      block_hash::BlockHasher::vllm(HashAlgorithm::kSha256Cbor, "0"));
  CACHALOT_TRY_ASSIGN(block_hash::BlockHasher xxhash,
                      block_hash::BlockHasher::vllm(HashAlgorithm::kXxhashCbor, "0"));
  for (const std::size_t count : {std::size_t{16}, std::size_t{512}}) {
    const std::span<const std::uint32_t> ids(tokens.data(), count);
    for (block_hash::BlockHasher* hasher : {&xxh3, &sha256, &xxhash}) {
      block_hash::Digest parent = hasher->root();
      const Spread ns = time_of(settings, [&] { parent = hasher->next(parent, ids); });
      add_ns(report,
             std::string("block_hash/") + block_hash::hash_algorithm_name(hasher->algorithm()) +
                 "/" + std::to_string(count) + "_tokens",
             ns);
    }
  }
  return {};
}

}  // namespace

Status bench_hash_functions(const Settings& settings, Report& report) {
  take_cores();
  show_progress("hash");
  constexpr std::size_t kSmall = 16'384, kLarge = 2'621'440;
  CACHALOT_TRY_ASSIGN(const PrivateMemory data, PrivateMemory::make(kLarge));
  for (const std::size_t bytes : {kSmall, kLarge}) {
    const std::string size = bytes == kSmall ? "16KiB" : "2.5MiB";
    const auto count = static_cast<double>(bytes);
    const Spread theirs = time_of(settings, [&] { keep(XXH3_64bits(data.at(0), bytes)); });
    const Spread ours = time_of(settings, [&] { keep(memory::hash_lines(data.at(0), bytes)); });
    const Spread wide = time_of(settings, [&] { keep(XXH3_128bits(data.at(0), bytes)); });
    add_bandwidth(report, "xxh3_64/" + size, ours, count, &theirs);
    add_bandwidth(report, "xxh3_128/" + size, wide, count, nullptr);
  }
  const memory::LineSeal seal(1, 2);
  memory::Line line{};
  line.words[0] = 1;
  std::uint64_t at = 0;
  add_ns(report, "line_crc/seal", time_of(settings, [&] {
           seal.seal(line, at += 64);
           keep(line);
         }));
  seal.seal(line, 0);
  add_ns(report, "line_crc/check", time_of(settings, [&] {
           keep(line);
           keep(seal.checks(line, 0));
         }));
  return add_block_hashes(settings, report);
}

}  // namespace cachalot::apps::bench
