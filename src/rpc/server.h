// The keeper's end of all mailboxes: many ring slots are read with one pair of fences.
//
// Reading a slot costs a flush and a miss, and a fence around them costs as much again; so a poll
// gathers the next lines of every open mailbox together, few from a quiet client and up to a whole
// message's worth from a busy one (one slot a fence: 1.85 M requests/s; 64: 50 M).
//
// Invariants
//   1. Requests of one mailbox are handled in order, once, and only when all their lines are there;
//      a missing line delays no other client.
//   2. A message that breaks the format answers with kInvalidArgument and costs its sender that line.
//
// @threads  one
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rpc/message.h"
#include "rpc/ring.h"
#include "rpc/waiter.h"

namespace cachalot::rpc {

struct Message {
  const memory::Line* lines;  // the head and what follows

  RequestHead head() const { return memory::as<RequestHead>(lines[0]); }
  FollowingLine following(std::uint32_t i) const { return memory::as<FollowingLine>(lines[i + 1]); }
};

// Where a client's mailbox lies and how its lines are sealed.
struct MailboxPlace {
  std::uint64_t request_ring = 0;
  std::uint64_t response_ring = 0;
  std::uint32_t ring_lines = 0;
  std::uint32_t incarnation = 0;
  std::uint32_t epoch = 0;
  bool client_splits_lines = false;  // confirm each request by a second read (R5)
};

class Server;

// Answers requests. Every message of a batch must be answered through the server, in order. May close
// mailboxes meanwhile, but not open any.
class RequestHandler {
 public:
  virtual ~RequestHandler() = default;
  virtual void on_requests(std::uint32_t client, std::span<const Message> messages) = 0;
};

class Server {
 public:
  Server(const memory::SealedRegion& region, std::uint32_t clients);

  void open(std::uint32_t client, const MailboxPlace& place, Doorbell doorbell);
  void close(std::uint32_t client);
  bool is_open(std::uint32_t client) const { return mailboxes_[client].is_open; }

  // Reads all open mailboxes once and hands what came to `handler`; returns how many requests.
  std::uint32_t poll(RequestHandler& handler);

  // Answers the next `requests` of the batch in hand with one status and nothing else. Neighbouring
  // equal ones go out in one line.
  void answer(std::uint32_t client, std::uint16_t status, std::uint32_t requests = 1);
  // Answers the next request with a payload: at most 36 bytes in the head and 52 in each line, no
  // more lines than the request's Channel reserved. An answer of one line whose `count` is 0 arrives
  // without its payload.
  void answer(std::uint32_t client, std::uint16_t status, std::uint16_t count,
              std::span<const unsigned char> head_payload,
              std::span<const FollowingLine> following);

  // True if one of the clients that the last answers went to ran on `core` when it asked.
  bool has_just_answered_on(int core) const;

  std::uint64_t malformed() const { return malformed_; }

 private:
  struct Mailbox {
    bool is_open = false;
    MailboxPlace place;
    RingReader requests;
    RingWriter responses;
    Doorbell doorbell;
    std::uint32_t window = 1;       // lines to read in the next poll
    std::uint32_t quiet_polls = 0;  // in a row
    std::uint16_t held_status = 0;  // answers not yet written
    std::uint32_t held_requests = 0;
    std::uint64_t held_sequence = 0;
    bool has_news = false;            // written and not yet rung for
    std::uint64_t answered_in = 0;    // number of the poll, from 1
    std::vector<std::uint64_t> ends;  // last line of each request of the batch in hand
    std::size_t next_end = 0;
  };
  // A mailbox's share of a poll: `count` lines from `first` in the gathered ones.
  struct Share {
    std::uint32_t client, first, count;
  };
  static constexpr std::uint32_t kMaxWindow = kMaxMessageLines;
  // A busy client's next burst is a few polls away: its window shrinks slowly.
  static constexpr std::uint32_t kQuietPolls = 8;

  void gather();
  std::uint32_t confirmed(const Share& share, std::uint32_t good);
  std::uint32_t serve(const Share& share, RequestHandler& handler);
  void write_held(Mailbox& mailbox);
  void flush(Mailbox& mailbox);

  memory::SealedRegion region_;
  std::vector<Mailbox> mailboxes_;
  std::vector<std::uint32_t> open_;  // client slots
  std::vector<Share> shares_;
  std::vector<const void*> addresses_;
  std::vector<memory::Line> lines_, confirmation_;
  std::vector<Message> batch_;
  std::uint64_t malformed_ = 0;
  std::uint64_t polls_ = 0, answered_in_ = 0;  // the last poll with an answer
};

}  // namespace cachalot::rpc
