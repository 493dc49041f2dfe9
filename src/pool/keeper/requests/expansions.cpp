#include "pool/keeper/requests/expansions.h"

#include <algorithm>
#include <span>

#include "base/fail_point.h"
#include "base/log.h"
#include "base/rare_line.h"
#include "pool/keeper/requests/message.h"

namespace cachalot::pool {

using base::FailPoint;

void Expansions::adopt() {
  if (access_.expansions == nullptr) return;
  const Predecessor& predecessor = reign_.predecessor();
  const std::optional<ExpansionTable> table =
      read_table(access_, predecessor.area, predecessor.epoch);
  if (predecessor.epoch != 0 && !table) {
    base::log(base::LogLevel::kError, "keeper",
              "the last keeper's list of added devices cannot be read: their blocks are lost; "
              "`cachalot pool grow` adds the devices again, empty");
  }
  if (table) table_ = *table;
  Status why_not;
  const std::size_t there = access_.expansions->map(access_, table_.expansions, why_not);
  if (there < table_.expansions.size()) {
    base::log(base::LogLevel::kError, "keeper",
              "goes on without %zu of the pool's %zu added devices, from this one on: %s; their "
              "blocks are lost; `cachalot pool grow` adds the devices again, empty",
              table_.expansions.size() - there, table_.expansions.size(), why_not.error().message);
    table_.lost.insert(table_.lost.begin(), table_.expansions.begin() + static_cast<long>(there),
                       table_.expansions.end());
    table_.lost.resize(std::min<std::size_t>(table_.lost.size(), kMaxExpansions - there));
    table_.expansions.resize(there);
    table_.leaving = kNoBlock;
  }
  const std::uint32_t blocks = blocks_on(access_, table_.expansions);
  blocks_.begin_with(std::min(blocks, table_.leaving), blocks);
  publish(0);
}

void Expansions::publish(std::size_t first_new) {
  table_.version = std::uint64_t{reign_.epoch()} << 32 | ++changes_;
  write_table(access_, reign_.area(), reign_.epoch(), table_, first_new);
  access_.domain().complete();
}

// In two steps: a row is written again only after a table that does not name it.
void Expansions::forget_lost(const std::function<bool(const Expansion&)>& is_it) {
  std::vector<Expansion> rest = table_.lost;
  if (std::erase_if(rest, is_it) == 0) return;
  table_.lost.clear();
  publish(table_.expansions.size());
  if (rest.empty()) return;
  table_.lost = std::move(rest);
  publish(table_.expansions.size());
}

void Expansions::look_after_names() const {
  if (access_.expansions == nullptr) return;
  const std::optional<std::string> removed = access_.expansions->find_removed(table_.expansions);
  static base::RareLine line;
  if (!removed || !line.is_due()) return;
  base::log(base::LogLevel::kError, "keeper",
            "%.200s: this device of the pool was removed meanwhile: processes that open the pool "
            "from now on miss its blocks, and the next keeper does not start without it",
            removed->c_str());
}

std::uint32_t Expansions::mend() const {
  if (access_.expansions == nullptr) return 0;
  const std::optional<ExpansionTable> there = read_table(access_, reign_.area(), reign_.epoch());
  if (there && there->version == table_.version) return 0;
  write_table(access_, reign_.area(), reign_.epoch(), table_, 0);
  return 1;
}

void Expansions::serve(std::uint32_t client, const rpc::Message& message) {
  const auto wanted = rpc::load_payload<ExpansionPayload>(message.head().payload);
  const Result<ExpansionAnswer> answer = act(wanted, message);
  if (!answer) return refuse(server_, client, answer.error().code);
  answer_with(server_, client, *answer);
}

Result<ExpansionAnswer> Expansions::act(const ExpansionPayload& wanted,
                                        const rpc::Message& message) {
  if (access_.expansions == nullptr)
    return Error::make(Code::kUnsupported, "this pool cannot grow");
  const std::uint32_t lines = rpc::lines_of(message.lines[0]) - 1;
  if (wanted.path_bytes > kMaxPathBytes || wanted.path_bytes > lines * kNameLineBytes)
    return Error::make(Code::kInvalidArgument, "a path of %u bytes", wanted.path_bytes);
  const PoolId serial{wanted.serial_low, wanted.serial_high};
  Status done = Error::make(Code::kInvalidArgument, "an unknown action");
  ExpansionAnswer answer;
  if (wanted.action == ExpansionAction::kAdd) {
    std::string path;
    for (std::uint32_t part = 0; part < lines; ++part) {
      const rpc::FollowingLine line = message.following(part);
      path.append(reinterpret_cast<const char*>(line.payload), kNameLineBytes);
    }
    path.resize(wanted.path_bytes);
    done = add(path, serial);
    if (!done)
      base::log(base::LogLevel::kWarn, "keeper", "adds no device: %s", done.error().message);
  } else if (wanted.action == ExpansionAction::kGiveUp) {
    done = give_up(serial);
  } else if (wanted.action == ExpansionAction::kKeep) {
    done = keep();
  }
  if (!done) return done.error();
  answer.blocks = blocks_.usable();
  answer.capacity = blocks_.capacity();
  if (table_.leaving != kNoBlock) {
    answer.in_use = blocks_.count_in_use(table_.leaving);
    answer.held = blocks_.count_from(table_.leaving, BlockState::kQuarantined);
  }
  return answer;
}

Status Expansions::add(const std::string& path, const PoolId& serial) {
  for (const Expansion& there : table_.expansions) {
    if (there.serial == serial) return {};  // asked again, because the answer was lost
  }
  if (table_.leaving != kNoBlock)
    return Error::make(Code::kBusy, "%.200s: another device is being given up", path.c_str());
  if (room_to_grow(access_, table_.expansions) == 0)
    return Error::make(Code::kNoSpace, "%.200s: the pool has all its blocks", path.c_str());
  CACHALOT_TRY_ASSIGN(const Expansion found, access_.expansions->look_at(access_, path));
  if (!(found.serial == serial) || found.bytes > room_to_grow(access_, table_.expansions)) {
    return Error::make(Code::kInvalidArgument, "%.200s: is another device than the one prepared",
                       path.c_str());
  }
  // One that was lost is another device from now on. If they have all rows, the one that was lost first is forgotten.
  forget_lost([&](const Expansion& lost) { return lost.path == path || lost.serial == serial; });
  if (table_.expansions.size() + table_.lost.size() == kMaxExpansions)
    forget_lost([oldest = table_.lost.back()](const Expansion& lost) { return lost == oldest; });
  table_.expansions.push_back({found.serial, found.bytes, path});
  Status why_not;
  if (blocks_on(access_, table_.expansions) == blocks_.usable()) {
    table_.expansions.pop_back();
    return Error::make(Code::kInvalidArgument, "%.200s: has no room for a block", path.c_str());
  }
  if (access_.expansions->map(access_, table_.expansions, why_not) != table_.expansions.size()) {
    table_.expansions.pop_back();
    return Error::make(Code::kIo, "cannot be mapped: %.200s", why_not.error().message);
  }
  publish(table_.expansions.size() - 1);
  base::reach(FailPoint::kExpansionNamed);
  blocks_.set_usable(blocks_on(access_, table_.expansions));
  base::log(base::LogLevel::kInfo, "keeper", "added %.200s: the pool has %u blocks now",
            path.c_str(), blocks_.usable());
  return {};
}

std::uint32_t Expansions::first_of_last() const {
  return blocks_on(access_, std::span(table_.expansions).first(table_.expansions.size() - 1));
}

Status Expansions::give_up(const PoolId& serial) {
  const auto is_it = [&](const Expansion& lost) { return lost.serial == serial; };
  if (std::ranges::any_of(table_.lost, is_it)) {
    forget_lost(is_it);
    return {};
  }
  if (table_.expansions.empty() || !(table_.expansions.back().serial == serial)) {
    const bool is_there =
        std::any_of(table_.expansions.begin(), table_.expansions.end(),
                    [&](const Expansion& there) { return there.serial == serial; });
    return is_there ? Error::make(Code::kRefused, "another device was added later")
                    : Error::make(Code::kNotFound, "no such device");
  }
  const std::uint32_t first = first_of_last();
  if (table_.leaving == kNoBlock) {
    if (evictor_.count_kept(first) != 0)
      return Error::make(Code::kBusy, "blocks of it are pinned, or kept by contexts");
    table_.leaving = first;
    blocks_.set_usable(first);
    publish(table_.expansions.size());
  }
  // A look at the tree of all blocks, so only while there is something to evict: this is asked again and again.
  if (blocks_.count_from(first, BlockState::kLive) != 0) evictor_.evict_from(first);
  evictor_.fit(blocks_.capacity());
  blocks_.settle_limbo();
  if (blocks_.count_in_use(first) != 0) return {};
  base::reach(FailPoint::kExpansionEmpty);
  // W4: the tombstones of its blocks, before anything else may lie in their place.
  access_.domain().complete();
  base::log(base::LogLevel::kInfo, "keeper", "gave up %.200s: the pool has %u blocks now",
            table_.expansions.back().path.c_str(), blocks_.usable());
  table_.expansions.pop_back();
  table_.leaving = kNoBlock;
  publish(table_.expansions.size());
  return {};
}

Status Expansions::keep() {
  if (table_.leaving == kNoBlock) return {};
  table_.leaving = kNoBlock;
  publish(table_.expansions.size());
  blocks_.set_usable(blocks_on(access_, table_.expansions));
  return {};
}

}  // namespace cachalot::pool
