#include "plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>

namespace cachalot::apps {
namespace {

using eviction::PolicyKind;

// A file's name may be any bytes.
std::string as_utf8(const std::string& text) {
  const nlohmann::json value = text;
  return nlohmann::json::parse(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))
      .get<std::string>();
}

}  // namespace

PlotStyle style_of(PolicyKind policy) {
  switch (policy) {
    case PolicyKind::kLru:
      return {"#0072b2", "M-5,0a5,5 0 1,0 10,0a5,5 0 1,0 -10,0z"};
    case PolicyKind::kFifo:
      return {"#d55e00", "M-5,-5h10v10h-10z"};
    case PolicyKind::kLfu:
      return {"#009e73", "M0,-6L6,5L-6,5z"};
    case PolicyKind::kLengthAware:
      return {"#cc79a7", "M0,-6.5L6.5,0L0,6.5L-6.5,0z"};
    case PolicyKind::kHitDensity:
      return {"#e69f00", "M0,6L6,-5L-6,-5z"};
    case PolicyKind::kS3Fifo:
      return {"#56b4e9", "M-6,-2h4v-4h4v4h4v4h-4v4h-4v-4h-4z"};
    case PolicyKind::kArc:
      return {"#7a5195", "M-6,-3h12v6h-12z"};
    case PolicyKind::kWTinyLfu:
      return {"#8c6d31", "M-3,-6h6v12h-6z"};
    case PolicyKind::kOpt:
      break;
  }
  return {"#000000", "M-3,0a3,3 0 1,0 6,0a3,3 0 1,0 -6,0z"};
}

PlotStyle style_of_allocator(const std::string& name) {
  if (name == "caching") return {"#d55e00", ""};
  if (name == "expandable") return {"#009e73", ""};
  return {"#0072b2", ""};
}

void add(std::string& svg, const char* format, ...) {
  char text[512];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  svg += text;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : as_utf8(text)) {
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

std::string number_on_axis(double value) {
  constexpr std::array kSuffixes = {"", "k", "M", "G", "T", "P", "E"};
  std::size_t power = 0;
  for (; value >= 999.5 && power + 1 < kSuffixes.size(); ++power) value /= 1000;
  char text[32];
  std::snprintf(text, sizeof text, "%.3g%s", value, kSuffixes[power]);
  return text;
}

std::string bytes_on_axis(double bytes) {
  constexpr std::array kUnits = {"B",   "KiB", "MiB", "GiB", "TiB",
                                 "PiB", "EiB", "ZiB", "YiB", "RiB"};
  std::size_t power = 0;
  for (; bytes >= 1023.5 && power + 1 < kUnits.size(); ++power) bytes /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, "%.3g %s", bytes, kUnits[power]);
  return text;
}

std::string begin_plot(double width, double height, double left, const std::string& title,
                       const std::string& subtitle) {
  std::string svg;
  add(svg,
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %.0f %.0f' width='%.0f' height='%.0f' "
      "font-family='Helvetica,Arial,sans-serif' font-size='18'>\n"
      "<rect width='100%%' height='100%%' fill='white'/>\n",
      width, height, width, height);
  add(svg, "<text x='%.0f' y='42' font-size='24' font-weight='bold'>", left);
  svg += escaped(title) + "</text>\n";
  add(svg, "<text x='%.0f' y='68' font-size='16' fill='%s'>", left, kPlotQuiet);
  return svg + escaped(subtitle) + "</text>\n";
}

std::string name_in_title(const std::string& file) {
  constexpr std::size_t kMostShown = 44;  // bytes
  std::string name = file.substr(file.rfind('/') + 1);
  if (name.size() <= kMostShown) return name;
  std::size_t end = kMostShown;  // not within a character
  while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xc0) == 0x80) --end;
  return name.substr(0, end) + "…";
}

Status check_plot_file(const std::string& file) {
  if (file.empty() || file == "-" || file.ends_with(".svg")) return {};
  return Error::make(Code::kInvalidArgument,
                     "--plot: \"%.120s\" does not end with .svg: drawings are SVG", file.c_str());
}

std::string dashes_of(const Share& share, double length) {
  if (share.of <= 1) return "";
  constexpr double kDash = 10;  // about
  const auto count = static_cast<double>(share.of);
  const double dash = length / (count * std::max(1.0, std::round(length / (count * kDash))));
  std::string dashes;
  add(dashes, " stroke-dasharray='%.2f %.2f' stroke-dashoffset='%.2f'", dash, dash * (count - 1),
      -dash * static_cast<double>(share.number));
  return dashes;
}

std::vector<std::vector<Share>> shares_of(const std::vector<std::vector<PlotPoint>>& lines,
                                          double near) {
  std::vector<std::vector<Share>> shares(lines.size());
  if (lines.empty()) return shares;
  for (std::size_t i = 0; i + 1 < lines[0].size(); ++i) {
    std::vector<std::size_t> order(
        lines.size());  // by height, so that those together are neighbours
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return lines[a][i].y + lines[a][i + 1].y < lines[b][i].y + lines[b][i + 1].y;
    });
    const auto is_near = [&](std::size_t a, std::size_t b) {
      return std::abs(lines[a][i].y - lines[b][i].y) < near &&
             std::abs(lines[a][i + 1].y - lines[b][i + 1].y) < near;
    };
    for (std::size_t first = 0, last; first < order.size(); first = last) {
      for (last = first + 1; last < order.size() && is_near(order[last - 1], order[last]);) ++last;
      for (std::size_t k = first; k < last; ++k)
        shares[order[k]].push_back({k - first, last - first});
    }
  }
  return shares;
}

}  // namespace cachalot::apps
