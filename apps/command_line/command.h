// What the subcommands share: how they join the command line, and how they end.
//
// Exit codes (docs/guide/cli.md): 0 done; 1 the work found a fault or nothing; 2 bad usage,
// configuration or input file; 3 the environment prevents it.
#pragma once

#include <cachalot/result.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

namespace cachalot::apps {

// The subcommand that the command line chose; main() runs it after parsing.
struct Chosen {
  std::function<int()> run;
  std::vector<std::string> arguments;  // of the subcommand
};

// Each in its own file.
void add_replay(CLI::App& app, Chosen& chosen);
void add_tiers(CLI::App& app, Chosen& chosen);
void add_serve(CLI::App& app, Chosen& chosen);
void add_stop(CLI::App& app, Chosen& chosen);
void add_pool(CLI::App& app, Chosen& chosen);
void add_pool_fence(CLI::App& pool, Chosen& chosen);  // `pool` is the command above
void add_pool_blocks(CLI::App& pool, Chosen& chosen);
void add_put(CLI::App& app, Chosen& chosen);
void add_get(CLI::App& app, Chosen& chosen);
void add_lookup(CLI::App& app, Chosen& chosen);
void add_evict(CLI::App& app, Chosen& chosen);
void add_hitrate(CLI::App& app, Chosen& chosen);
void add_simulate(CLI::App& app, Chosen& chosen);
void add_long_prefill(CLI::App& app, Chosen& chosen);
void add_vtensor(CLI::App& app, Chosen& chosen);
void add_alloc_replay(CLI::App& app, Chosen& chosen);
void add_trace(CLI::App& app, Chosen& chosen);
void add_calibrate(CLI::App& app, Chosen& chosen);
void add_trace_info(CLI::App& trace, Chosen& chosen);  // `trace` is the command above
void add_trace_convert(CLI::App& trace, Chosen& chosen);
void add_trace_generate(CLI::App& trace, Chosen& chosen);
void add_alloc_trace(CLI::App& app, Chosen& chosen);
void add_alloc_trace_info(CLI::App& alloc_trace, Chosen& chosen);
void add_alloc_trace_generate(CLI::App& alloc_trace, Chosen& chosen);
void add_alloc_trace_convert(CLI::App& alloc_trace, Chosen& chosen);

inline constexpr int kExitDone = 0;
inline constexpr int kExitFault = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitRefused = 3;

// The exit code that says what the error says.
int exit_code(Code code);

// Prints "cachalot: <message>" as one line on stderr; returns exit_code().
int fail(const Error& error);

// Writes what was printed, now. @errors as finish() says it: the first that there was
Status flush(std::FILE* out);

// The end of every command: what was printed is written now. Returns `code`, or says that stdout
// could not be written and returns the code of that.
int finish(int code);

// Where tables and texts for people go: stdout, or stderr where `json_file` is "-".
std::FILE* human_output(const std::string& json_file);

}  // namespace cachalot::apps
