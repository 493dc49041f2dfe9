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

Status check_out_and_json(const char* command, const std::string& out, const std::string& json) {
  if (out == "-" && json == "-") {
    return Error::make(Code::kInvalidArgument, "%s: only one of --out and --json can go to stdout",
                       command);
  }
  return check_are_apart({{"--out", out}, {"--json", json}});
}

}  // namespace cachalot::apps
