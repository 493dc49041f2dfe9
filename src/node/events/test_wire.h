// A subscriber's two ZeroMQ sockets, for tests.
#pragma once

#include <gtest/gtest.h>
#include <zmq.h>

#include <string>
#include <vector>

#include "node/events/sockets.h"

namespace cachalot::events {

inline constexpr std::uint64_t kEnd = ~std::uint64_t{0};

// A PUB/ROUTER pair's other side.
class Wire {
 public:
  // @param has_room  for all that is sent; else for some messages, so that the other side must keep what is not read
  explicit Wire(const Endpoints& endpoints, bool has_room = true) : context_(zmq_ctx_new()) {
    live_ = zmq_socket(context_, ZMQ_SUB);
    replay_ = zmq_socket(context_, ZMQ_DEALER);
    for (void* const socket : {live_, replay_}) {
      const int wait_ms = 20'000, none = 0, messages = has_room ? 0 : 1, bytes = 64 << 10;
      zmq_setsockopt(socket, ZMQ_RCVTIMEO, &wait_ms, sizeof wait_ms);
      zmq_setsockopt(socket, ZMQ_RCVHWM, &messages, sizeof messages);
      if (!has_room) zmq_setsockopt(socket, ZMQ_RCVBUF, &bytes, sizeof bytes);
      zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof none);
    }
    zmq_setsockopt(live_, ZMQ_SUBSCRIBE, "kv@", 3);
    EXPECT_EQ(zmq_connect(live_, endpoints.live.c_str()), 0);
    if (!endpoints.replay.empty()) {
      EXPECT_EQ(zmq_connect(replay_, endpoints.replay.c_str()), 0);
    }
  }
  ~Wire() {
    zmq_close(live_);
    zmq_close(replay_);
    zmq_ctx_term(context_);
  }
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  // Whether there is something to receive now.
  bool has_live() { return is_readable(live_); }
  bool has_replay() { return is_readable(replay_); }
  Message receive_live() { return message_of(receive(live_), 0); }
  void send_to_replay(const std::vector<std::string>& frames) {
    for (std::size_t i = 0; i < frames.size(); ++i) {
      zmq_send(replay_, frames[i].data(), frames[i].size(),
               i + 1 < frames.size() ? ZMQ_SNDMORE : 0);
    }
  }
  void ask(std::uint64_t first) {
    std::string number;
    for (int shift = 56; shift >= 0; shift -= 8) number += static_cast<char>(first >> shift & 0xff);
    send_to_replay({"", number});
  }
  Message receive_replay() { return message_of(receive(replay_), 1); }

 private:
  static bool is_readable(void* socket) {
    zmq_pollitem_t item{socket, 0, ZMQ_POLLIN, 0};
    return zmq_poll(&item, 1, 0) > 0;
  }
  static std::vector<std::string> receive(void* socket) {
    std::vector<std::string> frames;
    int more = 1;
    while (more != 0) {
      zmq_msg_t frame;
      zmq_msg_init(&frame);
      const int got = zmq_msg_recv(&frame, socket, 0);
      EXPECT_GE(got, 0) << zmq_strerror(zmq_errno());
      if (got < 0) return frames;
      frames.emplace_back(static_cast<const char*>(zmq_msg_data(&frame)), zmq_msg_size(&frame));
      more = zmq_msg_more(&frame);
      zmq_msg_close(&frame);
    }
    return frames;
  }
  static Message message_of(const std::vector<std::string>& frames, std::size_t at) {
    Message message;
    if (frames.size() != at + 3 || frames[at + 1].size() != 8) {
      ADD_FAILURE() << frames.size() << " frames";
      return message;
    }
    message.topic = frames[at];
    for (const char byte : frames[at + 1])
      message.sequence = message.sequence << 8 | static_cast<unsigned char>(byte);
    message.payload = frames[at + 2];
    return message;
  }

  void* context_;
  void* live_;
  void* replay_;
};

}  // namespace cachalot::events
