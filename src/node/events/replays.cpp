#include "node/events/replays.h"

#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace cachalot::events {
namespace {

constexpr int kRequestsAtOnce = 64;
constexpr int kBatchesAtOnce = 64;           // to a subscriber, before the next one's turn
constexpr std::size_t kWaitingRequests = 8;  // of a subscriber
constexpr std::uint64_t kSnapshotNs =
    10'000'000'000;  // how long one is kept for the next subscriber

}  // namespace

bool Replays::advance(Sockets& sockets) {
  take_requests(sockets);
  bool is_sent = false;
  for (auto reader = readers_.begin(); reader != readers_.end();) {
    const auto here = reader++;
    const Progress progress = send_some(here->first, here->second, sockets);
    is_sent |= progress != Progress::kNone;
    if (progress == Progress::kEnded) readers_.erase(here);
  }
  forget_snapshot_when_unused();
  return is_sent;
}

void Replays::take_requests(Sockets& sockets) {
  for (int i = 0; i < kRequestsAtOnce && sockets.wait(0); ++i) {
    std::optional<Sockets::Request> request = sockets.take_request();
    if (!request) {
      if (bad_line_.is_due()) {
        base::log(base::LogLevel::kWarn, "events",
                  "a replay request is not a number of 8 bytes; said once a minute");
      }
      continue;
    }
    Reader& reader = readers_[std::move(request->identity)];
    if (reader.requests.size() < kWaitingRequests) {
      reader.requests.push_back(request->first);
    } else if (full_line_.is_due()) {
      base::log(base::LogLevel::kWarn, "events",
                "a replay request is dropped: %zu of its subscriber wait; said once a minute",
                kWaitingRequests);
    }
  }
}

// @return null: all was sent
SharedMessage Replays::next_of(Reader& reader) {
  if (!reader.replay) {
    if (reader.requests.empty()) return nullptr;
    reader.replay = feed_.begin_replay(reader.requests.front());
    reader.requests.pop_front();
  }
  SharedMessage message = feed_.next_of(*reader.replay);
  if (message != nullptr) return message;
  reader.replay.reset();
  return Sockets::end_of_answer();
}

Replays::Progress Replays::send_some(const std::string& identity, Reader& reader,
                                     Sockets& sockets) {
  Progress progress = Progress::kNone;
  for (int i = 0; i < kBatchesAtOnce; ++i) {
    if (reader.unsent == nullptr) reader.unsent = next_of(reader);
    if (reader.unsent == nullptr) return Progress::kEnded;
    const Sockets::Sent sent = sockets.answer(identity, reader.unsent);
    if (sent == Sockets::Sent::kGone) return Progress::kEnded;
    if (sent == Sockets::Sent::kFull) break;
    reader.unsent = nullptr;
    progress = Progress::kSome;
  }
  return progress;
}

void Replays::forget_snapshot_when_unused() {
  const std::uint64_t now_ns = base::SteadyClock::read();
  if (!is_idle()) {
    last_use_ns_ = now_ns;
  } else if (now_ns - last_use_ns_ > kSnapshotNs) {
    feed_.forget_snapshot();
  }
}

}  // namespace cachalot::events
