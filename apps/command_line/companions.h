// Commands of `cachalot` that are programs of their own, which `cachalot NAME …` starts. So the
// program that serves pools is built without benchmarks, the simulator and GPU memory tools.
#pragma once

#include <cachalot/result.h>

#include <span>
#include <string>
#include <vector>

namespace cachalot::apps {

struct Companion {
  const char* command;      // the word after `cachalot`
  const char* program;      // the file name
  const char* description;  // a line of `cachalot --help`
  bool has_other_commands;  // then the program is told which one
};

std::span<const Companion> companions();
const Companion* find_companion(const std::string& command);  // null: none

// The folder of the running program. @errors the operating system's
Result<std::string> own_folder();

// The places where a program called `name` may lie, in the order in which they are tried: the folder
// of the running program, ../libexec/cachalot of that folder, then each absolute folder of PATH.
// @param own_folder  of the running program
// @param path        the variable PATH, "" if it is not set
std::vector<std::string> companion_places(const std::string& name, const std::string& own_folder,
                                          const std::string& path);

// Replaces this process by the companion. Returns only on failure.
// @param words  of main(), from the command on
// @errors kUnsupported: the program is in none of the places; kPermission and others: it cannot run
Error start_companion(const Companion& companion, std::span<char* const> words);

}  // namespace cachalot::apps
