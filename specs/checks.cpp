// What must be true of every state, and of every end.

#include "buffer.h"

namespace cachalot::specs {

namespace {

bool serves(const Keeper& keeper) {
  return keeper.at == KeeperAt::kServing || keeper.at == KeeperAt::kCompleteGrant ||
         keeper.at == KeeperAt::kCompleteTombstone;
}

// The keeper whose word counts, or nullptr between two of them.
const Keeper* ruling_keeper(const State& state) {
  if (serves(state.keepers[1])) return &state.keepers[1];
  if (state.keepers[1].at == KeeperAt::kOff && serves(state.keepers[0])) return &state.keepers[0];
  return nullptr;
}

// Blocks that a client may still change: it is about to store, or its stores have not drained.
bool may_change(const State& state, int client, int block) {
  const Client& self = state.clients[client];
  if ((self.at == ClientAt::kStoreFirst || self.at == ClientAt::kStoreSecond) &&
      self.block == block) {
    return true;
  }
  if (self.straggler_hash != 0 && self.straggler_block == block) return true;
  for (const Pending& line : state.buffers[client].lines) {
    if (line.line >= kDataLine && (line.line - kDataLine) / kHalves == block) return true;
  }
  return false;
}

}  // namespace

const char* check_state(const Model&, const State& state) {
  const Keeper* keeper = ruling_keeper(state);
  if (keeper == nullptr) return nullptr;
  for (int client = 0; client < kClients; ++client) {
    for (int block = 0; block < kBlocks; ++block) {
      const Record& record = keeper->blocks[block];
      const bool is_his =
          (record.state == kGranted || record.state == kQuarantined) && record.holder == client;
      if (!is_his && may_change(state, client, block)) {
        return "a client may still store into a block that the ruling keeper does not count as his";
      }
    }
  }
  return nullptr;
}

const char* check_end(const Model& model, const State& state) {
  for (const Client& client : state.clients) {
    if (client.at != ClientAt::kExited) return "a client waits for ever";
  }
  if (state.reader.at != ReaderAt::kDone && !model.scenario->wanted.empty()) {
    return "the reader waits for ever";
  }
  const Keeper* keeper = ruling_keeper(state);
  if (keeper == nullptr) return "no keeper serves in the end";
  const int epoch = keeper == &state.keepers[1] ? 2 : 1;
  for (int block = 0; block < kBlocks; ++block) {
    const Record& record = keeper->blocks[block];
    if (record.state != kFree && record.state != kLive) return "a block leaks";
    if (record.state != kLive) continue;
    const Entry entry = Entry::from(state.pool[kEntryLine + slot_of(model, record.hash)]);
    const bool is_visible = entry.hash == record.hash && entry.block == block &&
                            entry.generation == record.generation && entry.epoch == epoch;
    // Scrubbing repairs what a keeper that woke up has overwritten.
    const bool is_overwritten = (state.overwritten >> slot_of(model, record.hash) & 1) != 0;
    if (!is_visible && !is_overwritten) return "a committed block cannot be seen";
    for (int half = 0; half < kHalves; ++half) {
      if (state.pool[kDataLine + block * kHalves + half] != record.hash)
        return "a live block holds other bytes";
    }
  }
  return nullptr;
}

}  // namespace cachalot::specs
