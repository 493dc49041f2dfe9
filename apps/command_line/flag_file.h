// Flags of a command from a file: TOML, `flag-name = value`, each flag once, no sections.
#pragma once

#include <string>

#include "flags.h"

namespace cachalot::apps {

// --NAME FILE.toml. A flag of the command line wins. What is no TOML is refused, and what a flag would take for something
// else: a name that is no flag, a section, a value of another type or of which there are more than the flag takes, and
// one that the flag refuses.
void add_flag_file(Command& command, const char* name);

// The file that the command line named, "" if none.
std::string flag_file_of(const Command& command);

// An error of a flag that such a file gave names the file, too.
Error with_flag_file(const Command& command, const Error& error);

}  // namespace cachalot::apps
