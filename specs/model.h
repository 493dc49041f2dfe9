// The pool protocol at the level of lines: what the pool holds, what each host has not drained yet,
// and what each actor remembers. A state is plain bytes, so that equal states are equal bytes.
//
// The rules R1-R6 and W1-W5 are those of docs/design/pool.md.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "lines.h"

namespace cachalot::specs {

// --- Actors ------------------------------------------------------------------------------------

enum class ClientAt : std::uint8_t {
  kIdle,
  kAwaitGrant,
  kCheckKeeper,
  kStoreFirst,
  kStoreSecond,
  kPost,
  kAwaitCommit,
  kAwaitDoubt,
  kLeave,
  kAwaitView,
  kExited
};

struct Client {
  ClientAt at;
  std::uint8_t put;  // index into its program
  std::uint8_t epoch, incarnation, sequence;
  std::uint8_t holds;  // 1: block and generation are its own
  std::uint8_t block, generation;
  std::uint8_t retries;  // how often the commit in flight was posted again
  std::uint8_t doubt_hash, doubt_block, doubt_generation;  // W1; hash 0: nothing is in doubt
  std::uint8_t straggler_hash, straggler_block;  // a copying thread that has a half to store yet
};

enum class KeeperAt : std::uint8_t {
  kOff,
  kServing,
  kCompleteGrant,
  kCompleteTombstone,
  kGone,
  // Takeover, in this order.
  kCompleteEpoch,
  kReadLedger,
  kReadEntry,
  kSweep,
  kCompleteSweep,
  kCompleteMin
};

struct Session {
  std::uint8_t incarnation, sequence, closed;
};

struct Keeper {
  KeeperAt at;
  std::uint8_t client, block;  // of the request being served; slot or block being adopted
  Record blocks[kBlocks];
  Session sessions[kClients];
};

enum class ReaderAt : std::uint8_t {
  kIdle,
  kCompletePin,
  kLookup,
  kCopy,
  kValidate,
  kUnpin,
  kDone
};

struct Reader {
  ReaderAt at;
  std::uint8_t hash;
  std::uint8_t read;  // how many it has begun, where it pins
  std::uint8_t unused;
  std::uint8_t sampled;  // bits: lines of the current read that are in the cache
  std::uint8_t early;    // bits: lines of validation that were loaded early; a broken rule
  std::uint16_t entry, view;
  std::uint8_t halves[kHalves];
};

struct Pending {
  std::uint16_t value;
  std::uint8_t line;   // 0: none
  std::uint8_t group;  // a group drains when those before it have drained
};

struct Buffer {
  Pending lines[kPending];  // by group, then by line
  std::uint8_t next_group, unused;
};

struct State {
  std::uint16_t pool[kLines];
  Buffer buffers[kHosts];
  Keeper keepers[2];
  Reader reader;
  Client clients[kClients];
  std::uint8_t wrong_bytes;  // a reader received bytes of another hash
  std::uint8_t overwritten;  // bits: slots that the first keeper wrote after its successor's line
};
static_assert(std::has_unique_object_representations_v<State>);

// --- What is explored --------------------------------------------------------------------------

enum class Variant : std::uint8_t {
  kNone,
  kValidateGenerationOnly,
  kValidateWithoutLeadingFence,
  kGrantBeforeTombstoneComplete,
  kGenerationForgottenAtTakeover,
  kBlockReusedAfterCommitTimeout,
  kCommitReplayedNotIdempotent,
  kReturnedBlockKeepsGeneration,
  kOldKeepersGrantsHonoured,
  kNewKeeperAnswersBeforeMinEpoch,
  kQuarantineLostAtTakeover,
  kReleasedBecauseItReattached,
  kPinnedReadWithoutComplete,
  // Not of the twelve: what the protocol's text leaves open.
  kValidateIgnoresMinEpoch,
  kPinsIgnoredAtTakeover,
  kPinsReadBeforeMinEpoch,
  kPinsIgnoredAtRelease,
  // Rules with a number of their own, and each wait of the protocol taken away.
  kEvidenceBeforeExitDrains,
  kReadNotValidated,
  kCommitNotOrdered,
  kAttachedAgainWithoutComplete,
  kScanBeforeEpochComplete,
  kSweepNotCompleted,
  kGrantOrderedNotCompleted,
  kPinsReadBeforeTombstoneComplete,
  kOldEntriesAdopted,
};

struct Scenario {
  const char* name;
  const char* about;
  std::vector<std::uint8_t> programs[kClients];  // hashes to put, one after the other
  std::vector<std::uint8_t> wanted;              // hashes the reader may ask for
  std::vector<std::uint16_t> live;               // entries published before the start
  int slots = 1;                                 // hash h lives in slot h % slots
  int retries = 0;  // how often a client posts an unanswered commit again
  bool clients_crash = false;
  bool b_comes_late = false;  // client B attaches to the successor, not before
  bool successor = false;     // the keeper may stall or crash, and another takes over
  bool suspicion = false;     // the keeper may suspect a client at any time
  bool stragglers = false;    // a copying thread may outlive its incarnation
  int pinned_reads = 0;       // the reader pins and does not validate; else it reads once
  bool deep = false;          // not among the tests
};

struct Model {
  const Scenario* scenario;
  Variant variant = Variant::kNone;
  bool broken(Variant v) const { return variant == v; }
};

inline bool pins(const Model& model) {
  return model.scenario->pinned_reads != 0;
}
inline int slot_of(const Model& model, int hash) {
  return hash % model.scenario->slots;
}
inline int keeper_index(int epoch) {
  return epoch - 1;
}

// --- Steps -------------------------------------------------------------------------------------

// Says what a step did; written out only for a schedule.
struct Label {
  const char* actor;
  const char* format;  // printf's, of up to four ints
  int values[4] = {0, 0, 0, 0};
};

class Sink {
 public:
  virtual ~Sink() = default;
  virtual void step(const State& next, const Label& label) = 0;
};

State initial_state(const Model& model);
void memory_steps(const Model& model, const State& state, Sink& sink);
void client_steps(const Model& model, const State& state, int client, Sink& sink);
void keeper_steps(const Model& model, const State& state, int keeper, Sink& sink);
void takeover_steps(const Model& model, const State& state, Sink& sink);
void reader_steps(const Model& model, const State& state, Sink& sink);
void all_steps(const Model& model, const State& state, Sink& sink);

// @return what is wrong with a state, or nullptr
const char* check_state(const Model& model, const State& state);
// The same for a state without a next step.
const char* check_end(const Model& model, const State& state);

}  // namespace cachalot::specs
