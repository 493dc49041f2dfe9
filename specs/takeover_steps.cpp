// The successor, from its first line to its first answer. It may begin at any time: the first
// keeper has crashed, or sleeps, and may wake up at any step.

#include <algorithm>

#include "buffer.h"

namespace cachalot::specs {

namespace {

class TakeoverSteps {
 public:
  TakeoverSteps(const Model& model, const State& state, Sink& sink)
      : model_(model), state_(state), self_(state.keepers[1]), sink_(sink) {}

  void all() const {
    const bool is_complete = is_drained(state_.buffers[kSuccessor]);
    switch (self_.at) {
      case KeeperAt::kOff:
        return publish(kTakingOver, KeeperAt::kCompleteEpoch, "publishes {epoch 2, min 1}");
      case KeeperAt::kCompleteEpoch:
        if (is_complete || model_.broken(Variant::kScanBeforeEpochComplete)) {
          go_to(KeeperAt::kReadLedger, is_complete ? "completes" : "does not complete");
        }
        return;
      case KeeperAt::kReadEntry:
        return read_entry();
      case KeeperAt::kReadLedger:
        return read_ledger();
      case KeeperAt::kSweep:
        return sweep();
      case KeeperAt::kCompleteSweep:
        if (!is_complete && !model_.broken(Variant::kSweepNotCompleted)) return;
        if (model_.broken(Variant::kNewKeeperAnswersBeforeMinEpoch)) {
          return publish(kServesTooEarly, KeeperAt::kServing, "serves, but min_epoch is still 1");
        }
        return publish(kSuccessorRules, KeeperAt::kCompleteMin,
                       "completes, publishes {epoch 2, min 2}");
      case KeeperAt::kCompleteMin:
        if (is_complete) begin_to_serve();
        return;
      default:
        return;
    }
  }

 private:
  template <typename Change>
  void emit(const char* format, const int (&values)[4], Change change) const {
    State next = state_;
    change(next.keepers[1], next.buffers[kSuccessor]);
    Label label{"K2", format};
    for (int i = 0; i < 4; ++i) label.values[i] = values[i];
    sink_.step(next, label);
  }

  void publish(View view, KeeperAt then, const char* text) const {
    emit(text, {}, [&](Keeper& self, Buffer& buffer) {
      store(buffer, kSuccessorLine, view);
      if (view == kSuccessorRules && model_.broken(Variant::kPinsReadBeforeMinEpoch) &&
          Pin::from(state_.pool[kPinLine]).oldest != 0) {
        hold_free_blocks(self);
      }
      self.at = then;
    });
  }

  void go_to(KeeperAt then, const char* text) const {
    emit(text, {}, [&](Keeper& self, Buffer&) { self.at = then; });
  }

  void next(Keeper& self, int count, KeeperAt then) const {
    if (++self.block < count) return;
    self.block = 0;
    self.at = then;
  }

  // What a client held stays out of use; the rest is free, unless an entry says otherwise.
  void read_ledger() const {
    const Record ledger = Record::from(state_.pool[kLedgerLine + self_.block]);
    const bool is_held = ledger.state == kGranted || ledger.state == kQuarantined;
    emit("reads the ledger of block %d: state %d, generation %d",
         {self_.block, ledger.state, ledger.generation, 0}, [&](Keeper& self, Buffer&) {
           Record& record = self.blocks[self.block];
           record = ledger;
           record.state =
               is_held && !model_.broken(Variant::kQuarantineLostAtTakeover) ? kQuarantined : kFree;
           next(self, kBlocks, KeeperAt::kReadEntry);
         });
  }

  // W4: an entry counts if it is not older than what the ledger says of its block.
  void read_entry() const {
    const Entry entry = Entry::from(state_.pool[kEntryLine + self_.block]);
    const Record& known = self_.blocks[entry.block];
    const bool is_old = entry.generation < known.generation;
    const bool counts = entry.hash != 0 &&
                        (!is_old || model_.broken(Variant::kOldEntriesAdopted)) &&
                        (known.state != kLive || entry.generation > known.generation);
    const char* text = "reads slot %d: empty";
    if (entry.hash != 0) text = "drops slot %d: the ledger knows a later use (h%d, block %d)";
    if (counts) text = "reads slot %d, adopts h%d in block %d, generation %d";
    emit(text, {self_.block, entry.hash, entry.block, entry.generation},
         [&](Keeper& self, Buffer&) {
           if (counts) {
             Record& record = self.blocks[entry.block];
             record = {};
             record.state = kLive;
             record.generation = static_cast<std::uint8_t>(entry.generation);
             record.hash = static_cast<std::uint8_t>(entry.hash);
           }
           next(self, model_.scenario->slots, KeeperAt::kSweep);
           if (self.at == KeeperAt::kSweep) forget_generations(self);
         });
  }

  void forget_generations(Keeper& self) const {
    if (!model_.broken(Variant::kGenerationForgottenAtTakeover)) return;
    for (Record& record : self.blocks) {
      if (record.state != kLive) record.generation = 0;
    }
  }

  // Its own ledger is left out: there is no third keeper to read it.
  void sweep() const {
    emit("writes its live entries again with epoch 2", {}, [&](Keeper& self, Buffer& buffer) {
      for (int block = 0; block < kBlocks; ++block) {
        const Record& record = self.blocks[block];
        if (record.state != kLive) continue;
        Entry entry;
        entry.hash = record.hash;
        entry.block = static_cast<std::uint16_t>(block);
        entry.epoch = 2;
        entry.generation = record.generation;
        store(buffer, static_cast<std::uint8_t>(kEntryLine + slot_of(model_, record.hash)),
              entry.pack());
      }
      self.at = KeeperAt::kCompleteSweep;
    });
  }

  // A block that is free may have been retracted by the first keeper while a reader had it pinned.
  void begin_to_serve() const {
    const bool is_too_late = model_.broken(Variant::kPinsIgnoredAtTakeover) ||
                             model_.broken(Variant::kPinsReadBeforeMinEpoch);
    const bool is_pinned = !is_too_late && Pin::from(state_.pool[kPinLine]).oldest != 0;
    emit(is_pinned ? "completes, serves; there is a pin: free blocks are in limbo"
                   : "completes, serves",
         {}, [&](Keeper& self, Buffer&) {
           if (is_pinned) hold_free_blocks(self);
           self.at = KeeperAt::kServing;
         });
  }

  void hold_free_blocks(Keeper& self) const {
    for (Record& record : self.blocks) {
      if (record.state != kFree) continue;
      record.state = kLimbo;
      record.pinned_until = static_cast<std::uint8_t>(Pin::from(state_.pool[kPinLine]).newest);
    }
  }

  const Model& model_;
  const State& state_;
  const Keeper& self_;
  Sink& sink_;
};

}  // namespace

void takeover_steps(const Model& model, const State& state, Sink& sink) {
  if (model.scenario->successor) TakeoverSteps(model, state, sink).all();
}

}  // namespace cachalot::specs
