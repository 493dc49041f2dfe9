// Flags of `cachalot simulate` that only some runs use. Where nothing of a run uses such a flag, a warning says what it needs:
// otherwise it would look as if it had been tried. It is no error, because scripts give the same flags for every policy. An
// error is a flag of something that the run does not have, as peers. Flag::needs() cannot tell: whether a flag is used depends
// on values, defaults, and flags of single rows.
#pragma once

#include <cachalot/result.h>

#include <span>

#include "given_flags.h"

namespace cachalot::apps {

// What a run has that uses flags: bits of a set. A table or a map has what any of its rows has.
enum Use : unsigned {
  kNodeCaches = 1u << 0,  // whose size --node-capacity-blocks says, or that of the pool
  kPool = 1u << 1,
  kStorage = 1u << 2,
  kPeers = 1u << 3,
  kSeveral = 1u << 4,        // instances that prompts are routed to
  kMoves = 1u << 5,          // prefixes that conductor sends from instance to instance
  kLinkSpeed = 1u << 6,      // transfers at --link-gb-s
  kLinkLatency = 1u << 7,    // transfers after --link-latency-us
  kOperations = 1u << 8,     // transfers whose operations take a latency
  kOperationSize = 1u << 9,  // --operation-bytes
  kDecodeSide = 1u << 10,    // instances that decode alone
  kColocated = 1u << 11,
  kChance = 1u << 12,       // routing by random numbers
  kPrediction = 1u << 13,   // predictive admission against a goal for decode
  kDecodeCheck = 1u << 14,  // reject_on_load against such a goal
  kHostKv = 1u << 15,       // layer-wise KV
  kPromptPlan = 1u << 16,  // layer-wise KV of prompts, by the goal that --layerwise-admission names
  kFormula = 1u << 17,     // of decode
  kFittedModel = 1u << 18,
  kProfile = 1u << 19,
  kReduceLink = 1u << 20,    // all-reduces among the GPUs of a profile
  kReducePreset = 1u << 21,  // of which --tp-link says a figure
  kRdma = 1u << 22,
  kCxl = 1u << 23,
  kTraceTimes = 1u << 24,  // requests come by the clock
  kMap = 1u << 25,
  kRecordedRun = 1u << 26,
  kTimesOfFormula = 1u << 28,
  kComparison = 1u << 27,  // of a recorded run
};

// @param uses  a set of Use: what the run has
// @errors kInvalidArgument: a flag of something that is not there; says what it needs. Warnings go to stderr
Status check_uses(std::span<const FlagValue> flags, unsigned uses);

}  // namespace cachalot::apps
