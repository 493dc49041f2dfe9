#include "name_meant.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

namespace cachalot::apps {
namespace {

// How many characters to change, add or remove.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string name_meant(const std::string& typed, const std::vector<std::string>& known,
                       const char* before, const char* after) {
  const std::string name = typed.substr(0, 60);
  std::size_t least = std::max<std::size_t>(name.size() / 3, 1) + 1;
  std::string nearest;
  for (const std::string& each : known) {
    const std::size_t found = distance(name, each);
    if (found >= least) continue;
    least = found;
    nearest = "; did you mean " + (before + each) + after + "?";
  }
  return nearest;
}

}  // namespace cachalot::apps
