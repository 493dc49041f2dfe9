// Made-up loads for tests of policies: sessions that share system prompts, grow, call tools, send
// sub-agents and end. Requests come in the order of their times, one at a time; memory grows with the
// sessions that are open, not with the trace.
//
// Model
//   Sessions arrive as a Poisson process. Each begins with one of `system_prompts` prompts, of which the
//   first are the most popular (number n * u^2 for uniform u; with `zipf` prompt k has a share of
//   1 / k^zipf), and a user's message. A request's input is the whole context so far; what it puts out and what comes back are appended to it.
//   chat     After each answer the user thinks and writes again, or the session ends.
//   agentic  A turn of the user takes several requests with tool calls between them. With probability
//            `subagent_probability` a step sends 1 to 3 sub-agents at once: sessions with a system prompt
//            of their kind and a common task, which work side by side while their parent waits. Their
//            results are appended to its context.
//   A session also ends when its context exceeds max_context_tokens. Numbers of tokens and times are
//   exponentially distributed, numbers of turns and steps geometrically.
//
// Ids are numbered in the order in which blocks are made. Equal options give equal traces, on every
// machine: the random numbers take no functions that libraries round differently.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <memory>
#include <string>

#include "trace/request/request.h"

namespace cachalot::trace {

enum class LoadKind { kChat, kAgentic };

struct GeneratorOptions {
  LoadKind kind = LoadKind::kAgentic;
  std::uint64_t seed = 1;
  std::uint64_t block_tokens = 512;
  double sessions_per_s = 1;
  std::uint64_t system_prompts = 20;
  std::uint64_t system_tokens = 8000;  // of each, exactly
  double zipf = 0;                     // exponent of their popularity; 0: as n * u^2
  double user_tokens = 500;            // means from here on
  double output_tokens = 300;
  double tool_tokens = 1500;           // that a tool's result adds
  double turns = 5;                    // of the user in a session
  double steps = 10;                   // requests in a turn of an agent
  double subagent_probability = 0.03;  // that a step sends some
  double think_s = 60;                 // between an answer and the user's next message
  double tool_s = 3;
  double token_s = 0.02;  // time that an output token takes
  std::uint64_t max_context_tokens = 200000;

  static GeneratorOptions of(LoadKind kind);
  // @errors kInvalidArgument: "<name of the member>: <value>, expected …"; no two members depend on each other
  Status check() const;
};

// "chat", "agentic". @errors kInvalidArgument
Result<LoadKind> parse_load_kind(const std::string& name);

// @threads one at a time
// @cost    some nanoseconds a block
class TraceGenerator {
 public:
  // @errors kInvalidArgument: a number out of its range, named with its value
  static Result<TraceGenerator> make(const GeneratorOptions& options);
  TraceGenerator(TraceGenerator&&) noexcept;
  TraceGenerator& operator=(TraceGenerator&&) noexcept;
  ~TraceGenerator();

  // Replaces `request`, whose memory is reused. There is always a next one.
  void next(Request& request);

 private:
  struct Impl;
  explicit TraceGenerator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cachalot::trace
