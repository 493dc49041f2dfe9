#include "rpc/channel.h"

#include <algorithm>

namespace cachalot::rpc {

Channel::Channel(const memory::SealedRegion& region, const ChannelPlace& place, Waiter& waiter,
                 base::Clock& clock, Doorbell keeper_doorbell)
    : requests_(region.salted(request_salt(place.incarnation)), place.request_ring,
                place.ring_lines),
      responses_(region.salted(response_salt(place.incarnation, place.epoch)), place.response_ring,
                 place.ring_lines),
      domain_(&region.domain()),
      waiter_(&waiter),
      clock_(&clock),
      keeper_doorbell_(keeper_doorbell),
      place_(place) {}

bool Channel::has_credit(std::uint32_t lines, std::uint32_t answer_lines) const {
  return pending_.has_room(lines, answer_lines, place_.ring_lines);
}

void Channel::post(const Request& request, const memory::Line& payload,
                   std::span<const FollowingLine> following) {
  const auto lines = static_cast<std::uint32_t>(1 + following.size());
  CACHALOT_CHECK(has_credit(lines, request.answer_lines) && lines <= kMaxMessageLines);
  memory::Line head = payload;
  head.words[1] = request_word(request.op, lines, request.count, place_.epoch);
  std::uint64_t last = requests_.stage(head);
  for (const FollowingLine& line : following) last = requests_.stage(memory::to_line(line));

  pending_.push({last, request.tag, lines, request.answer_lines, request.op});
}

void Channel::flush() {
  if (!requests_.flush()) return;
  waiter_->tell_core();
  keeper_doorbell_.ring_if_asleep();
}

std::uint32_t Channel::poll(AnswerSink& sink) {
  if (outstanding() == 0) return 0;
  flush();
  memory::Line lines[kPollLines];
  const void* addresses[kPollLines] = {};
  const std::uint32_t count = std::min(window_, kPollLines);
  for (std::uint32_t i = 0; i < count; ++i) addresses[i] = responses_.address(i);
  domain_->gather_lines(addresses, count, lines);
  std::uint32_t good = responses_.accept(lines, count);
  if (good != 0 && place_.keeper_splits_lines &&
      !domain_->broken(memory::Rule::kR5ConfirmSplitLines)) {
    memory::Line again[kPollLines];
    domain_->gather_lines(addresses, good, again);
    const auto differs = std::mismatch(lines, lines + good, again).first;
    good = static_cast<std::uint32_t>(differs - lines);
  }
  return take(lines, good, sink);
}

// Delivers the whole answers among `count` accepted lines and adapts how much the next poll reads.
std::uint32_t Channel::take(const memory::Line* lines, std::uint32_t count, AnswerSink& sink) {
  std::uint32_t used = 0, answered = 0;
  std::uint32_t wanted = 1;
  while (used < count) {
    const auto head = memory::as<ResponseHead>(lines[used]);
    const std::uint32_t length = std::clamp<std::uint32_t>(head.lines, 1, kMaxMessageLines);
    if (used + length > count) {
      wanted = length;
      break;
    }
    answered += deliver(lines + used, sink);
    used += length;
  }
  responses_.advance(used);
  window_ =
      std::max(wanted, used == window_ ? std::min(window_ * 2, kPollLines) : std::max(used, 1u));
  return answered;
}

std::uint32_t Channel::deliver(const memory::Line* lines, AnswerSink& sink) {
  unsigned char payload[kResponsePayloadBytes + kMaxMessageLines * kFollowingPayloadBytes];
  const auto head = memory::as<ResponseHead>(lines[0]);
  if (!pending_.fits(head)) {
    ++malformed_;
    return 0;
  }
  std::size_t bytes = 0;
  if (head.lines > 1 || head.count != 0) {
    std::memcpy(payload, head.payload, kResponsePayloadBytes);
    bytes = kResponsePayloadBytes;
    for (std::uint32_t i = 1; i < head.lines && i < kMaxMessageLines; ++i) {
      const auto line = memory::as<FollowingLine>(lines[i]);
      std::memcpy(payload + bytes, line.payload, kFollowingPayloadBytes);
      bytes += kFollowingPayloadBytes;
    }
  }
  for (std::uint32_t i = 0; i < head.answered; ++i) {
    const PendingRequest request = pending_.pop();
    if (request.tag != 0) {
      sink.on_answer({request.tag, request.op, head.status, head.count, {payload, bytes}});
    }
  }
  return head.answered;
}

}  // namespace cachalot::rpc
