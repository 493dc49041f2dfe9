#include "pool/keeper/limbo.h"

#include <algorithm>
#include <limits>

namespace cachalot::pool {

void Limbo::add_reader(std::uint32_t client, std::uint32_t incarnation) {
  const auto next = std::find_if(readers_.begin(), readers_.end(),
                                 [client](const Reader& reader) { return reader.client > client; });
  readers_.insert(next, {client, incarnation});
}

void Limbo::remove_reader(std::uint32_t client) {
  std::erase_if(readers_, [client](const Reader& reader) { return reader.client == client; });
}

std::vector<Limbo::Pins> Limbo::read_pins() const {
  std::vector<Pins> all(readers_.size());
  for (std::size_t i = 0; i < readers_.size(); ++i) {
    PinLine line{};
    if (!access_->region.read_as(access_->layout.client_pins(readers_[i].client), line)) continue;
    // A line of an earlier incarnation belongs to another client: each writes its line before it is admitted.
    const bool is_own = line.incarnation >= readers_[i].incarnation;
    all[i] = {true, is_own ? line.oldest : 0, is_own ? line.newest : 0};
  }
  return all;
}

void Limbo::forget(std::uint32_t client) {
  for (Group& group : groups_) {
    std::erase_if(group.waits, [client](const Wait& wait) { return wait.client == client; });
  }
}

std::vector<std::uint32_t> Limbo::settle() {
  std::vector<std::uint32_t> done;
  if (is_empty()) return done;
  const std::vector<Pins> pins = read_pins();
  const auto pins_of = [&](std::uint32_t client) -> const Pins* {
    for (std::size_t i = 0; i < readers_.size(); ++i) {
      if (readers_[i].client == client) return &pins[i];
    }
    return nullptr;
  };

  for (Group& group : groups_) {
    std::erase_if(group.waits, [&](const Wait& wait) {
      const Pins* const now = pins_of(wait.client);
      return now != nullptr && now->is_known && (now->oldest == 0 || now->oldest > wait.newest);
    });
    if (group.waits.empty()) done.insert(done.end(), group.blocks.begin(), group.blocks.end());
  }
  std::erase_if(groups_, [](const Group& group) { return group.waits.empty(); });

  if (arrived_.empty()) return done;
  Group group;
  for (std::size_t i = 0; i < readers_.size(); ++i) {
    if (pins[i].is_known && pins[i].oldest == 0) continue;
    const std::uint64_t newest =
        pins[i].is_known ? pins[i].newest : std::numeric_limits<std::uint64_t>::max();
    group.waits.push_back({readers_[i].client, newest});
  }
  group.blocks.swap(arrived_);
  if (group.waits.empty()) {
    done.insert(done.end(), group.blocks.begin(), group.blocks.end());
  } else {
    groups_.push_back(std::move(group));
  }
  return done;
}

}  // namespace cachalot::pool
