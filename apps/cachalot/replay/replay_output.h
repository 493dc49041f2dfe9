// What `cachalot replay` shows: a progress line, a table for people, an object for scripts.
#pragma once

#include <cstdio>
#include <nlohmann/json_fwd.hpp>

#include "replay/pool/replay.h"

namespace cachalot::apps {

void print_progress(const replay::Progress& progress);
void clear_progress_line();

void print_report(std::FILE* to, const replay::ReplayOptions& options,
                  const replay::ReplayReport& report);

// The keys of docs/guide/cli.md, and more.
nlohmann::json to_json(const replay::ReplayOptions& options, const replay::ReplayReport& report);

}  // namespace cachalot::apps
