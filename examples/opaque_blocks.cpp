// Blocks whose bytes only the engine understands: one client fills them in the pool, another one reads them there.
//
//   opaque_blocks /dev/shm/pool
#include <cachalot/keeper.h>
#include <cachalot/opaque_client.h>

#include <algorithm>
#include <cstdio>
#include <numeric>

using namespace cachalot;

#define CHECK(result) \
  if (!(result)) return std::fprintf(stderr, "%s: %s\n", #result, (result).error().message), 1

// What this engine computes for block i.
static std::byte state_of(std::size_t i) {
  return static_cast<std::byte>(i + 1);
}

int main(int argc, char** argv) {
  const std::string pool = argc > 1 ? argv[1] : "/dev/shm/cachalot_example";
  constexpr std::uint64_t kBlockBytes = 100'000;
  Result<EmbeddedKeeper> keeper = EmbeddedKeeper::start(
      {.pool = pool, .block_bytes = kBlockBytes, .capacity_blocks = 64, .clients = 4});
  CHECK(keeper);
  const OpaqueOptions options{.pool = {pool},
                              .fingerprint = "example-model@1/f16/16 tokens",
                              .block_bytes = kBlockBytes,
                              .block_tokens = 16,
                              .pinned_reads = true};
  Result<OpaqueClient> writer = OpaqueClient::attach(options);
  CHECK(writer);
  Result<OpaqueClient> reader = OpaqueClient::attach(options);
  CHECK(reader);

  std::vector<std::uint32_t> prompt(20 * 16);
  std::iota(prompt.begin(), prompt.end(), 0u);
  const std::vector<BlockHash> hashes = writer->hash_tokens(prompt);
  const Result<Stored> stored = writer->store_in_place(
      nullptr, hashes, [](std::size_t i, std::span<std::byte> room) -> Status {
        std::fill(room.begin(), room.end(), state_of(i));
        return {};
      });
  CHECK(stored);

  const Result<OpaqueClient::Imported> imported =
      reader->load_in_place(hashes, [](std::size_t i, std::span<const std::byte> bytes) {
        const bool is_ours =
            std::ranges::all_of(bytes, [&](std::byte b) { return b == state_of(i); });
        return is_ours ? OpaqueClient::Import::kTaken : OpaqueClient::Import::kDamaged;
      });
  CHECK(imported);
  std::printf("%zu of %zu blocks stored, %zu of them read in the pool\n", stored->blocks,
              hashes.size(), imported->blocks);
  CHECK(reader->detach());
  CHECK(writer->detach());
  CHECK(keeper->stop());
  return imported->blocks == hashes.size() ? 0 : 1;
}
