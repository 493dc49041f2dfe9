// A writing client that is attached: grants, payloads, commits.

#include "client_actor.h"

namespace cachalot::specs {

namespace {

class ClientSteps : public ClientActor {
 public:
  using ClientActor::ClientActor;

  void all() const {
    if (self_.at == ClientAt::kExited) return;
    straggle();
    if (model_.scenario->clients_crash) leave_world("crashes");
    switch (self_.at) {
      case ClientAt::kIdle:
        return idle();
      case ClientAt::kAwaitGrant:
        return await_grant();
      case ClientAt::kCheckKeeper:
        return check_keeper();
      case ClientAt::kStoreFirst:
        return store_half(0, ClientAt::kStoreSecond);
      case ClientAt::kStoreSecond:
        if (must_leave()) stop_storing();
        if (model_.scenario->stragglers && must_leave()) leave_straggler();
        return store_half(1, ClientAt::kPost);
      case ClientAt::kPost:
        return post_commit();
      case ClientAt::kAwaitCommit:
        return await_commit();
      case ClientAt::kAwaitDoubt:
      case ClientAt::kLeave:
      case ClientAt::kAwaitView:
        return attach_steps(model_, state_, index_, sink_);
      case ClientAt::kExited:
        return;
    }
  }

 private:
  // The copying thread of an earlier incarnation stores its half, whenever it gets round to it.
  void straggle() const {
    if (self_.straggler_hash == 0 || !has_room(buffer_, 1)) return;
    emit("copying thread stores half 1 of block %d (h%d)",
         {self_.straggler_block, self_.straggler_hash, 0, 0}, [&](Client& self, Buffer& buffer) {
           store(buffer, data_line(self_.straggler_block, 1), self_.straggler_hash);
           self.straggler_hash = self.straggler_block = 0;
         });
  }

  static std::uint8_t data_line(int block, int half) {
    return static_cast<std::uint8_t>(kDataLine + block * kHalves + half);
  }

  void idle() const {
    if (must_leave()) stop_storing();
    // Unanswered commits are sent again (W5), now or behind other work.
    if (self_.doubt_hash != 0) resend_doubt();
    if (self_.put == program_.size()) {
      if (self_.doubt_hash == 0) leave_world("has done its work and exits");
      return;
    }
    if (self_.holds != 0) {
      return emit("goes on with block %d, generation %d", {self_.block, self_.generation, 0, 0},
                  [](Client& self, Buffer&) { self.at = ClientAt::kStoreFirst; });
    }
    ask_for_grant();
  }

  void ask_for_grant() const {
    if (!has_room(buffer_, 1)) return;
    emit("asks keeper %d for a block", {self_.epoch, 0, 0, 0}, [&](Client& self, Buffer& buffer) {
      Request request;
      request.op = Request::kGrant;
      post(self, buffer, request);
      self.at = ClientAt::kAwaitGrant;
    });
  }

  void await_grant() const {
    if (must_leave()) stop_storing();
    const Response response = answer();
    if (!is_answered(response)) return;
    if (response.verdict == Response::kNoSpace) {
      return emit("hears that there is no block", {}, [](Client& self, Buffer&) {
        ++self.put;
        self.at = ClientAt::kIdle;
      });
    }
    emit("takes the grant of block %d, generation %d", {response.block, response.generation, 0, 0},
         [&](Client& self, Buffer&) {
           self.holds = 1;
           self.block = static_cast<std::uint8_t>(response.block);
           self.generation = static_cast<std::uint8_t>(response.generation);
           self.at = model_.broken(Variant::kOldKeepersGrantsHonoured) ? ClientAt::kStoreFirst
                                                                       : ClientAt::kCheckKeeper;
         });
  }

  void check_keeper() const {
    if (ruling_epoch(state_.pool[kSuccessorLine]) != self_.epoch) {
      return emit("sees another keeper: the grant is void", {}, [](Client& self, Buffer&) {
        self.holds = self.block = self.generation = 0;
        self.at = ClientAt::kLeave;
      });
    }
    emit("sees that keeper %d still rules", {self_.epoch, 0, 0, 0},
         [](Client& self, Buffer&) { self.at = ClientAt::kStoreFirst; });
  }

  void store_half(int half, ClientAt then) const {
    if (!has_room(buffer_, 1)) return;
    emit("stores half %d of block %d (h%d)", {half, self_.block, hash(), 0},
         [&](Client& self, Buffer& buffer) {
           store(buffer, data_line(self_.block, half), hash());
           self.at = then;
         });
  }

  void leave_straggler() const {
    emit("leaves; a copying thread has half 1 of block %d (h%d) to store",
         {self_.block, hash(), 0, 0}, [&](Client& self, Buffer&) {
           self.straggler_hash = hash();
           self.straggler_block = self_.block;
           self.holds = self.block = self.generation = 0;
           ++self.put;
           self.at = ClientAt::kLeave;
         });
  }

  void post_commit() const {
    if (self_.doubt_hash != 0) resend_doubt();
    if (!has_room(buffer_, 1)) return;
    emit("commits h%d -> block %d, generation %d", {hash(), self_.block, self_.generation, 0},
         [&](Client& self, Buffer& buffer) {
           post(self, buffer, commit(hash(), self_.block, self_.generation));
           self.at = ClientAt::kAwaitCommit;
         });
  }

  void await_commit() const {
    if (must_leave()) stop_storing();
    if (self_.retries < model_.scenario->retries && has_room(buffer_, 1)) {
      emit("waits no longer and posts its commit of h%d again", {hash(), 0, 0, 0},
           [&](Client& self, Buffer& buffer) {
             post(self, buffer, commit(hash(), self_.block, self_.generation));
             ++self.retries;
           });
    }
    if (model_.broken(Variant::kBlockReusedAfterCommitTimeout) &&
        self_.put + std::size_t{1} < program_.size()) {
      emit("waits no longer and reuses block %d", {self_.block, 0, 0, 0},
           [](Client& self, Buffer&) {
             ++self.put;
             self.retries = 0;
             self.at = ClientAt::kStoreFirst;
           });
    }
    const Response response = answer();
    // The answer to any of its posts will do: commit is idempotent (W2).
    const bool is_mine = response.incarnation == self_.incarnation &&
                         response.sequence + self_.retries >= self_.sequence;
    if (!is_mine) return;
    emit(verdict_text(response.verdict), {hash(), self_.block, 0, 0}, [&](Client& self, Buffer&) {
      ++self.put;
      self.retries = 0;
      self.at = ClientAt::kIdle;
      if (response.verdict == Response::kDuplicate) {
        if (!model_.broken(Variant::kReturnedBlockKeepsGeneration)) ++self.generation;  // W3
      } else {
        self.holds = self.block = self.generation = 0;
      }
    });
  }
};

}  // namespace

void client_steps(const Model& model, const State& state, int client, Sink& sink) {
  ClientSteps(model, state, client, sink).all();
}

}  // namespace cachalot::specs
