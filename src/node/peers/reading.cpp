// Peers: reads blocks out of the pools of others.
#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "node/peers/peers.h"

namespace cachalot::node {
namespace {

using storage::Get;
using storage::ObjectKey;
using transfer::TransferState;
using transfer::WindowKey;

// So that the owner reads the next part while this one travels, and this host verifies it while the next one does.
constexpr std::uint64_t kMostPartBytes = 2u << 20;
constexpr std::uint64_t kFirstRestNs = 1'000'000'000, kLongestRestNs = 60'000'000'000;
constexpr std::uint64_t kSecond = 1'000'000'000;
// Of a block that was not there: its owner's news of that come in a fraction of it.
constexpr std::uint64_t kAbsentNs = kSecond;
constexpr std::uint64_t kDamagedNs = 10 * kSecond;
constexpr std::uint64_t kAllPeers = ~std::uint64_t{0};

Error not_there() {
  return Error::make(Code::kNotFound, "peers: have no such block");
}

}  // namespace

// Consecutive blocks of the call that one peer is asked for.
struct Peers::Part {
  std::uint32_t slot = 0;
  transfer::PeerId id = {};
  std::vector<std::size_t> gets;    // of the call
  std::vector<WantedBlock> blocks;  // as many
  std::uint64_t bytes = 0;
  std::size_t pieces = 0;
  std::uint64_t request = 0, deadline_ns = 0;
  std::uint64_t asked_ns = 0, patience_ns = 0;
  std::optional<WindowKey> window;
};

void Peers::heads(std::span<const ObjectKey> keys,
                  std::span<std::optional<storage::ObjectHead>> heads) const {
  const std::uint64_t now_ns = base::SteadyClock::read();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    heads[i].reset();
    const std::optional<PeerDirectory::Known> known = directory_.find(keys[i], now_ns);
    if (!known) continue;
    heads[i].emplace();
    heads[i]->key = keys[i];
    heads[i]->parent = known->parent;
    heads[i]->payload_bytes = known->length;
  }
}

void Peers::doubt(std::span<const ObjectKey> keys) {
  const std::uint64_t now_ns = base::SteadyClock::read();
  for (const ObjectKey& key : keys) directory_.doubt(kAllPeers, key, now_ns, kDamagedNs);
}

// The peer of the block before, if it has this one, too; else the one that has least to send. @return nothing: all rest
std::optional<std::uint32_t> Peers::choose(std::uint64_t owners,
                                           std::optional<std::uint32_t> last) const {
  const std::uint64_t now_ns = base::SteadyClock::read();
  std::optional<std::uint32_t> best;
  std::uint64_t least = 0;
  for (const auto& [slot, peer] : peers_) {
    if ((owners >> slot & 1) == 0 || peer.is_resting(now_ns)) continue;
    if (last == slot) return slot;
    if (!best || peer.flying_bytes < least) {
      best = slot;
      least = peer.flying_bytes;
    }
  }
  return best;
}

// The parts of a call: blocks that have no answer yet, by the peers that have them and were not tried.
// @param tried  for each block the peers that had it not
std::vector<Peers::Part> Peers::divide(std::span<Get> gets, std::span<std::uint64_t> tried) {
  std::vector<Part> parts;
  const std::uint64_t now_ns = base::SteadyClock::read();
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < gets.size(); ++i) {
    Get& get = gets[i];
    if (get.status || get.status.error().code != Code::kBusy) continue;
    const std::optional<PeerDirectory::Known> known = directory_.find(get.key, now_ns);
    std::optional<std::uint32_t> last;
    if (!parts.empty()) last = parts.back().slot;
    std::optional<std::uint32_t> slot;
    if (known && known->length == storage::bytes_of(get.room))
      slot = choose(known->owners & ~tried[i], last);
    if (!slot) {
      get.status = not_there();
      continue;
    }
    const bool fits = !parts.empty() && parts.back().slot == *slot &&
                      parts.back().gets.back() + 1 == i &&
                      parts.back().blocks.size() < kMostGetBlocks &&
                      parts.back().bytes + known->length <= kMostPartBytes &&
                      parts.back().pieces + get.room.size() <= transfer::kMostSections &&
                      gets[parts.back().gets.back()].key.space == get.key.space;
    if (!fits) parts.emplace_back().slot = *slot;
    Part& part = parts.back();
    part.gets.push_back(i);
    part.blocks.push_back({get.key.block, known->parent, known->length});
    part.bytes += known->length;
    part.pieces += get.room.size();
  }
  return parts;
}

