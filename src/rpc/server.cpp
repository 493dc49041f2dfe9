#include "rpc/server.h"

#include <cachalot/error.h>

#include <algorithm>

#include "rpc/channel.h"

namespace cachalot::rpc {

using memory::Line;

Server::Server(const memory::SealedRegion& region, std::uint32_t clients)
    : region_(region), mailboxes_(clients) {
  batch_.reserve(kMaxWindow);
}

void Server::open(std::uint32_t client, const MailboxPlace& place, Doorbell doorbell) {
  Mailbox& mailbox = mailboxes_[client];
  if (!mailbox.is_open) open_.push_back(client);
  mailbox = Mailbox{};
  mailbox.is_open = true;
  mailbox.place = place;
  mailbox.doorbell = doorbell;
  mailbox.requests = RingReader(region_.salted(request_salt(place.incarnation)), place.request_ring,
                                place.ring_lines);
  mailbox.responses = RingWriter(region_.salted(response_salt(place.incarnation, place.epoch)),
                                 place.response_ring, place.ring_lines);
  mailbox.ends.reserve(kMaxWindow);
  const std::size_t most_lines = open_.size() * kMaxWindow;
  addresses_.resize(most_lines);
  lines_.resize(most_lines);
  confirmation_.resize(most_lines);
}

void Server::close(std::uint32_t client) {
  if (!mailboxes_[client].is_open) return;
  flush(mailboxes_[client]);
  mailboxes_[client].is_open = false;
  std::erase(open_, client);
}

void Server::gather() {
  shares_.clear();
  std::uint32_t at = 0;
  for (const std::uint32_t client : open_) {
    const Mailbox& mailbox = mailboxes_[client];
    shares_.push_back({client, at, mailbox.window});
    for (std::uint32_t i = 0; i < mailbox.window; ++i)
      addresses_[at++] = mailbox.requests.address(i);
  }
  if (at != 0) region_.domain().gather_lines(addresses_.data(), at, lines_.data());
}

std::uint32_t Server::poll(RequestHandler& handler) {
  ++polls_;
  gather();
  std::uint32_t requests = 0;
  for (const Share& share : shares_) {
    if (mailboxes_[share.client].is_open) requests += serve(share, handler);
  }
  return requests;
}

// A client whose line writes may tear is believed only where a second read is equal (R5).
std::uint32_t Server::confirmed(const Share& share, std::uint32_t good) {
  memory::Domain& domain = region_.domain();
  if (good == 0 || !mailboxes_[share.client].place.client_splits_lines ||
      domain.broken(memory::Rule::kR5ConfirmSplitLines)) {
    return good;
  }
  domain.gather_lines(addresses_.data() + share.first, good, confirmation_.data());
  const Line* lines = lines_.data() + share.first;
  return static_cast<std::uint32_t>(std::mismatch(lines, lines + good, confirmation_.data()).first -
                                    lines);
}

std::uint32_t Server::serve(const Share& share, RequestHandler& handler) {
  Mailbox& mailbox = mailboxes_[share.client];
  const Line* lines = lines_.data() + share.first;
  const std::uint32_t good = confirmed(share, mailbox.requests.accept(lines, share.count));
  if (good == 0) {
    if (++mailbox.quiet_polls % kQuietPolls == 0) mailbox.window = std::max(mailbox.window / 2, 1u);
    return 0;
  }

  batch_.clear();
  mailbox.ends.clear();
  mailbox.next_end = 0;
  std::uint32_t used = 0;
  std::uint32_t wanted = 1;
  while (used < good) {
    const std::uint32_t length = lines_of(lines[used]);
    if (length == 0 || length > kMaxMessageLines) break;
    if (used + length > good) {
      wanted = length;
      break;
    }
    batch_.push_back({lines + used});
    used += length;
    mailbox.ends.push_back(mailbox.requests.expected() + used - 1);
  }
  const bool is_malformed = used < good && wanted == 1;
  const std::uint64_t after_batch = mailbox.requests.expected() + used;
  mailbox.requests.advance(used);
  mailbox.window = std::clamp(std::max(used * 2, share.count / 2), wanted, kMaxWindow);
  mailbox.quiet_polls = 0;
  const auto requests = static_cast<std::uint32_t>(batch_.size());
  if (requests != 0) handler.on_requests(share.client, batch_);
  if (!mailbox.is_open) return requests;
  CACHALOT_CHECK(mailbox.next_end == mailbox.ends.size());
  if (is_malformed) {
    ++malformed_;
    mailbox.requests.advance(1);
    mailbox.ends.push_back(after_batch);
    answer(share.client, static_cast<std::uint16_t>(Code::kInvalidArgument));
  }
  flush(mailbox);
  return requests;
}

void Server::answer(std::uint32_t client, std::uint16_t status, std::uint32_t requests) {
  Mailbox& mailbox = mailboxes_[client];
  // A batch has at most one request a line, so that the count fits into the answer's byte.
  static_assert(kMaxWindow <= 255);
  if (mailbox.held_requests != 0 && mailbox.held_status != status) write_held(mailbox);
  CACHALOT_CHECK(requests != 0 && mailbox.next_end + requests <= mailbox.ends.size());
  mailbox.next_end += requests;
  mailbox.held_status = status;
  mailbox.held_requests += requests;
  mailbox.held_sequence = mailbox.ends[mailbox.next_end - 1];
}

void Server::answer(std::uint32_t client, std::uint16_t status, std::uint16_t count,
                    std::span<const unsigned char> head_payload,
                    std::span<const FollowingLine> following) {
  Mailbox& mailbox = mailboxes_[client];
  write_held(mailbox);
  CACHALOT_CHECK(mailbox.next_end < mailbox.ends.size() &&
                 head_payload.size() <= kResponsePayloadBytes &&
                 following.size() < kMaxMessageLines);
  ResponseHead head{};
  head.request = static_cast<std::uint32_t>(mailbox.ends[mailbox.next_end++]);
  head.status = status;
  head.lines = static_cast<std::uint8_t>(1 + following.size());
  head.answered = 1;
  head.count = count;
  head.epoch = mailbox.place.epoch;
  std::copy(head_payload.begin(), head_payload.end(), head.payload);
  mailbox.responses.stage(memory::to_line(head));
  for (const FollowingLine& line : following) mailbox.responses.stage(memory::to_line(line));
  mailbox.responses.flush();
  mailbox.has_news = true;
}

void Server::write_held(Mailbox& mailbox) {
  if (mailbox.held_requests == 0) return;
  ResponseHead head{};
  head.request = static_cast<std::uint32_t>(mailbox.held_sequence);
  head.status = mailbox.held_status;
  head.lines = 1;
  head.answered = static_cast<std::uint8_t>(mailbox.held_requests);
  head.epoch = mailbox.place.epoch;
  mailbox.responses.write(memory::to_line(head));
  mailbox.held_requests = 0;
  mailbox.has_news = true;
}

// Writes the held answers and wakes the client if it sleeps: one fence a batch.
void Server::flush(Mailbox& mailbox) {
  write_held(mailbox);
  if (!mailbox.has_news) return;
  mailbox.doorbell.ring();
  mailbox.has_news = false;
  mailbox.answered_in = answered_in_ = polls_;
}

bool Server::has_just_answered_on(int core) const {
  return std::any_of(open_.begin(), open_.end(), [&](std::uint32_t client) {
    const Mailbox& mailbox = mailboxes_[client];
    const bool is_last = mailbox.answered_in == answered_in_ && answered_in_ != 0;
    return is_last && mailbox.doorbell.owner_ran_on(core);
  });
}

}  // namespace cachalot::rpc
