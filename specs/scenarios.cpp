#include "scenarios.h"

#include <cstring>

namespace cachalot::specs {

namespace {

std::uint16_t entry(int hash, int block, int generation) {
  Entry line;
  line.hash = static_cast<std::uint16_t>(hash);
  line.block = static_cast<std::uint16_t>(block);
  line.epoch = 1;
  line.generation = static_cast<std::uint16_t>(generation);
  return line.pack();
}

}  // namespace

const std::vector<Scenario>& scenarios() {
  static const std::vector<Scenario> kScenarios = {
      {.name = "evict",
       .about = "two writers, evictions, one slot for all hashes",
       .programs = {{1, 2}, {2}},
       .wanted = {1, 2},
       .live = {},
       .slots = 1},
      {.name = "replay",
       .about = "two writers, a hash that is there already, commits posted twice",
       .programs = {{1, 2}, {3}},
       .wanted = {1, 2},
       .live = {entry(1, 1, 1)},
       .slots = 2,
       .retries = 1},
      {.name = "takeover",
       .about = "a writer, a keeper that stalls or crashes at any step, its successor",
       .programs = {{1, 2}, {}},
       .wanted = {1, 2},
       .live = {},
       .slots = 1,
       .successor = true},
      {.name = "replay_takeover",
       .about = "a hash that is there already, commits posted twice, keeper and successor",
       .programs = {{1, 2}, {}},
       .wanted = {1, 2},
       .live = {entry(1, 1, 1)},
       .slots = 2,
       .retries = 1,
       .successor = true},
      {.name = "takeover_late",
       .about = "a writer of the first keeper, one of the second",
       .programs = {{2}, {3}},
       .wanted = {2, 3},
       .live = {entry(1, 1, 1)},
       .slots = 1,
       .b_comes_late = true,
       .successor = true},
      {.name = "suspicion",
       .about = "two writers, the keeper suspects, copying threads outlive incarnations, crashes",
       .programs = {{1}, {2}},
       .wanted = {1, 2},
       .live = {},
       .slots = 1,
       .clients_crash = true,
       .suspicion = true,
       .stragglers = true},
      {.name = "pinned",
       .about = "a pinned reader, two writers",
       .programs = {{2}, {3}},
       .wanted = {1, 2},
       .live = {entry(1, 1, 1)},
       .slots = 2,
       .pinned_reads = 2},
      {.name = "pinned_takeover",
       .about = "a pinned reader, a writer, keeper and successor",
       .programs = {{2, 3}, {}},
       .wanted = {1, 2},
       .live = {entry(1, 1, 1)},
       .slots = 2,
       .successor = true,
       .pinned_reads = 2},
      {.name = "takeover_two",
       .about = "two writers, keeper and successor",
       .programs = {{2}, {3}},
       .wanted = {2, 3},
       .live = {entry(1, 1, 1)},
       .slots = 1,
       .successor = true,
       .deep = true},
      {.name = "takeover_two_blind",
       .about = "two writers, keeper and successor, no reader",
       .programs = {{2}, {3}},
       .wanted = {},
       .live = {entry(1, 1, 1)},
       .slots = 1,
       .successor = true,
       .deep = true},
      {.name = "suspicion_takeover_blind",
       .about = "suspicion by both keepers, copying threads that outlive incarnations, no reader",
       .programs = {{2}, {3}},
       .wanted = {},
       .live = {},
       .slots = 1,
       .clients_crash = true,
       .b_comes_late = true,
       .successor = true,
       .suspicion = true,
       .stragglers = true,
       .deep = true},
  };
  return kScenarios;
}

const Scenario* find_scenario(const char* name) {
  for (const Scenario& scenario : scenarios()) {
    if (std::strcmp(scenario.name, name) == 0) return &scenario;
  }
  return nullptr;
}

const std::vector<VariantInfo>& variants() {
  static const std::vector<VariantInfo> kVariants = {
      {Variant::kValidateGenerationOnly, "validate_generation_only", "evict"},
      {Variant::kValidateWithoutLeadingFence, "validate_without_leading_fence", "evict"},
      {Variant::kGrantBeforeTombstoneComplete, "grant_before_tombstone_complete", "evict"},
      {Variant::kGenerationForgottenAtTakeover, "generation_forgotten_at_takeover", "takeover"},
      {Variant::kBlockReusedAfterCommitTimeout, "block_reused_after_commit_timeout", "evict"},
      {Variant::kCommitReplayedNotIdempotent, "commit_replayed_not_idempotent", "takeover"},
      {Variant::kReturnedBlockKeepsGeneration, "returned_block_keeps_generation", "replay"},
      {Variant::kOldKeepersGrantsHonoured, "old_keepers_grants_honoured", "takeover_late"},
      {Variant::kNewKeeperAnswersBeforeMinEpoch, "new_keeper_answers_before_min_epoch", "takeover"},
      {Variant::kQuarantineLostAtTakeover, "quarantine_lost_at_takeover", "takeover_late"},
      {Variant::kReleasedBecauseItReattached, "released_because_it_reattached", "suspicion"},
      {Variant::kPinnedReadWithoutComplete, "pinned_read_without_complete", "pinned"},
      {Variant::kValidateIgnoresMinEpoch, "validate_ignores_min_epoch", "takeover"},
      {Variant::kPinsIgnoredAtTakeover, "pins_ignored_at_takeover", "pinned_takeover"},
      {Variant::kPinsReadBeforeMinEpoch, "pins_read_before_min_epoch", "pinned_takeover", false},
      {Variant::kPinsIgnoredAtRelease, "pins_ignored_at_release", "pinned_takeover"},
      {Variant::kEvidenceBeforeExitDrains, "evidence_before_exit_drains", "suspicion"},
      {Variant::kReadNotValidated, "read_not_validated", "evict"},
      {Variant::kCommitNotOrdered, "commit_not_ordered", "evict"},
      {Variant::kAttachedAgainWithoutComplete, "attached_again_without_complete", "takeover_late"},
      {Variant::kScanBeforeEpochComplete, "scan_before_epoch_complete", "takeover_late"},
      {Variant::kSweepNotCompleted, "sweep_not_completed", "takeover_late", false},
      {Variant::kGrantOrderedNotCompleted, "grant_ordered_not_completed", "takeover_late", false},
      {Variant::kPinsReadBeforeTombstoneComplete, "pins_read_before_tombstone_complete", "pinned"},
      {Variant::kOldEntriesAdopted, "old_entries_adopted", "takeover_late", false},
  };
  return kVariants;
}

const VariantInfo* find_variant(const char* name) {
  for (const VariantInfo& variant : variants()) {
    if (std::strcmp(variant.name, name) == 0) return &variant;
  }
  return nullptr;
}

State initial_state(const Model& model) {
  const Scenario& scenario = *model.scenario;
  State state{};
  Keeper& keeper = state.keepers[0];
  keeper.at = KeeperAt::kServing;
  for (const std::uint16_t line : scenario.live) {
    const Entry published = Entry::from(line);
    state.pool[kEntryLine + slot_of(model, published.hash)] = line;
    Record& record = keeper.blocks[published.block];
    record.state = kLive;
    record.generation = static_cast<std::uint8_t>(published.generation);
    record.hash = static_cast<std::uint8_t>(published.hash);
    for (int half = 0; half < kHalves; ++half) {
      state.pool[kDataLine + published.block * kHalves + half] = published.hash;
    }
  }
  for (int block = 0; block < kBlocks && scenario.successor; ++block) {
    state.pool[kLedgerLine + block] = keeper.blocks[block].pack();
  }
  for (int client = 0; client < kClients; ++client) {
    Client& self = state.clients[client];
    if (scenario.programs[client].empty()) {
      self.at = ClientAt::kExited;
      continue;
    }
    if (client == 1 && scenario.b_comes_late) {
      self.at = ClientAt::kLeave;
      continue;
    }
    self.incarnation = self.epoch = 1;
    keeper.sessions[client].incarnation = 1;
    state.pool[kViewLine + client] = 1;
    Greeting greeting;
    greeting.incarnation = greeting.epoch = 1;
    state.pool[kClientLine + client] = greeting.pack();
  }
  return state;
}

}  // namespace cachalot::specs
