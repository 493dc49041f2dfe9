// What the subcommands share: how they join the command line, how they end, how they write JSON.
//
// Exit codes (docs/guide/cli.md): 0 done; 1 the work found a fault or nothing; 2 bad usage,
// configuration or input file; 3 the surroundings refuse.
#pragma once

#include <cachalot/result.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace cachalot::apps {

// The subcommand that the command line chose; main() runs it after parsing.
struct Chosen {
  std::function<int()> run;
};

// Each in its own file.
void add_replay(CLI::App& app, Chosen& chosen);
void add_serve(CLI::App& app, Chosen& chosen);
void add_stop(CLI::App& app, Chosen& chosen);
void add_pool(CLI::App& app, Chosen& chosen);
void add_put(CLI::App& app, Chosen& chosen);
void add_get(CLI::App& app, Chosen& chosen);
void add_lookup(CLI::App& app, Chosen& chosen);
void add_evict(CLI::App& app, Chosen& chosen);
void add_hitrate(CLI::App& app, Chosen& chosen);
void add_bench(CLI::App& app, Chosen& chosen);

inline constexpr int kExitDone = 0;
inline constexpr int kExitFault = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitRefused = 3;

// The exit code that says what the error says.
int exit_code(Code code);

// Prints "cachalot: <message>" as one line on stderr; returns exit_code().
int fail(const Error& error);

// --json FILE of every subcommand: writes `value`, one line, to the file or for "-" to stdout.
// Nothing at all for an empty name.
Status write_json(const std::string& file, const nlohmann::json& value);

// Writes `text` to the file, or for "-" to stdout. @errors kInvalidArgument, kPermission, kNoSpace, kIo
Status write_text(const std::string& file, const std::string& text);

// Where tables and texts for people go: stdout, or stderr where `json_file` is "-".
std::FILE* human_output(const std::string& json_file);

// Sizes on the command line: "65536", "64KiB", "1.5GiB", "4MB" (powers of ten without the i).
// @errors kInvalidArgument, also where the bytes do not fit 63 bits
Result<std::uint64_t> parse_bytes(const std::string& flag, const std::string& text);

// Block counts: a number or "inf" (0xffffffffffffffff).
Result<std::uint64_t> parse_blocks(const std::string& flag, const std::string& text);

}  // namespace cachalot::apps
