// What the subcommands share: how they join the command line, and how they end.
//
// Exit codes (docs/guide/cli.md): 0 done; 1 the work found a fault or nothing; 2 bad usage,
// configuration or input file; 3 the environment prevents it.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "flags.h"

namespace cachalot::apps {

// The subcommand that the command line chose; main() runs it after parsing.
struct Chosen {
  std::function<int()> run;
  std::vector<std::string> arguments;  // of the subcommand
};

// Each in its own file.
void add_replay(Command& app, Chosen& chosen);
void add_tiers(Command& app, Chosen& chosen);
void add_serve(Command& app, Chosen& chosen);
void add_stop(Command& app, Chosen& chosen);
void add_doctor(Command& app, Chosen& chosen);
void add_completion(Command& app, Chosen& chosen);
void add_pool(Command& app, Chosen& chosen);
void add_pool_grow(Command& pool, Chosen& chosen);   // and shrink
void add_pool_fence(Command& pool, Chosen& chosen);  // `pool` is the command above
void add_pool_blocks(Command& pool, Chosen& chosen);
void add_pool_fsck(Command& pool, Chosen& chosen);
void add_pool_export(Command& pool, Chosen& chosen);
void add_pool_import(Command& pool, Chosen& chosen);
void add_put(Command& app, Chosen& chosen);
void add_get(Command& app, Chosen& chosen);
void add_lookup(Command& app, Chosen& chosen);
void add_evict(Command& app, Chosen& chosen);
void add_context(Command& app, Chosen& chosen);
void add_hitrate(Command& app, Chosen& chosen);
void add_simulate(Command& app, Chosen& chosen);
void add_long_prefill(Command& app, Chosen& chosen);
void add_vtensor(Command& app, Chosen& chosen);
void add_alloc_replay(Command& app, Chosen& chosen);
void add_trace(Command& app, Chosen& chosen);
void add_calibrate(Command& app, Chosen& chosen);
void add_trace_info(Command& trace, Chosen& chosen);  // `trace` is the command above
void add_trace_convert(Command& trace, Chosen& chosen);
void add_trace_generate(Command& trace, Chosen& chosen);
void add_alloc_trace(Command& app, Chosen& chosen);
void add_alloc_trace_info(Command& alloc_trace, Chosen& chosen);
void add_alloc_trace_generate(Command& alloc_trace, Chosen& chosen);
void add_alloc_trace_convert(Command& alloc_trace, Chosen& chosen);

inline constexpr int kExitDone = 0;
inline constexpr int kExitFault = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitRefused = 3;

// The exit code that says what the error says.
int exit_code(Code code);

// Prints "cachalot: <line>" on stderr, or the object of --log-format json.
void tell_error(const std::string& line);

// Tells the error's message as one line; returns exit_code().
int fail(const Error& error);

// Writes what was printed, now. @errors as finish() says it: the first that there was
Status flush(std::FILE* out);

// The end of every command: what was printed is written now. Returns `code`, or says that stdout
// could not be written and returns the code of that.
int finish(int code);

// A progress line on a terminal after each `every` requests; nothing in a pipe.
void show_requests(std::uint64_t requests, std::uint64_t every);

// Where tables and texts for people go: stdout, or stderr where `json_file` is "-".
std::FILE* human_output(const std::string& json_file);

}  // namespace cachalot::apps
