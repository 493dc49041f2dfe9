// What the drawings of all commands have in common: an SVG document, its text, and the styles of lines.
#pragma once

#include <cachalot/result.h>

#include <string>
#include <vector>

#include "eviction/policy_kind.h"

namespace cachalot::apps {

// Distinguishable with colour blindness (Okabe and Ito's palette), and without colours by the
// mark.
struct PlotStyle {
  const char* colour;
  const char* mark;  // an SVG path around the origin
};

// The same in every drawing, whatever else is drawn.
PlotStyle style_of(eviction::PolicyKind policy);
// "caching", "expandable", "stitch".
PlotStyle style_of_allocator(const std::string& name);

inline constexpr const char* kPlotGrid = "#e2e2e2";
inline constexpr const char* kPlotQuiet = "#555";  // of what is not data

[[gnu::format(printf, 2, 3)]] void add(std::string& svg, const char* format, ...);

// For text inside of an element. Bytes that are no UTF-8, with which no document can be opened, are replaced.
std::string escaped(const std::string& text);

// "1.5 GiB", of a number that need not be whole; "10k", by powers of a thousand.
std::string bytes_on_axis(double bytes);
std::string number_on_axis(double value);

// The beginning of a document: white, with a title and a line below it. "</svg>" ends it.
std::string begin_plot(double width, double height, double left, const std::string& title,
                       const std::string& subtitle);

// A file's name for a title: without its folders, and cut to what fits beside other words.
std::string name_in_title(const std::string& file);

// What --plot was given. @errors kInvalidArgument: neither FILE.svg nor "-"
Status check_plot_file(const std::string& file);

struct PlotPoint {
  double x, y;
};

// One of several lines that run together on a stretch, all seen: each has a share of the stretch in turn.
struct Share {
  std::size_t number = 0, of = 1;
};
// @return " stroke-dasharray='…'" for a line of `length`; empty if it has the stretch to itself
std::string dashes_of(const Share& share, double length);

// The share of each line on the stretch from points[i] to points[i + 1], [line][i]. Lines run together where
// both ends are less than `near` apart. All lines have the same x.
std::vector<std::vector<Share>> shares_of(const std::vector<std::vector<PlotPoint>>& lines,
                                          double near);

}  // namespace cachalot::apps
