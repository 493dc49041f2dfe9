// Drawings of `cachalot simulate`: the TTFT of each policy, and load over time.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "simulate_output.h"

namespace cachalot::apps {

struct Drawing {
  std::string file;  // in the folder of --plot
  std::string svg;
};

// Of rows of several rates: goodput.svg, attainment.svg, ttft_over_rate.svg and tpot_over_rate.svg. Of one rate: ttft.svg; with decode instances and a TBT goal decode_load.svg; and for each row prefill_queue_ROW.svg.
std::vector<Drawing> draw_simulation(const std::string& trace, std::span<const SimulateRow> rows);

}  // namespace cachalot::apps
