// A prefill instance of two ranks hands the KV of a prompt to a decode instance of one rank, without a pool: the heads
// of both ranks are merged while they are copied.
//
//   c++ -std=c++20 transfer.cpp -lcachalot && ./a.out
#include <cachalot/transfer.h>

#include <cstdint>
#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

namespace {

constexpr std::uint32_t kLayers = 4, kHeads = 2, kHeadDim = 64, kPageTokens = 16, kPages = 8;
constexpr std::uint64_t kTokens = 40;

// An engine's paged cache: for each layer a tensor (K and V, page, token, head, number).
struct Rank {
  std::vector<std::vector<std::uint16_t>> tensors;
  std::optional<cachalot::TransferRank> transfer = {};
};

cachalot::Result<Rank> open(const char* instance, std::uint32_t rank, std::uint32_t ranks) {
  Rank made;
  const std::uint32_t heads = kHeads / ranks;
  made.tensors.assign(kLayers, std::vector<std::uint16_t>(std::size_t{2} * kPages * kPageTokens *
                                                          heads * kHeadDim));
  cachalot::TransferOptions options;
  options.instance = instance;
  options.model = "example@1";
  options.geometry.layers = kLayers;
  options.geometry.kv_heads = heads;
  options.geometry.head_dim = kHeadDim;
  options.geometry.dtype = cachalot::DType::kF16;
  options.geometry.block_tokens = kPageTokens;
  options.geometry.tp_rank = rank;
  options.geometry.tp_size = ranks;
  options.shape.tp_size = ranks;
  options.cache.layout = "vllm_kbnhc";
  options.cache.pages = kPages;
  for (auto& tensor : made.tensors)
    options.cache.tensors.push_back({tensor.data(), tensor.size() * 2});
  options.listen = {"tcp:127.0.0.1:0"};
  CACHALOT_TRY_ASSIGN(cachalot::TransferRank opened, cachalot::TransferRank::open(options));
  made.transfer = std::move(opened);
  return made;
}

cachalot::Status run() {
  CACHALOT_TRY_ASSIGN(Rank first, open("prefill-0", 0, 2));
  CACHALOT_TRY_ASSIGN(Rank second, open("prefill-0", 1, 2));
  CACHALOT_TRY_ASSIGN(Rank decode, open("decode-0", 0, 1));
  CACHALOT_TRY_ASSIGN(const cachalot::OfferId id, cachalot::random_offer_id());

  // Prefill: both ranks lend the pages of the prompt, before they have computed it.
  const std::vector<cachalot::PageId> pages = {6, 1, 3};
  for (Rank* rank : {&first, &second}) {
    CACHALOT_TRY(rank->transfer->offer({.id = id,
                                        .pages = pages,
                                        .tokens = kTokens,
                                        .deadline_ns = 30'000'000'000,
                                        .layers_ready = 0}));
  }

  // A proxy carries the reference to the decode instance, which asks for the KV, into pages of its own.
  cachalot::KvReference reference{"prefill-0", id, kTokens, {2, 1, {}}, {}, false};
  reference.addresses = {first.transfer->addresses(), second.transfer->addresses()};
  const std::vector<cachalot::PageId> own_pages = {0, 7, 2};
  CACHALOT_TRY_ASSIGN(
      const cachalot::AskId ask,
      decode.transfer->ask(reference, {.pages = own_pages, .deadline_ns = 30'000'000'000}));

  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    for (Rank* rank : {&first, &second}) {
      for (auto& number : rank->tensors[layer])
        number = static_cast<std::uint16_t>(layer + 1);  // computes
      CACHALOT_TRY(rank->transfer->layers_ready(id, layer + 1));
    }
    // The layer is there while the prefill computes the next one.
    CACHALOT_TRY_ASSIGN(const cachalot::AskStatus status,
                        decode.transfer->wait(ask, 10'000'000'000, layer + 1));
    if (status.layers <= layer) {
      return cachalot::Error::make(cachalot::Code::kTimeout, "layer %u: %s", layer,
                                   status.error.message);
    }
  }
  CACHALOT_TRY_ASSIGN(const cachalot::AskStatus status, decode.transfer->wait(ask, 10'000'000'000));
  std::printf("%s: %u layers, %llu bytes\n",
              status.state == cachalot::HandoverState::kDone ? "done" : "failed", status.layers,
              static_cast<unsigned long long>(status.bytes));
  const std::size_t number =
      (std::size_t{own_pages[0]} * kPageTokens + 3) * kHeads * kHeadDim;  // K of token 3
  if (status.state != cachalot::HandoverState::kDone ||
      decode.tensors[kLayers - 1][number] != kLayers) {
    return cachalot::Error::make(cachalot::Code::kCorrupt, "not what the prefill has computed: %s",
                                 status.error.message);
  }
  return {};
}

}  // namespace

int main() {
  const cachalot::Status status = run();
  if (!status) std::fprintf(stderr, "%s\n", status.error().message);
  return status ? 0 : 1;
}