// All parts of a call are asked for at once, and a peer sends them one after the other: the last one has the time that all
// of them take.
void Peers::ask(Part& part, std::span<Get> gets, std::uint64_t deadline_ns) {
  const auto time_ns = [&](std::uint64_t bytes) {
    return options_.patience_ns + bytes * kSecond / options_.least_bytes_per_s;
  };
  part.asked_ns = base::SteadyClock::read();
  part.patience_ns = time_ns(part.bytes);
  std::vector<transfer::Strided> sections;
  for (const std::size_t i : part.gets) {
    for (const storage::Room& room : gets[i].room)
      sections.push_back(transfer::Strided::flat(room.data(), room.size()));
  }
  Result<transfer::ByteStream> memory = transfer::ByteStream::make(1, std::move(sections));
  if (!memory) return;
  {
    const std::lock_guard lock(mutex_);
    const auto at = peers_.find(part.slot);
    if (at == peers_.end()) return;
    at->second.flying_bytes += part.bytes;
    part.deadline_ns = std::min(deadline_ns, part.asked_ns + time_ns(at->second.flying_bytes));
    part.id = at->second.id;
    part.request = next_request_++;
    awaited_[part.request] = {.from = part.id};
  }
  Result<WindowKey> window = engine_->open_window(part.id, *std::move(memory), part.deadline_ns);
  if (!window) return;
  part.window = *window;
  GetMessage message{.request = part.request,
                     .window = static_cast<std::uint64_t>(*window),
                     .deadline_ns = part.deadline_ns - std::min(part.deadline_ns, part.asked_ns),
                     .space = gets[part.gets.front()].key.space,
                     .blocks = part.blocks};
  send(part.id, message);
}

// A peer that failed rests, longer each time; one that works does not.
void Peers::rate(Peer& peer, bool has_worked) {
  if (has_worked) {
    peer.rest_ns = 0;
    return;
  }
  peer.rest_ns = peer.rest_ns == 0 ? kFirstRestNs : std::min(peer.rest_ns * 2, kLongestRestNs);
  peer.rests_until_ns = base::SteadyClock::read() + peer.rest_ns;
}

// Until when a part is waited for: a peer that goes on answering is not given up before the part's deadline. Under mutex_.
std::uint64_t Peers::patience_end_ns(const Part& part) const {
  std::uint64_t since_ns = part.asked_ns;
  const auto at = peers_.find(part.slot);
  if (at != peers_.end() && at->second.id == part.id)
    since_ns = std::max(since_ns, at->second.heard_ns);
  return std::min(part.deadline_ns, since_ns + part.patience_ns);
}

// Waits for the answer to a part and for its bytes.
void Peers::collect(Part& part, std::span<Get> gets, std::span<std::uint64_t> tried) {
  const std::uint64_t bit = std::uint64_t{1} << part.slot;
  std::optional<GotMessage> got;
  if (part.request != 0) {
    std::unique_lock lock(mutex_);
    Awaited& awaited = awaited_[part.request];
    while (part.window && !awaited.got && !awaited.error && !stop_) {
      const std::uint64_t end_ns = patience_end_ns(part), now_ns = base::SteadyClock::read();
      if (now_ns >= end_ns) break;
      (void)changed_.wait_for(lock, std::chrono::nanoseconds(end_ns - now_ns));
    }
    got = std::move(awaited.got);
    awaited_.erase(part.request);
  }
  const bool is_whole = got && got->blocks.size() == part.gets.size();
  bool has_worked = got && got->blocks.size() <= part.gets.size();
  if (is_whole) {
    const std::uint64_t end_ns =
        std::min(part.deadline_ns, base::SteadyClock::read() + part.patience_ns);
    const auto arrived = engine_->wait(*part.window, end_ns);
    has_worked = arrived && arrived->state == TransferState::kDone;
  }
  if (part.window) engine_->release(*part.window);
  {
    const std::lock_guard lock(mutex_);
    if (!has_worked) ++failed_requests_;
    const auto at = peers_.find(part.slot);
    if (part.request != 0 && at != peers_.end() &&
        at->second.id == part.id) {  // not lost meanwhile
      rate(at->second, has_worked);
      if (has_worked) at->second.heard_ns = base::SteadyClock::read();
      at->second.flying_bytes -= part.bytes;
    }
  }
  if (is_whole && has_worked) return finish(part, gets, *std::move(got));
  // Of an answer that is shorter: the blocks before its end are asked for again, without the others.
  const std::size_t there = has_worked ? got->blocks.size() : 0;
  for (std::size_t i = there; i < part.gets.size(); ++i) tried[part.gets[i]] |= bit;
  if (!has_worked || there == part.gets.size()) return;
  directory_.doubt(bit, gets[part.gets[there]].key, base::SteadyClock::read(), kAbsentNs);
  const std::lock_guard lock(mutex_);
  ++absent_blocks_;
}

