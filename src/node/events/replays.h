// The answers to replay requests: each subscriber takes its own at its own pace, and delays no other.
//
// A subscriber gets the next batches whenever ZeroMQ has room for it. The answers to its requests follow each
// other, each with its end mark. What is kept for it is its place in the feed, and no batch.
//
// @threads one, that of the feed and the sockets
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "base/rare_line.h"
#include "node/events/feed.h"
#include "node/events/sockets.h"

namespace cachalot::events {

class Replays {
 public:
  explicit Replays(Feed& feed) : feed_(feed) {}

  // Takes the requests that have come, and sends what the subscribers take. The feed must be current.
  // @return whether a batch was sent
  bool advance(Sockets& sockets);
  // All answers have been sent.
  bool is_idle() const { return readers_.empty(); }

 private:
  struct Reader {
    std::deque<std::uint64_t> requests;  // that are not begun: their numbers
    std::optional<Replay> replay = {};   // begun
    SharedMessage unsent = nullptr;
  };
  enum class Progress {
    kNone,
    kSome,
    kEnded
  };  // kEnded: all requests were answered, or the subscriber is gone

  void take_requests(Sockets& sockets);
  SharedMessage next_of(Reader& reader);
  Progress send_some(const std::string& identity, Reader& reader, Sockets& sockets);
  void forget_snapshot_when_unused();

  Feed& feed_;
  std::map<std::string, Reader> readers_;  // by identity
  std::uint64_t last_use_ns_ = 0;          // of the feed's snapshot, at the latest
  base::RareLine bad_line_, full_line_;
};

}  // namespace cachalot::events
