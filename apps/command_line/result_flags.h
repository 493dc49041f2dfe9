// --out FILE and --json FILE: the same words for every command that makes or describes traces.
#pragma once

#include <cachalot/result.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "command.h"
#include "flags.h"
#include "output.h"

namespace cachalot::apps {

// --out, required: the trace that the command makes.
void add_out_flag(Command& command, std::string& out);
// --json of a command that makes a trace.
void add_counts_flag(Command& command, std::string& json);
// --json of a command that describes one trace or several.
void add_figures_flag(Command& command, std::string& json);

// Prints what read(file) returns, for each file, and writes the rows as JSON: one file's as an object,
// several as "rows".
// @errors as read(); as Output
template <class Read, class Print, class RowOf>
Status describe_files(const std::vector<std::string>& files, const std::string& json, Read&& read,
                      Print&& print, RowOf&& row_of) {
  CACHALOT_TRY(check_is_no_input("--json", json, files));
  CACHALOT_TRY_ASSIGN(Output output, Output::open(json));
  std::FILE* const people = human_output(json);
  nlohmann::json rows = nlohmann::json::array();
  for (const std::string& file : files) {
    CACHALOT_TRY_ASSIGN(const auto found, read(file));
    if (!rows.empty()) std::fputc('\n', people);
    print(people, found);
    rows.push_back(row_of(found));
  }
  if (rows.size() == 1) return output.write_json(rows[0]);
  return output.write_json({{"rows", rows}});
}

}  // namespace cachalot::apps
