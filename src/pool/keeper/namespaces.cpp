#include "pool/keeper/namespaces.h"

#include <algorithm>

namespace cachalot::pool {

std::uint32_t Namespaces::find(const BlockHash& digest) const {
  const auto at = std::find(digests_.begin(), digests_.end(), digest);
  return at == digests_.end() ? 0 : static_cast<std::uint32_t>(at - digests_.begin()) + 1;
}

std::uint32_t Namespaces::add(const BlockHash& digest) {
  NamespaceLine line{};
  line.digest_low = digest.low;
  line.digest_high = digest.high;
  line.id = count() + 1;
  line.epoch = reign_.epoch();
  access_.region.publish(access_.layout.namespace_line(reign_.area(), line.id - 1), line);
  access_.domain().order();
  digests_.push_back(digest);
  return line.id;
}

// Ids stay what they are, as they stand in entries. The blocks of a namespace whose line is damaged are
// dropped: their namespace would be unknown.
void Namespaces::adopt() {
  const Predecessor& predecessor = reign_.predecessor();
  for (std::uint32_t id = 1; id <= kMaxNamespaces; ++id) {
    NamespaceLine line{};
    const std::uint64_t offset = access_.layout.namespace_line(predecessor.area, id - 1);
    // A line of another epoch was left by an earlier keeper of the same area.
    if (!access_.region.read_as(offset, line) || line.id != id || line.epoch != predecessor.epoch)
      continue;
    line.epoch = reign_.epoch();
    access_.region.publish(access_.layout.namespace_line(reign_.area(), id - 1), line);
    digests_.resize(id, kNoDigest);
    digests_[id - 1] = {line.digest_low, line.digest_high};
  }
}

}  // namespace cachalot::pool
