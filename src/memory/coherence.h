// The only way in which shared memory is touched.
//
// A Domain is one host's view of the pool: it knows what it takes that a write becomes visible to
// other hosts and that a read sees what others wrote. The protocol above it (rpc, pool) is written
// once against this interface and runs unchanged where caches are coherent, where they are not,
// and in a simulator that is as nasty as the rules allow.
//
//   domain       | write                        | read                                    | order() / complete()
//   coherent     | release store; bulk by size  | acquire load, memcpy                    | compiler, sfence after NT / mfence
//   noncoherent  | non-temporal 64-byte stores  | mfence, clflushopt every line, mfence,  | sfence / mfence, and read-back
//                |                              | loads                                   | where the policy asks for it
//   mixed        | as the device at the address is              | the same                                | see mixed_domain.h
//   lossy        | simulated host cache and write buffer, see testing/memory/
//
// The rules R1 to R6 that this interface serves are in docs/design/memory.md.
//
// @threads  a Domain has no state that calls change, except `lossy`: any thread may call any
//           function at any time. order() and complete() speak of the calling thread's own writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "memory/copy_run.h"
#include "memory/cpu.h"
#include "memory/fused_hash.h"
#include "memory/line.h"

namespace cachalot::memory {

// kMixed: the device with the metadata is coherent, and at least one other is not.
enum class DomainKind : std::uint32_t { kCoherent = 1, kNoncoherent = 2, kLossy = 3, kMixed = 4 };

const char* domain_name(DomainKind kind);

// The rules of the pool protocol, as switches that tests throw to see that the checks notice.
enum class Rule : std::uint32_t {
  kNone = 0,
  kR1OneWriterPerLine,       // keeper and client write into one line of the client table
  kR2NothingDirty,           // plain stores instead of whole-line non-temporal ones
  kR3FlushBeforeRead,        // loads without invalidation
  kR3FenceBeforeFlush,       // no fence between earlier loads and the flush
  kR3FenceAfterFlush,        // no fence between the flush and the loads
  kR4OrderBeforePublish,     // no order() between a payload and the line that names it
  kR4CompleteBeforeTelling,  // no complete() before telling by another way than the pool
  kR5CheckLines,             // a line is believed without its CRC
  kR5ConfirmSplitLines,      // a line that may be torn is acted upon after one read
  kR6ValidateAfterReading,   // a payload is believed without reading its entry again
  // Ways to get faults wrong (specs/README.md, "Broken rules").
  kValidateGenerationOnly,        // R6 compares the generation instead of the whole line
  kGrantBeforeTombstoneComplete,  // W4
  kForgetGenerationAtTakeover,    // W4: the ledger's generations are not read
  kReuseAfterTimeout,             // W1: a block whose commit was not answered is used again
  kCommitNotIdempotent,           // W2: a commit that is sent again is refused
  kReturnedBlockKeepsGeneration,  // W3
  kHonourOldGrants,               // the keeper line is not read again after a grant
  kAnswerBeforeMinEpoch,          // a successor serves before the old entries are void
  kLoseQuarantineAtTakeover,      // held blocks are free for a successor
  kReleaseOnReattach,             // a new incarnation is taken as proof that the old one is done
  kPinWithoutComplete,            // a pin is on its way while the lookup is done already
};

class Domain {
 public:
  virtual ~Domain() = default;

  virtual DomainKind kind() const = 0;

  // True if others see a line write whole or not at all, as measured, not as promised by a vendor; where
  // it is false, readers need two equal reads (R5). False for cached stores, however wide.
  virtual bool writes_whole_lines() const = 0;

  // Lines. `to` and `from` are 64-byte aligned addresses inside a mapped device.
  // Writes are visible to others in the order of order() calls only.
  virtual void write_lines(void* to, const Line* lines, std::size_t count) = 0;   // one run
  virtual void read_lines(const void* from, std::size_t count, Line* lines) = 0;  // one run
  // Any lines, all invalidations first, then all loads overlapped: one pair of fences in all.
  virtual void gather_lines(const void* const* from, std::size_t count, Line* lines) = 0;

  // A line that will soon be gathered. Worth something only where a read does not begin by throwing
  // the line out of the cache.
  bool hints_help() const { return hints_help_; }
  void hint(const void* line) const {
    if (hints_help_) __builtin_prefetch(line);
  }

  void write_line(void* to, const Line& line) { write_lines(to, &line, 1); }
  Line read_line(const void* from) {
    Line line;
    read_lines(from, 1, &line);
    return line;
  }

  // Payload. The pool side is 64-byte aligned and written in whole lines: `bytes` is a multiple of
  // 64. The private side may be anywhere. `hash` runs over the bytes while they are copied.
  virtual void write_bulk(void* to, const void* from, std::size_t bytes,
                          FusedHash* hash = nullptr) = 0;
  virtual void read_bulk(void* to, const void* from, std::size_t bytes,
                         FusedHash* hash = nullptr) = 0;

  // Payload in many pieces. A copy engine hands over runs by the hundred: one call, one fence, and
  // a prefetch that goes on from one run to the next.
  //
  // Writing: every `to` is 64-byte aligned pool memory, all bytes are multiples of 64.
  virtual void write_runs(const CopyRun* runs, std::size_t count, FusedHash* hash = nullptr);

  // Reading, split: prepare_read() invalidates all that will be read, whole lines, with one pair of
  // fences; read_prepared() then copies pieces of any size and alignment out of it, once or in many
  // calls. What is read is as of some moment after prepare_read() began (R3), so one preparation
  // serves one read: a caller that wants newer bytes, or validates (R6) and tries again, prepares again.
  // The same thread, or one that synchronised with it behind the preparation.
  // `hash` runs over the runs in their order; with it all bytes are multiples of 64.
  // By default, which is right for every domain and slow, lines are read one by one.
  virtual void prepare_read(const Extent* extents, std::size_t count);
  virtual void read_prepared(const CopyRun* runs, std::size_t count, FusedHash* hash = nullptr);

  // What this thread wrote before is seen by every host before what it writes after.
  virtual void order() = 0;
  // What this thread wrote before has reached the device: a host told by other means will read it.
  virtual void complete() = 0;

  // True in a test that broke this rule on purpose; constant false in a build without switches.
#ifdef CACHALOT_RULE_SWITCHES
  bool broken(Rule rule) const {
    return broken_ == rule;
  }
  void break_rule(Rule rule) {
    broken_ = rule;
  }
#else
  static constexpr bool broken(Rule) {
    return false;
  }
#endif

 protected:
  explicit Domain(bool hints_help = false) : hints_help_(hints_help) {}

 private:
  const bool hints_help_;
#ifdef CACHALOT_RULE_SWITCHES
  Rule broken_ = Rule::kNone;
#endif
};

// How complete() makes sure (platforms differ in what a fence promises; docs/design/memory.md):
//   kFence     MFENCE
//   kReadBack  MFENCE, then the last line that the calling thread wrote in every 2 MiB it touched
//              since its last complete() is flushed and read again. A mapping must not go away
//              between a write and the complete() of the thread that wrote.
enum class CompletePolicy { kFence, kReadBack };

// The two real domains, with the widest instructions this machine has (for tests, at most `isa`).
std::unique_ptr<Domain> make_coherent_domain(Isa isa = Isa::kAuto);
std::unique_ptr<Domain> make_noncoherent_domain(Isa isa = Isa::kAuto,
                                                CompletePolicy complete = CompletePolicy::kFence);

}  // namespace cachalot::memory
