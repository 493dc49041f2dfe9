// What all steps of a serving keeper share. Its memory is its own, and what it stores waits in its
// buffer, so a step may do all that lies between two waits.
#pragma once

#include "buffer.h"

namespace cachalot::specs {

class KeeperActor {
 public:
  KeeperActor(const Model& model, const State& state, int keeper, Sink& sink)
      : model_(model),
        state_(state),
        index_(keeper),
        host_(kKeeper + keeper),
        epoch_(keeper + 1),
        self_(state.keepers[keeper]),
        buffer_(state.buffers[host_]),
        sink_(sink) {}

 protected:
  static constexpr std::uint16_t kTombstone = 0;

  template <typename Change>
  void emit(const char* format, const int (&values)[4], Change change) const {
    State next = state_;
    change(next.keepers[index_], next.buffers[host_]);
    Label label{index_ == 0 ? "K1" : "K2", format};
    for (int i = 0; i < 4; ++i) label.values[i] = values[i];
    sink_.step(next, label);
  }

  static std::uint8_t entry_line(int slot) { return static_cast<std::uint8_t>(kEntryLine + slot); }

  // Only the first keeper's ledger is ever read.
  void store_ledger(const Keeper& self, Buffer& buffer, int block) const {
    if (index_ != 0 || !model_.scenario->successor) return;
    store(buffer, static_cast<std::uint8_t>(kLedgerLine + block), self.blocks[block].pack());
  }

  void answer(const Keeper& self, Buffer& buffer, int client, int verdict, int block = 0,
              int generation = 0) const {
    Response response;
    response.sequence = self.sessions[client].sequence;
    response.incarnation = self.sessions[client].incarnation;
    response.verdict = static_cast<std::uint16_t>(verdict);
    response.block = static_cast<std::uint16_t>(block);
    response.generation = static_cast<std::uint16_t>(generation);
    store(buffer, static_cast<std::uint8_t>(kResponseLine + index_ * kClients + client),
          response.pack());
    order(buffer);
  }

  // Where reads are pinned, a block is free only when no reader that saw its entry can still read it.
  void retract(int block) const {
    const Record& known = self_.blocks[block];
    emit("writes a tombstone for h%d (block %d)", {known.hash, block, 0, 0},
         [&](Keeper& self, Buffer& buffer) {
           store(buffer, entry_line(slot_of(model_, known.hash)), kTombstone);
           self.at = KeeperAt::kCompleteTombstone;
           self.block = static_cast<std::uint8_t>(block);
         });
  }

  void free_block(Record& record, bool is_pinned) const {
    record.state = is_pinned ? kLimbo : kFree;
    record.pinned_until = is_pinned
                              ? static_cast<std::uint8_t>(Pin::from(state_.pool[kPinLine]).newest)
                              : std::uint8_t{0};
    record.hash = 0;
  }

  const Model& model_;
  const State& state_;
  const int index_;
  const int host_;
  const int epoch_;
  const Keeper& self_;
  const Buffer& buffer_;
  Sink& sink_;
};

// The steps that serve one commit, or look after one client.
void commit_steps(const Model& model, const State& state, int keeper, int client,
                  const Request& request, Sink& sink);
void look_after_client(const Model& model, const State& state, int keeper, int client, Sink& sink);

}  // namespace cachalot::specs
