#include "plot_hit_rate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <map>
#include <vector>

namespace cachalot::apps {
namespace {

constexpr double kWidth = 760, kHeight = 440;
constexpr double kLeft = 64, kRight = 640, kTop = 48, kBottom = 384;
// Told apart by people who do not see all colours, and in grey (Okabe and Ito's palette).
constexpr std::array kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                 "#e69f00", "#56b4e9", "#000000", "#999999"};

[[gnu::format(printf, 2, 3)]] void add(std::string& svg, const char* format, ...) {
  char text[512];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  svg += text;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      default:
        out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
  }
  return out;
}

// Capacities between two powers of ten, rates between 0 and a round percentage.
struct Axes {
  double low_exponent = 0, high_exponent = 1, top_rate = 0.1;

  double x(double capacity) const {
    return kLeft + (std::log10(capacity) - low_exponent) / (high_exponent - low_exponent) *
                       (kRight - kLeft);
  }
  double y(double rate) const { return kBottom - rate / top_rate * (kBottom - kTop); }
};

Axes axes_for(std::span<const index::HitRateRow> rows) {
  Axes axes;
  bool any = false;
  for (const index::HitRateRow& row : rows) {
    axes.top_rate = std::max(axes.top_rate, std::ceil(row.hit_rate * 10) / 10);
    if (row.cache.capacity_blocks == index::kUnlimitedBlocks) continue;
    const double exponent = std::log10(static_cast<double>(row.cache.capacity_blocks));
    axes.low_exponent =
        any ? std::min(axes.low_exponent, std::floor(exponent)) : std::floor(exponent);
    axes.high_exponent =
        any ? std::max(axes.high_exponent, std::ceil(exponent)) : std::ceil(exponent);
    any = true;
  }
  if (axes.high_exponent <= axes.low_exponent) axes.high_exponent = axes.low_exponent + 1;
  return axes;
}

std::string capacity_text(int exponent) {
  constexpr std::array kSuffixes = {"", "k", "M", "G", "T", "P", "E"};
  const std::string digits = "1" + std::string(static_cast<std::size_t>(exponent % 3), '0');
  return digits + kSuffixes[static_cast<std::size_t>(exponent / 3)];
}

void draw_grid(std::string& svg, const Axes& axes) {
  for (int percent = 0; percent <= std::lround(axes.top_rate * 100); percent += 10) {
    const double y = axes.y(percent / 100.0);
    add(svg, "<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' stroke='#ddd'/>\n", kLeft, y, kRight,
        y);
    add(svg, "<text x='%.1f' y='%.1f' text-anchor='end'>%d %%</text>\n", kLeft - 8, y + 4, percent);
  }
  for (auto e = static_cast<int>(axes.low_exponent); e <= static_cast<int>(axes.high_exponent);
       ++e) {
    const double x = axes.x(std::pow(10, e));
    add(svg, "<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' stroke='#ddd'/>\n", x, kTop, x,
        kBottom);
    add(svg, "<text x='%.1f' y='%.1f' text-anchor='middle'>%s</text>\n", x, kBottom + 20,
        capacity_text(e).c_str());
  }
  add(svg, "<text x='%.1f' y='%.1f' text-anchor='middle'>capacity in blocks</text>\n",
      (kLeft + kRight) / 2, kBottom + 44);
  add(svg,
      "<text transform='translate(16 %.1f) rotate(-90)' text-anchor='middle'>block hit "
      "rate</text>\n",
      (kTop + kBottom) / 2);
}

void draw_policy(std::string& svg, const Axes& axes, std::vector<index::HitRateRow> rows,
                 const char* colour) {
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return a.cache.capacity_blocks < b.cache.capacity_blocks;
  });
  std::string points;
  for (const index::HitRateRow& row : rows) {
    const double y = axes.y(row.hit_rate);
    if (row.cache.capacity_blocks == index::kUnlimitedBlocks) {
      add(svg,
          "<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' stroke='%s' stroke-dasharray='6 4'/>\n",
          kLeft, y, kRight, y, colour);
      add(svg, "<text x='%.1f' y='%.1f' fill='%s'>unlimited %.1f %%</text>\n", kRight + 6, y + 4,
          colour, row.hit_rate * 100);
      continue;
    }
    const double x = axes.x(static_cast<double>(row.cache.capacity_blocks));
    add(points, "%.1f,%.1f ", x, y);
    add(svg, "<circle cx='%.1f' cy='%.1f' r='3.5' fill='%s'/>\n", x, y, colour);
  }
  svg += "<polyline fill='none' stroke-width='2' stroke='";
  svg += colour;
  svg += "' points='" + points + "'/>\n";
}

}  // namespace

std::string plot_hit_rate(std::span<const index::HitRateRow> rows, const std::string& title) {
  const Axes axes = axes_for(rows);
  std::map<std::string, std::vector<index::HitRateRow>> by_policy;
  for (const index::HitRateRow& row : rows) {
    by_policy[index::policy_name(row.cache.policy)].push_back(row);
  }
  std::string svg;
  add(svg,
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %.0f %.0f' width='%.0f' height='%.0f' "
      "font-family='sans-serif' font-size='12'>\n<rect width='100%%' height='100%%' "
      "fill='white'/>\n",
      kWidth, kHeight, kWidth, kHeight);
  svg += "<text x='64' y='28' font-size='15'>" + escaped(title) + "</text>\n";
  draw_grid(svg, axes);
  std::size_t index = 0;
  for (auto& [policy, policy_rows] : by_policy) {
    const char* const colour = kColours[index % kColours.size()];
    const double y = kTop + 12 + 18 * static_cast<double>(index++);
    draw_policy(svg, axes, std::move(policy_rows), colour);
    add(svg, "<rect x='%.1f' y='%.1f' width='12' height='3' fill='%s'/>\n", kLeft + 12, y - 5,
        colour);
    add(svg, "<text x='%.1f' y='%.1f'>%s</text>\n", kLeft + 30, y, policy.c_str());
  }
  return svg + "</svg>\n";
}

}  // namespace cachalot::apps
