// Clients that come, stall and go, as a keeper sees them: suspicion, evidence, release.

#include <algorithm>

#include "keeper_actor.h"

namespace cachalot::specs {

namespace {

class LookAfterSteps : public KeeperActor {
 public:
  using KeeperActor::KeeperActor;

  void look_after(int client) const {
    if (!has_room(buffer_, kBlocks + 1)) return;
    const Session& session = self_.sessions[client];
    // Each client is suspected once.
    if (model_.scenario->suspicion && session.closed == 0 && session.incarnation == 1) {
      suspect(client);
    }
    const Greeting greeting = Greeting::from(state_.pool[kClientLine + client]);
    if (greeting.epoch == epoch_ && greeting.incarnation > session.incarnation) {
      let_in(client, greeting);
    }
    const bool has_exited =
        state_.clients[client].at == ClientAt::kExited &&
        (is_drained(state_.buffers[client]) || model_.broken(Variant::kEvidenceBeforeExitDrains));
    if (has_exited && std::any_of(self_.blocks, self_.blocks + kBlocks, [&](const Record& record) {
          return is_held_by(record, client);
        })) {
      emit("learns that client %d has exited: its blocks are free", {client, 0, 0, 0},
           [&](Keeper& self, Buffer& buffer) {
             release(self, buffer, client, 3);
             order(buffer);
           });
    }
  }

 private:
  static bool is_held_by(const Record& record, int client) {
    return (record.state == kGranted || record.state == kQuarantined) && record.holder == client;
  }

  // Free what incarnations up to `drained` hold, quarantine the rest. What comes out of quarantine
  // may have had an entry that no tombstone of this keeper retracted, so pins count here too.
  void release(Keeper& self, Buffer& buffer, int client, int drained) const {
    const bool is_pinned = Pin::from(state_.pool[kPinLine]).oldest != 0 &&
                           !model_.broken(Variant::kPinsIgnoredAtRelease);
    for (int block = 0; block < kBlocks; ++block) {
      Record& record = self.blocks[block];
      if (!is_held_by(record, client)) continue;
      if (record.incarnation <= drained) {
        free_block(record, is_pinned);
      } else {
        record.state = kQuarantined;
      }
      store_ledger(self, buffer, block);
    }
  }

  void suspect(int client) const {
    emit("suspects client %d: its blocks are in quarantine", {client, 0, 0, 0},
         [&](Keeper& self, Buffer& buffer) {
           release(self, buffer, client, 0);
           self.sessions[client].closed = 1;
           publish_view(self, buffer, client);
         });
  }

  void let_in(int client, const Greeting& greeting) const {
    const int drained = model_.broken(Variant::kReleasedBecauseItReattached) ? 3 : greeting.drained;
    emit("lets client %d in as incarnation %d; drained up to %d",
         {client, greeting.incarnation, greeting.drained, 0}, [&](Keeper& self, Buffer& buffer) {
           release(self, buffer, client, drained);
           self.sessions[client] = {static_cast<std::uint8_t>(greeting.incarnation), 0, 0};
           publish_view(self, buffer, client);
         });
  }

  void publish_view(const Keeper& self, Buffer& buffer, int client) const {
    const Session& session = self.sessions[client];
    order(buffer);
    store(buffer, static_cast<std::uint8_t>(kViewLine + index_ * kClients + client),
          static_cast<std::uint16_t>(session.incarnation | (session.closed != 0 ? kSuspected : 0)));
    order(buffer);
  }
};

}  // namespace

void look_after_client(const Model& model, const State& state, int keeper, int client, Sink& sink) {
  LookAfterSteps(model, state, keeper, sink).look_after(client);
}

}  // namespace cachalot::specs
