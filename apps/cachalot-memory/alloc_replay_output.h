// What `cachalot alloc-replay` found, for people and for programs.
#pragma once

#include <cstdint>
#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>

#include "replay/allocation/alloc_replay.h"
#include "stitch/stitch_allocator.h"

namespace cachalot::apps {

struct AllocRow {
  std::string allocator;
  replay::AllocReport report;
  std::optional<stitch::StitchStates> states;  // of the stitching allocator
  std::optional<double> charged_ms;            // what the calls would take, by the model
  std::string memory;                          // what it ran on
  double scale = 1;
  replay::Verify verify = replay::Verify::kOff;
};

void print_table(std::FILE* out, std::span<const AllocRow> rows);
nlohmann::json json_of(const AllocRow& row);

}  // namespace cachalot::apps
