// What lies in the pool: the lines of the model, and how each is kept in 16 bits.
#pragma once

#include <cstdint>

namespace cachalot::specs {

inline constexpr int kBlocks = 2;
inline constexpr int kSlots = 2;
inline constexpr int kClients = 2;
inline constexpr int kHalves = 2;   // a payload has two lines, so that half of one can be seen
inline constexpr int kPending = 4;  // lines that a host's write buffer holds

// Hosts, each with a write buffer: clients 0 and 1, the first keeper, its successor, the reader.
enum Host : std::uint8_t { kWriterA, kWriterB, kKeeper, kSuccessor, kReader, kHosts };

// Line numbers; 0 is no line. A line holds 16 bits, 0 if it was never written.
enum : std::uint8_t {
  kSuccessorLine = 1,                       // a View; the first keeper's line never changes
  kEntryLine = 2,                           // + slot
  kLedgerLine = kEntryLine + kSlots,        // + block; the first keeper's
  kRequestLine = kLedgerLine + kBlocks,     // + client
  kResponseLine = kRequestLine + kClients,  // + keeper * kClients + client
  kClientLine = kResponseLine + 2 * kClients,
  kViewLine = kClientLine + kClients,  // + keeper * kClients + client
  kPinLine = kViewLine + 2 * kClients,
  kDataLine = kPinLine + 1,  // + block * kHalves + half: the hash they belong to
  kLines = kDataLine + kBlocks * kHalves,
};

// The successor's keeper line; the first keeper's is {epoch 1, min 1, serving} throughout.
enum View : std::uint16_t {
  kFirstRules = 0,
  kTakingOver = 1,      // epoch 2, min_epoch 1
  kSuccessorRules = 2,  // epoch 2, min_epoch 2, serving
  kServesTooEarly = 3,  // epoch 2, min_epoch 1, serving: a broken rule
};
inline int ruling_epoch(std::uint16_t view) {
  return view == kFirstRules ? 1 : 2;
}
inline int min_epoch(std::uint16_t view) {
  return view == kSuccessorRules ? 2 : 1;
}

// A directory entry; 0 is a tombstone or an empty slot.
struct Entry {
  std::uint16_t hash = 0, block = 0, epoch = 0, generation = 0;
  std::uint16_t pack() const {
    return static_cast<std::uint16_t>(hash | block << 2 | epoch << 3 | generation << 5);
  }
  static Entry from(std::uint16_t line) {
    return {static_cast<std::uint16_t>(line & 3), static_cast<std::uint16_t>(line >> 2 & 1),
            static_cast<std::uint16_t>(line >> 3 & 3), static_cast<std::uint16_t>(line >> 5)};
  }
};

enum BlockState : std::uint8_t { kFree, kGranted, kLive, kQuarantined, kLimbo };

// What a keeper knows of a block; its ledger line says all of it but the last two.
struct Record {
  std::uint8_t state, generation, holder, incarnation, hash;
  std::uint8_t pinned_until;  // in limbo: the newest read that may have seen its entry
  std::uint16_t pack() const {
    return static_cast<std::uint16_t>(state | generation << 3 | holder << 6 | incarnation << 7);
  }
  static Record from(std::uint16_t line) {
    return {static_cast<std::uint8_t>(line & 7),
            static_cast<std::uint8_t>(line >> 3 & 7),
            static_cast<std::uint8_t>(line >> 6 & 1),
            static_cast<std::uint8_t>(line >> 7 & 3),
            0,
            0};
  }
};

struct Request {
  enum Op : std::uint8_t { kGrant, kCommit };
  std::uint16_t sequence = 0, op = 0, epoch = 0, incarnation = 0, hash = 0, block = 0,
                generation = 0;
  std::uint16_t pack() const {
    return static_cast<std::uint16_t>(sequence | op << 3 | epoch << 4 | incarnation << 6 |
                                      hash << 8 | block << 10 | generation << 11);
  }
  static Request from(std::uint16_t line) {
    const auto bits = [&](int at, int mask) {
      return static_cast<std::uint16_t>(line >> at & mask);
    };
    return {bits(0, 7), bits(3, 1), bits(4, 3), bits(6, 3), bits(8, 3), bits(10, 1), bits(11, 7)};
  }
};

struct Response {
  enum Verdict : std::uint8_t { kGrant, kNoSpace, kCommitted, kDuplicate, kNotHeld };
  std::uint16_t sequence = 0, verdict = 0, block = 0, generation = 0, incarnation = 0;
  std::uint16_t pack() const {
    return static_cast<std::uint16_t>(sequence | verdict << 3 | block << 6 | generation << 7 |
                                      incarnation << 10);
  }
  static Response from(std::uint16_t line) {
    const auto bits = [&](int at, int mask) {
      return static_cast<std::uint16_t>(line >> at & mask);
    };
    return {bits(0, 7), bits(3, 7), bits(6, 1), bits(7, 7), bits(10, 3)};
  }
};

// A client's line: its incarnation, up to which one it vouches to store no more, the keeper it wants.
struct Greeting {
  std::uint16_t incarnation = 0, drained = 0, epoch = 0;
  std::uint16_t pack() const {
    return static_cast<std::uint16_t>(incarnation | drained << 2 | epoch << 4);
  }
  static Greeting from(std::uint16_t line) {
    return {static_cast<std::uint16_t>(line & 3), static_cast<std::uint16_t>(line >> 2 & 3),
            static_cast<std::uint16_t>(line >> 4)};
  }
};

// The reader's pin line: its oldest read that has not ended (0: none), its newest ever.
struct Pin {
  std::uint16_t oldest = 0, newest = 0;
  std::uint16_t pack() const { return static_cast<std::uint16_t>(oldest | newest << 2); }
  static Pin from(std::uint16_t line) {
    return {static_cast<std::uint16_t>(line & 3), static_cast<std::uint16_t>(line >> 2)};
  }
};

inline constexpr std::uint16_t kSuspected = 4;  // in a view line, beside the incarnation

}  // namespace cachalot::specs
