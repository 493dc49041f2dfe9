// A process registers memory under a name; another endpoint opens it and reads some heads of some pages, with one
// descriptor instead of a list of addresses, then writes an answer and a notice.
//
//   c++ -std=c++20 segments.cpp -lcachalot && ./a.out
#include <cachalot/transfer_endpoint.h>

#include <cstdint>
#include <cstdio>
#include <vector>

namespace {

constexpr std::uint64_t kPages = 8, kTokens = 16, kHeads = 4, kHeadBytes = 128;
constexpr std::uint64_t kTokenBytes = kHeads * kHeadBytes, kPageBytes = kTokens * kTokenBytes;

cachalot::Status expect_done(cachalot::TransferEndpoint& endpoint, cachalot::BatchId batch) {
  CACHALOT_TRY_ASSIGN(const cachalot::BatchStatus status, endpoint.wait(batch));
  endpoint.release(batch);
  if (status.state == cachalot::BatchState::kDone) return {};
  return status.error;
}

cachalot::Status run() {
  // The owner. Pages of tokens of heads; each byte says its page and head.
  std::vector<std::byte> cache(kPages * kPageBytes);
  for (std::uint64_t i = 0; i < cache.size(); ++i)
    cache[i] = static_cast<std::byte>(i / kPageBytes * 16 + i % kTokenBytes / kHeadBytes);
  std::vector<std::byte> answers(64);
  CACHALOT_TRY_ASSIGN(
      cachalot::TransferEndpoint owner,
      cachalot::TransferEndpoint::open({.name = "owner", .listen = {"tcp:127.0.0.1:0"}}));
  CACHALOT_TRY(owner.register_memory("cache", cache, cachalot::SegmentAccess::kRead));
  CACHALOT_TRY(owner.register_memory("answers", answers, cachalot::SegmentAccess::kWrite));

  // The other one, in another process as a rule.
  CACHALOT_TRY_ASSIGN(cachalot::TransferEndpoint other,
                      cachalot::TransferEndpoint::open({.name = "other"}));
  const cachalot::PeerEndpoint peer{"owner", owner.addresses()};
  CACHALOT_TRY_ASSIGN(const cachalot::Segment from, other.open(peer, "cache", 5'000'000'000));

  // Heads 2 and 3 of all tokens of pages 5, 1 and 6, one after the other into own memory.
  std::vector<std::byte> heads(3 * kTokens * 2 * kHeadBytes);
  cachalot::TransferDescriptor wanted;
  wanted.local = {0, {}, heads.size()};
  wanted.remote.offset = 2 * kHeadBytes;
  wanted.remote.loops = {{.count = 3, .offsets = {5 * kPageBytes, 1 * kPageBytes, 6 * kPageBytes}},
                         {.count = kTokens, .stride_bytes = kTokenBytes}};
  wanted.remote.run_bytes = 2 * kHeadBytes;
  CACHALOT_TRY_ASSIGN(const cachalot::BatchId read, other.read(from.id, heads, {&wanted, 1}));
  CACHALOT_TRY(expect_done(other, read));
  for (std::uint64_t i = 0; i < heads.size(); ++i) {
    const std::uint64_t pages[] = {5, 1, 6};
    const std::uint64_t page = pages[i / (kTokens * 2 * kHeadBytes)];
    if (heads[i] != static_cast<std::byte>(page * 16 + 2 + i / kHeadBytes % 2))
      return cachalot::Error::make(cachalot::Code::kCorrupt, "byte %llu is wrong",
                                   static_cast<unsigned long long>(i));
  }

  // The owner learns of the answer when all of it is in place.
  CACHALOT_TRY_ASSIGN(const cachalot::Segment to, other.open(peer, "answers", 5'000'000'000));
  const std::vector<std::byte> answer(64, std::byte{42});
  const cachalot::TransferDescriptor whole{{0, {}, 64}, {0, {}, 64}};
  CACHALOT_TRY_ASSIGN(const cachalot::BatchId write,
                      other.write(to.id, answer, {&whole, 1}, {.notice = "answer"}));
  CACHALOT_TRY(expect_done(other, write));
  const std::vector<cachalot::Notice> notices = owner.notices(5'000'000'000);
  if (notices.empty() || answers != answer)
    return cachalot::Error::make(cachalot::Code::kCorrupt, "the answer did not arrive");
  std::printf("%zu bytes read; \"%s\" of %s\n", heads.size(), notices[0].text.c_str(),
              notices[0].peer.c_str());
  return {};
}

}  // namespace

int main() {
  const cachalot::Status status = run();
  if (!status) std::fprintf(stderr, "%s\n", status.error().message);
  return status ? 0 : 1;
}
