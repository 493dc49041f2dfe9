#include "result_flags.h"

namespace cachalot::apps {

void add_out_flag(Command& command, std::string& out) {
  command
      .add_option("--out", out,
                  "write the trace to FILE, in gzip if its name ends in .gz, or to stdout for -")
      ->type_name("FILE")
      ->required();
}

void add_counts_flag(Command& command, std::string& json) {
  command.add_option("--json", json, "write the counts to FILE, or to stdout for -")
      ->type_name("FILE");
}

void add_figures_flag(Command& command, std::string& json) {
  command
      .add_option("--json", json,
                  "write the figures to FILE, or to stdout for -; of several traces as \"rows\"")
      ->type_name("FILE");
}

}  // namespace cachalot::apps
