#include "grants.h"

#include <algorithm>
#include <cstring>

namespace cachalot::apps::bench {
namespace {

using pool::BlockUse;
using pool::kUsesInFollowing;
using pool::kUsesInHead;
using pool::kUsesInResponse;

constexpr std::uint32_t kMostUses = 64;
constexpr std::uint32_t kBatchesUnderWay = 3;  // a client may hold 256 blocks
constexpr std::uint64_t kPatienceNs = 20'000'000'000;

std::uint32_t lines_for(std::uint32_t uses, std::uint32_t in_head) {
  return 1 + (uses > in_head ? (uses - in_head + kUsesInFollowing - 1) / kUsesInFollowing : 0);
}

rpc::Doorbell keeper_doorbell(const pool::Access& access) {
  return rpc::Doorbell::at(access.region.at(access.layout.doorbell_page));
}

}  // namespace

GrantStream::GrantStream(const pool::Access& access, std::uint32_t slot)
    : access_(access),
      slot_(slot),
      doorbell_(keeper_doorbell(access)),
      waiter_(rpc::Doorbell(), rpc::HostWaiter::Options{}) {}

Result<std::unique_ptr<GrantStream>> GrantStream::attach(const pool::Pool& pool) {
  const pool::Access& access = pool.access();
  std::unique_ptr<GrantStream> stream(new GrantStream(access, access.geometry.clients - 1));
  CACHALOT_TRY(stream->greet());
  return stream;
}

// The entry of a client, as in pool/client/attach_handshake.cpp.
Status GrantStream::greet() {
  const pool::KeeperView keeper = pool::DirectoryReader(access_).read_keepers();
  pool::ClientLine line{};
  (void)access_.region.read_as(access_.layout.client_line(slot_), line);
  ++line.incarnation;
  line.flags = pool::kClientAttached;
  if (!access_.domain().writes_whole_lines()) line.flags |= pool::kClientSplitLines;
  line.epoch = keeper.epoch;
  access_.region.publish(access_.layout.client_line(slot_), line);
  access_.domain().complete();
  doorbell_.ring();

  const std::uint64_t deadline = now_ns() + kPatienceNs;
  for (pool::ViewLine view{}; view.incarnation != line.incarnation;) {
    (void)access_.region.read_as(access_.layout.view_line(keeper.keeper, slot_), view);
    if (now_ns() > deadline)
      return Error::make(Code::kTimeout, "bench: the keeper does not answer");
  }
  rpc::ChannelPlace place;
  place.request_ring = access_.layout.request_ring(slot_);
  place.response_ring = access_.layout.response_ring(keeper.keeper, slot_);
  place.ring_lines = pool::kRingLines;
  place.incarnation = line.incarnation;
  place.epoch = keeper.epoch;
  place.keeper_splits_lines = (keeper.flags & pool::kKeeperSplitLines) != 0;
  channel_ = rpc::Channel(access_.region, place, waiter_, clock_, doorbell_);
  return {};
}

void GrantStream::ask(std::uint32_t batch) {
  channel_.post({static_cast<std::uint8_t>(pool::Op::kGrant), static_cast<std::uint16_t>(batch),
                 lines_for(batch, kUsesInResponse), 1},
                std::span<const unsigned char>());
  ++under_way_;
}

// Sends the uses back as they came; three batches in flight never use up the rings.
void GrantStream::give_back(const rpc::Answer& answer) {
  const std::uint32_t count = std::min<std::uint32_t>(answer.count, kMostUses);
  BlockUse uses[kMostUses];
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::size_t at =
        i < kUsesInResponse
            ? i * sizeof(BlockUse)
            : rpc::kResponsePayloadBytes +
                  (i - kUsesInResponse) / kUsesInFollowing * rpc::kFollowingPayloadBytes +
                  (i - kUsesInResponse) % kUsesInFollowing * sizeof(BlockUse);
    if (at + sizeof(BlockUse) > answer.payload.size()) return;
    std::memcpy(&uses[i], answer.payload.data() + at, sizeof(BlockUse));
  }
  pool::UsesPayload head{};
  std::copy_n(uses, std::min(count, kUsesInHead), head.uses);
  rpc::FollowingLine following[kMostUses / kUsesInFollowing + 1] = {};
  std::uint32_t lines = 0;
  for (std::uint32_t i = kUsesInHead; i < count; i += kUsesInFollowing) {
    pool::UsesFollowing more{};
    std::copy_n(uses + i, std::min(count - i, kUsesInFollowing), more.uses);
    rpc::store_payload(following[lines++].payload, more);
  }
  unsigned char payload[sizeof head];
  std::memcpy(payload, &head, sizeof head);
  channel_.post(
      {static_cast<std::uint8_t>(pool::Op::kGiveBack), static_cast<std::uint16_t>(count), 1, 0},
      payload, {following, lines});
  granted_ += count;
}

void GrantStream::on_answer(const rpc::Answer& answer) {
  was_refused_ = was_refused_ || answer.status != 0;
  if (answer.tag == 0) return;
  --under_way_;
  if (answer.status == 0) give_back(answer);
}

Status GrantStream::run(std::uint64_t blocks, std::uint32_t batch, RateMeter& rate) {
  granted_ = 0;
  rate.start();
  while (granted_ < blocks && !was_refused_) {
    while (under_way_ < kBatchesUnderWay &&
           channel_.has_credit(1, lines_for(batch, kUsesInResponse))) {
      ask(batch);
    }
    const std::uint64_t before = granted_;
    if (channel_.poll(*this) == 0) doorbell_.ring_if_asleep();
    rate.count(granted_ - before);
  }
  const std::uint64_t until_ns = now_ns() + kPatienceNs;
  CACHALOT_TRY(channel_.wait_until(
      *this, [=] { return until_ns; }, [&] { return channel_.outstanding() == 0; },
      [] { return false; }));
  if (was_refused_) return Error::make(Code::kRefused, "bench: the keeper refused a grant");
  return {};
}

}  // namespace cachalot::apps::bench
