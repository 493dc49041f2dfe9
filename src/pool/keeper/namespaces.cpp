#include "pool/keeper/namespaces.h"

#include <algorithm>

#include "pool/format/namespace_names.h"

namespace cachalot::pool {

std::uint32_t Namespaces::find(const BlockHash& digest) const {
  const auto at = std::find(digests_.begin(), digests_.end(), digest);
  return at == digests_.end() ? 0 : static_cast<std::uint32_t>(at - digests_.begin()) + 1;
}

void Namespaces::write_name(std::uint32_t id, std::string_view name) {
  for (std::uint32_t part = 0; part < kNameLines; ++part) {
    NameLine line{};
    name.copy(line.text, kNameLineBytes);
    line.epoch = reign_.epoch();
    access_.region.publish(access_.layout.name_line(reign_.area(), id - 1, part), line);
    name.remove_prefix(std::min<std::size_t>(name.size(), kNameLineBytes));
  }
}

std::uint32_t Namespaces::add(const BlockHash& digest, std::string_view name) {
  write_name(count() + 1, name);
  access_.domain().order();  // R4: the name before the line that says it is there
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

std::uint32_t Namespaces::quota_of(std::uint32_t id) const {
  std::uint32_t quota = 0;
  if (!is_known(id)) return static_cast<std::uint32_t>(options_.quotas.size());
  while (quota < options_.quotas.size() &&
         !(options_.quotas[quota].namespace_digest == digest_of(id)))
    ++quota;
  return quota;
}

void Namespaces::publish_counters() {
  while (published_ < count()) {
    const std::uint32_t quota = quota_of(++published_);
    if (quota < options_.quotas.size()) change(published_).quota_blocks = quota_blocks(quota);
  }
  for (std::uint32_t id = 1; id <= published_; ++id) {
    if (!books_[id].has_changed) continue;
    books_[id].has_changed = false;
    publish_namespace_counters(access_, reign_.area(), reign_.epoch(), id, books_[id].counters);
  }
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
    write_name(id, read_name(access_, predecessor.area, predecessor.epoch, id));
    access_.domain().order();
    line.epoch = reign_.epoch();
    access_.region.publish(access_.layout.namespace_line(reign_.area(), id - 1), line);
    digests_.resize(id, kNoDigest);
    digests_[id - 1] = {line.digest_low, line.digest_high};
  }
}

}  // namespace cachalot::pool
