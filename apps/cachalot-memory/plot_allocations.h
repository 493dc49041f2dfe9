// Memory over an allocation trace as a drawing: what each allocator held, and what was asked for.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "replay/allocation/alloc_replay.h"

namespace cachalot::apps {

struct AllocLine {
  std::string allocator;
  std::vector<replay::AllocSample> samples;
};

struct AllocPlot {
  std::string title;
  std::string subtitle;
};

inline constexpr std::size_t kMostPlotSamples = 1500;  // about two to a pixel

// An SVG document. Reserved memory is a solid line for each allocator, active memory a dashed one of its colour.
std::string plot_allocations(std::span<const AllocLine> lines, const AllocPlot& plot);

}  // namespace cachalot::apps
