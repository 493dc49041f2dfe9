// main() of every program here: reads the command line and runs the one command that it names.
#pragma once

#include "command.h"

namespace cachalot::apps {

struct Program {
  const char* name;  // as help and errors have it: "cachalot", "cachalot bench"
  const char* version;
  const char* description;
  const char* footer;
  // Adds the program's commands; a program without commands adds its flags instead.
  void (*add_to)(Command& app, Chosen& chosen);
};

// As the last word of a command line: the program prints the words that may come in its place, a line each.
inline constexpr const char* kCompleteWord = "__complete";
// Before the last word: the program writes its manual pages into the folder of that name.
inline constexpr const char* kManualWord = "__manual";

// @return the exit code
int run_program(const Program& program, int argc, char** argv);

}  // namespace cachalot::apps