void Peers::finish(Part& part, std::span<Get> gets, GotMessage got) {
  for (std::size_t i = 0; i < part.gets.size(); ++i) {
    Get& get = gets[part.gets[i]];
    get.head = got.blocks[i].head;
    get.tokens = std::move(got.blocks[i].tokens);
    get.status = {};
  }
  const std::lock_guard lock(mutex_);
  got_blocks_ += part.gets.size();
  got_bytes_ += part.bytes;
}

void Peers::get(std::span<Get> gets, std::uint64_t deadline_ns,
                const storage::Backend::Arrived& arrived) {
  std::vector<std::uint64_t> tried(gets.size());
  for (Get& get : gets) get.status = Error::make(Code::kBusy, "peers: not asked yet");
  for (;;) {
    std::vector<Part> parts = divide(gets, tried);
    if (parts.empty()) return;
    for (Part& part : parts) ask(part, gets, deadline_ns);
    for (Part& part : parts) {
      collect(part, gets, tried);
      for (const std::size_t i : part.gets) {
        if (gets[i].status) arrived(gets[i]);
      }
    }
    if (base::SteadyClock::read() < deadline_ns) continue;
    for (Get& get : gets) {
      if (!get.status && get.status.error().code == Code::kBusy) get.status = not_there();
    }
    return;
  }
}

// --- As storage ------------------------------------------------------------------------------------

namespace {

class PeerBackend final : public storage::Backend {
 public:
  explicit PeerBackend(Peers& peers) : peers_(peers) {}

  const storage::BackendTraits& traits() const override { return traits_; }
  std::optional<std::size_t> peers() const override { return peers_.counts().peers; }
  Status exists(std::span<const ObjectKey> keys, std::span<bool> is_there, std::uint64_t) override {
    std::vector<std::optional<storage::ObjectHead>> found(keys.size());
    peers_.heads(keys, found);
    std::transform(found.begin(), found.end(), is_there.begin(),
                   [](const auto& head) { return head.has_value(); });
    return {};
  }
  Status heads(std::span<const ObjectKey> keys, std::span<std::optional<storage::ObjectHead>> heads,
               std::uint64_t) override {
    peers_.heads(keys, heads);
    return {};
  }
  Status get(std::span<Get> gets, std::uint64_t deadline_ns) override {
    return get_each(
        gets, [](Get&) {}, deadline_ns);
  }
  Status get_each(std::span<Get> gets, const Arrived& arrived, std::uint64_t deadline_ns) override {
    peers_.get(gets, deadline_ns, arrived);
    return {};
  }
  Status put(std::span<storage::Put>, std::uint64_t) override {
    return Error::make(Code::kUnsupported, "peers: are not written");
  }
  // The store removes what was damaged, and nothing else: it evicts nothing here.
  Status remove(std::span<const ObjectKey> keys, std::uint64_t) override {
    peers_.doubt(keys);
    return {};
  }
  Status list(const Lister&, std::uint64_t) override { return {}; }

 private:
  Peers& peers_;
  const storage::BackendTraits traits_{.name = "peers",
                                       .align_bytes = 1,
                                       .is_shared = true,
                                       .is_listed = false,
                                       .is_written = false,
                                       .answers_at_once = true};
};

}  // namespace

std::unique_ptr<storage::Backend> make_peer_backend(Peers& peers) {
  return std::make_unique<PeerBackend>(peers);
}

}  // namespace cachalot::node
