#include "system_soak_subscribers.h"

#include <zmq.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace cachalot::crash {
namespace {

using base::SteadyClock;

constexpr std::uint64_t kAnswerNs = 5'000'000'000;
constexpr int kPatienceMs = 6000, kUnansweredInARow = 3;
constexpr int kMute = 20;

void ask(void* socket, std::uint64_t first) {
  std::uint8_t number[8];
  for (int i = 0; i < 8; ++i) number[i] = static_cast<std::uint8_t>(first >> (56 - 8 * i));
  (void)zmq_send(socket, "", 0, ZMQ_SNDMORE);
  (void)zmq_send(socket, number, sizeof number, 0);
}

void* connect(void* context, int kind, std::uint16_t port) {
  void* const socket = zmq_socket(context, kind);
  const int linger = 0;
  zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
  if (kind == ZMQ_SUB) zmq_setsockopt(socket, ZMQ_SUBSCRIBE, "", 0);
  zmq_connect(socket, ("tcp://127.0.0.1:" + std::to_string(port)).c_str());
  return socket;
}

// Reads to the end mark, whose topic is empty.
// @return when the first batch or the mark came; 0: never
std::uint64_t read_replay(void* socket) {
  std::uint64_t first_ns = 0;
  zmq_msg_t part;
  for (;;) {
    bool is_end = false;
    for (int i = 0, more = 1; more != 0; ++i) {
      zmq_msg_init(&part);
      if (zmq_msg_recv(&part, socket, 0) < 0) return first_ns;
      if (first_ns == 0) first_ns = SteadyClock::read();
      if (i == 1) is_end = zmq_msg_size(&part) == 0;
      more = zmq_msg_more(&part);
      zmq_msg_close(&part);
    }
    if (is_end) return first_ns;
  }
}

}  // namespace

int run_subscribers(SubscriberBoard& board, std::uint16_t events_port, std::uint16_t replay_port) {
  void* const context = zmq_ctx_new();
  std::vector<void*> mute;
  for (int i = 0; i < kMute; ++i) {
    mute.push_back(connect(context, ZMQ_SUB, events_port));
    mute.push_back(connect(context, ZMQ_DEALER, replay_port));
    ask(mute.back(), 0);
  }
  // A keeper that is killed loses a request, but not several in a row.
  int unanswered = 0;
  for (int round = 0;; ++round) {
    void* const reader = connect(context, ZMQ_DEALER, replay_port);
    zmq_setsockopt(reader, ZMQ_RCVTIMEO, &kPatienceMs, sizeof kPatienceMs);
    const std::uint64_t begin_ns = SteadyClock::read();
    ask(reader, 0);
    const std::uint64_t first_ns = read_replay(reader);
    unanswered = first_ns == 0 ? unanswered + 1 : 0;
    if (unanswered == kUnansweredInARow) ++board.late_replays;
    if (first_ns != 0) {
      const std::uint64_t took_ns = first_ns - begin_ns;
      ++board.replays;
      if (took_ns > kAnswerNs) ++board.late_replays;
      if (took_ns > board.slowest_ns) board.slowest_ns = took_ns;
    }
    zmq_close(reader);
    if (round % 20 == 0) ask(mute[static_cast<std::size_t>(round / 20 % kMute) * 2 + 1], 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
}

}  // namespace cachalot::crash
