// A keeper that serves: which requests it takes up, grants and evictions.

#include "keeper_actor.h"

namespace cachalot::specs {

namespace {

class KeeperSteps : public KeeperActor {
 public:
  using KeeperActor::KeeperActor;

  void all() const {
    switch (self_.at) {
      case KeeperAt::kServing:
        serve();
        break;
      case KeeperAt::kCompleteGrant:
        answer_grant();
        break;
      case KeeperAt::kCompleteTombstone:
        look_at_pins();
        break;
      default:
        return;
    }
    if (index_ == 0 && model_.scenario->successor) {
      emit("crashes", {}, [](Keeper& self, Buffer&) {
        self = {};
        self.at = KeeperAt::kGone;
      });
    }
  }

 private:
  void serve() const {
    if (model_.broken(Variant::kNewKeeperAnswersBeforeMinEpoch) &&
        state_.pool[kSuccessorLine] == kServesTooEarly && has_room(buffer_, 1)) {
      emit("publishes {epoch 2, min 2} at last", {},
           [](Keeper&, Buffer& buffer) { store(buffer, kSuccessorLine, kSuccessorRules); });
    }
    for (int client = 0; client < kClients; ++client) {
      const Session& session = self_.sessions[client];
      const Request request = Request::from(state_.pool[kRequestLine + client]);
      // W5, and each post is executed once.
      if (session.closed == 0 && request.epoch == epoch_ &&
          request.incarnation == session.incarnation && request.sequence != session.sequence) {
        if (request.op == Request::kGrant) {
          serve_grant(client, request);
        } else {
          commit_steps(model_, state_, index_, client, request, sink_);
        }
      }
      look_after_client(model_, state_, index_, client, sink_);
    }
    for (int block = 0; block < kBlocks; ++block) {
      const int oldest = Pin::from(state_.pool[kPinLine]).oldest;
      const Record& record = self_.blocks[block];
      if (record.state != kLimbo || (oldest != 0 && oldest <= record.pinned_until)) continue;
      emit("sees no pin from before: block %d is free", {block, 0, 0, 0},
           [&](Keeper& self, Buffer&) { free_block(self.blocks[block], false); });
    }
  }

  void serve_grant(int client, const Request& request) const {
    if (!has_room(buffer_, 3)) return;
    bool is_some_live = false;
    bool is_some_in_limbo = false;
    for (int block = 0; block < kBlocks; ++block) {
      if (self_.blocks[block].state == kFree) return grant(client, request, block, false);
      is_some_live |= self_.blocks[block].state == kLive;
      is_some_in_limbo |= self_.blocks[block].state == kLimbo;
    }
    for (int block = 0; block < kBlocks; ++block) {
      if (self_.blocks[block].state != kLive) continue;
      if (pins(model_)) {
        retract(block);
      } else {
        grant(client, request, block, true);
      }
    }
    if (is_some_live || is_some_in_limbo) return;
    emit("has no block for client %d", {client, 0, 0, 0}, [&](Keeper& self, Buffer& buffer) {
      self.sessions[client].sequence = static_cast<std::uint8_t>(request.sequence);
      answer(self, buffer, client, Response::kNoSpace);
    });
  }

  void grant(int client, const Request& request, int block, bool evicts) const {
    const Record& known = self_.blocks[block];
    const bool is_hasty = model_.broken(Variant::kGrantBeforeTombstoneComplete);
    emit(evicts ? "evicts h%3$d and grants block %1$d, generation %2$d"
                : "grants block %1$d, generation %2$d",
         {block, known.generation + 1, known.hash, 0}, [&](Keeper& self, Buffer& buffer) {
           if (evicts) store(buffer, entry_line(slot_of(model_, known.hash)), kTombstone);
           Record& record = self.blocks[block];
           record.state = kGranted;
           ++record.generation;
           record.holder = static_cast<std::uint8_t>(client);
           record.incarnation = self.sessions[client].incarnation;
           record.hash = 0;
           store_ledger(self, buffer, block);
           self.sessions[client].sequence = static_cast<std::uint8_t>(request.sequence);
           if (is_hasty) {
             return answer(self, buffer, client, Response::kGrant, block, record.generation);
           }
           self.at = KeeperAt::kCompleteGrant;
           self.client = static_cast<std::uint8_t>(client);
           self.block = static_cast<std::uint8_t>(block);
         });
  }

  // One complete() for the tombstone (W4) and the ledger line.
  void answer_grant() const {
    const bool is_hasty = model_.broken(Variant::kGrantOrderedNotCompleted);
    if (is_hasty ? !has_room(buffer_, 1) : !is_drained(buffer_)) return;
    emit(is_hasty ? "answers client %d: block %d" : "completes, and answers client %d: block %d",
         {self_.client, self_.block, 0, 0}, [&](Keeper& self, Buffer& buffer) {
           order(buffer);
           answer(self, buffer, self.client, Response::kGrant, self.block,
                  self.blocks[self.block].generation);
           self.at = KeeperAt::kServing;
           self.client = self.block = 0;
         });
  }

  void look_at_pins() const {
    const bool is_hasty = model_.broken(Variant::kPinsReadBeforeTombstoneComplete);
    if (!is_hasty && !is_drained(buffer_)) return;
    const bool is_pinned = Pin::from(state_.pool[kPinLine]).oldest != 0;
    emit(is_pinned ? "completes, sees a pin: block %d is in limbo"
                   : "completes, sees no pin: block %d is free",
         {self_.block, 0, 0, 0}, [&](Keeper& self, Buffer&) {
           free_block(self.blocks[self.block], is_pinned);
           self.at = KeeperAt::kServing;
           self.block = 0;
         });
  }
};

}  // namespace

void keeper_steps(const Model& model, const State& state, int keeper, Sink& sink) {
  KeeperSteps(model, state, keeper, sink).all();
}

}  // namespace cachalot::specs
