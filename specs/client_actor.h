// What all steps of a writing client share.
#pragma once

#include "buffer.h"

namespace cachalot::specs {

class ClientActor {
 public:
  ClientActor(const Model& model, const State& state, int client, Sink& sink)
      : model_(model),
        state_(state),
        index_(client),
        self_(state.clients[client]),
        buffer_(state.buffers[client]),
        program_(model.scenario->programs[client]),
        sink_(sink) {}

 protected:
  template <typename Change>
  void emit(const char* format, const int (&values)[4], Change change) const {
    State next = state_;
    change(next.clients[index_], next.buffers[index_]);
    Label label{index_ == 0 ? "A" : "B", format};
    for (int i = 0; i < 4; ++i) label.values[i] = values[i];
    sink_.step(next, label);
  }

  std::uint8_t hash() const { return program_[self_.put]; }
  std::uint8_t request_line() const { return static_cast<std::uint8_t>(kRequestLine + index_); }

  Response answer() const {
    return Response::from(
        state_.pool[kResponseLine + keeper_index(self_.epoch) * kClients + index_]);
  }
  bool is_answered(const Response& response) const {
    return response.incarnation == self_.incarnation && response.sequence == self_.sequence;
  }

  // Another keeper's line, or the keeper's view that it is suspected; flushed reads.
  bool must_leave() const {
    if (ruling_epoch(state_.pool[kSuccessorLine]) != self_.epoch) return true;
    const std::uint16_t view =
        state_.pool[kViewLine + keeper_index(self_.epoch) * kClients + index_];
    return view == (self_.incarnation | kSuspected);
  }

  void leave_world(const char* how) const {
    emit(how, {}, [](Client& self, Buffer&) {
      self = {};
      self.at = ClientAt::kExited;
    });
  }

  void post(Client& self, Buffer& buffer, Request request) const {
    ++self.sequence;
    request.sequence = self.sequence;
    request.epoch = self.epoch;
    request.incarnation = self.incarnation;
    if (!model_.broken(Variant::kCommitNotOrdered)) order(buffer);  // R4
    store(buffer, request_line(), request.pack());
    order(buffer);
  }

  static Request commit(int hash, int block, int generation) {
    Request request;
    request.op = Request::kCommit;
    request.hash = static_cast<std::uint16_t>(hash);
    request.block = static_cast<std::uint16_t>(block);
    request.generation = static_cast<std::uint16_t>(generation);
    return request;
  }

  void resend_doubt() const {
    if (!has_room(buffer_, 1)) return;
    emit("sends its unanswered commit h%d -> block %d, generation %d again",
         {self_.doubt_hash, self_.doubt_block, self_.doubt_generation, 0},
         [&](Client& self, Buffer& buffer) {
           post(self, buffer, commit(self_.doubt_hash, self_.doubt_block, self_.doubt_generation));
           self.at = ClientAt::kAwaitDoubt;
         });
  }

  static const char* verdict_text(int verdict) {
    if (verdict == Response::kCommitted) return "hears that h%d is committed (block %d)";
    if (verdict == Response::kDuplicate) return "hears that h%d is there already; block %d is back";
    return "hears that it does not hold this (h%d, block %d)";
  }

  // What was granted is abandoned, what was committed without an answer is in doubt (W1).
  void stop_storing() const {
    emit("sees that it must attach again, and stops storing", {}, [&](Client& self, Buffer&) {
      if (self_.at == ClientAt::kAwaitCommit) {
        self.doubt_hash = hash();
        self.doubt_block = self_.block;
        self.doubt_generation = self_.generation;
        ++self.put;
      }
      self.holds = self.block = self.generation = self.retries = 0;
      self.at = ClientAt::kLeave;
    });
  }

  const Model& model_;
  const State& state_;
  const int index_;
  const Client& self_;
  const Buffer& buffer_;
  const std::vector<std::uint8_t>& program_;
  Sink& sink_;
};

// The steps of a client that must attach again, or has attached again with a commit in doubt.
void attach_steps(const Model& model, const State& state, int client, Sink& sink);

}  // namespace cachalot::specs
