// A keeper that serves a commit.

#include "keeper_actor.h"

namespace cachalot::specs {

namespace {

class CommitSteps : public KeeperActor {
 public:
  using KeeperActor::KeeperActor;

  void serve_commit(int client, const Request& request) const {
    const Record& known = self_.blocks[request.block];
    const bool is_held = known.state == kGranted && known.generation == request.generation &&
                         known.holder == client &&
                         known.incarnation == self_.sessions[client].incarnation;
    const int existing = live_block(request.hash);
    const bool is_replay = existing == request.block && known.generation == request.generation;
    if (is_replay && !model_.broken(Variant::kCommitReplayedNotIdempotent)) {  // W2
      return reply(client, request, Response::kCommitted, "finds h%d committed");
    }
    if (!is_held && !is_replay) {
      return reply(client, request, Response::kNotHeld, "refuses to publish h%d: not held");
    }
    if (existing >= 0) return return_to_grant(client, request);
    publish(client, request);
  }

 private:
  int live_block(int hash) const {
    for (int block = 0; block < kBlocks; ++block) {
      if (self_.blocks[block].state == kLive && self_.blocks[block].hash == hash) return block;
    }
    return -1;
  }
  int block_in_slot(int slot) const {
    for (int block = 0; block < kBlocks; ++block) {
      const Record& record = self_.blocks[block];
      if (record.state == kLive && slot_of(model_, record.hash) == slot) return block;
    }
    return -1;
  }

  void reply(int client, const Request& request, int verdict, const char* text) const {
    if (!has_room(buffer_, 1)) return;
    emit(text, {request.hash, 0, 0, 0}, [&](Keeper& self, Buffer& buffer) {
      self.sessions[client].sequence = static_cast<std::uint8_t>(request.sequence);
      answer(self, buffer, client, verdict);
    });
  }

  // The first one won. W3: the block's next use is recorded before the answer.
  void return_to_grant(int client, const Request& request) const {
    if (!has_room(buffer_, 2)) return;
    emit("knows h%d already: block %d goes back to client %d",
         {request.hash, request.block, client, 0}, [&](Keeper& self, Buffer& buffer) {
           Record& record = self.blocks[request.block];
           record.state = kGranted;
           if (!model_.broken(Variant::kReturnedBlockKeepsGeneration)) ++record.generation;
           record.holder = static_cast<std::uint8_t>(client);
           record.incarnation = self.sessions[client].incarnation;
           record.hash = 0;
           store_ledger(self, buffer, request.block);
           order(buffer);
           self.sessions[client].sequence = static_cast<std::uint8_t>(request.sequence);
           answer(self, buffer, client, Response::kDuplicate);
         });
  }

  // Entry, then ledger, then answer. A slot that is taken is taken over: its block is free, but is
  // granted only after the complete() of its grant.
  void publish(int client, const Request& request) const {
    const int slot = slot_of(model_, request.hash);
    const int evicted = block_in_slot(slot);
    if (evicted >= 0 && pins(model_)) {
      if (has_room(buffer_, 1)) retract(evicted);
      return;
    }
    if (!has_room(buffer_, evicted >= 0 ? 4 : 3)) return;
    emit("publishes h%d -> block %d, generation %d",
         {request.hash, request.block, request.generation, 0}, [&](Keeper& self, Buffer& buffer) {
           Entry entry;
           entry.hash = request.hash;
           entry.block = request.block;
           entry.epoch = static_cast<std::uint16_t>(epoch_);
           entry.generation = request.generation;
           store(buffer, entry_line(slot), entry.pack());
           order(buffer);
           if (evicted >= 0) {
             self.blocks[evicted].state = kFree;
             self.blocks[evicted].hash = 0;
             store_ledger(self, buffer, evicted);
           }
           Record& record = self.blocks[request.block];
           record.state = kLive;
           record.hash = static_cast<std::uint8_t>(request.hash);
           store_ledger(self, buffer, request.block);
           order(buffer);
           self.sessions[client].sequence = static_cast<std::uint8_t>(request.sequence);
           answer(self, buffer, client, Response::kCommitted);
         });
  }
};

}  // namespace

void commit_steps(const Model& model, const State& state, int keeper, int client,
                  const Request& request, Sink& sink) {
  CommitSteps(model, state, keeper, sink).serve_commit(client, request);
}

}  // namespace cachalot::specs
