#include "pool/format/namespace_names.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace cachalot::pool {

std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

std::string read_name(const Access& access, std::uint32_t area, std::uint32_t epoch,
                      std::uint32_t id) {
  std::string name;
  for (std::uint32_t part = 0; part < kNameLines; ++part) {
    NameLine line{};
    const std::uint64_t offset = access.layout.name_line(area, id - 1, part);
    if (!access.region.read_as(offset, line) || line.epoch != epoch) return {};
    name.append(line.text, strnlen(line.text, kNameLineBytes));
    if (line.text[kNameLineBytes - 1] == 0) break;
  }
  return printable(std::move(name));
}

std::vector<NamespaceName> read_namespaces(const Access& access, std::uint32_t area,
                                           std::uint32_t epoch) {
  std::vector<NamespaceName> found;
  for (std::uint32_t id = 1; id <= kMaxNamespaces; ++id) {
    NamespaceLine line{};
    if (!access.region.read_as(access.layout.namespace_line(area, id - 1), line)) continue;
    if (line.id != id || line.epoch != epoch) continue;
    found.push_back({id, {line.digest_low, line.digest_high}, read_name(access, area, epoch, id)});
  }
  return found;
}

}  // namespace cachalot::pool
