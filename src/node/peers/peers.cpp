#include "node/peers/peers.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "os/process.h"
#include "transfer/ucx/listening.h"

namespace cachalot::node {
namespace {

using base::LogLevel;
using transfer::PeerId;
using transfer::PushId;
using transfer::WindowKey;

constexpr std::uint64_t kPublishNs = 2'000'000'000, kWithdrawNs = 1'000'000'000;
constexpr std::uint64_t kListNs = 2'000'000'000, kConnectNs = 2'000'000'000;
// Between two calls of one peer.
constexpr std::uint64_t kFirstPauseNs = 500'000'000, kLongestPauseNs = 8'000'000'000;
constexpr std::uint64_t kForgetNs = 60'000'000'000;
constexpr const char* kNamePrefix = "cachalot-pool/";

}  // namespace

Status Peers::check_listen(const PeersOptions& options) {
  transfer::EngineOptions engine;
  engine.name = std::string(kNamePrefix) + "check";
  if (options.is_encrypted) engine.cluster_key = options.key;
  CACHALOT_TRY_ASSIGN(transfer::Listening listening,
                      transfer::make_listening(engine.name, options.listen));
  engine.listen = std::move(listening.addresses);
  transfer::EngineEvents none;
  CACHALOT_TRY_ASSIGN(
      const std::unique_ptr<transfer::TransferEngine> opened,
      transfer::TransferEngine::open(engine, &none, std::move(listening.transports)));
  opened->close();
  return {};
}

Result<std::unique_ptr<Peers>> Peers::open(const pool::Access& access,
                                           const PeersOptions& options) {
  auto peers = std::unique_ptr<Peers>(new Peers(access, options));
  CACHALOT_TRY(peers->start());
  return peers;
}

Status Peers::start() {
  CACHALOT_TRY_ASSIGN(registry_, transfer::open_registry(options_.registry, options_.key));
  std::string name = options_.name;
  if (name.empty()) {
    CACHALOT_TRY_ASSIGN(const os::Uuid random, os::random_uuid());
    char host[64] = {}, text[9];
    (void)::gethostname(host, sizeof host - 1);
    std::snprintf(text, sizeof text, "%08x", static_cast<std::uint32_t>(random.low));
    name = std::string(host) + "-" + text;
  }
  transfer::EngineOptions engine;
  engine.name = kNamePrefix + name;
  if (options_.is_encrypted) engine.cluster_key = options_.key;
  engine.facts = {{kPeersFact, kPeersVersion}};
  engine.watches_idle_peers = true;       // what a host has that is cut off is a miss
  engine.loses_peers_with_a_path = true;  // and news that are lost are told anew
  CACHALOT_TRY_ASSIGN(transfer::Listening listening,
                      transfer::make_listening(engine.name, options_.listen));
  engine.listen = std::move(listening.addresses);
  // Before the first event.
  server_ = std::make_unique<PeerServer>(access_, static_cast<PeerLinks&>(*this), options_.server);
  feed_ = std::make_unique<PeerFeed>(
      access_,
      [this](PeerId to, const NewsMessage& news) { return engine_->send(to, encode(news)).ok(); },
      [this](PeerId to) { return engine_->waiting_bytes(to); });
  {
    const std::lock_guard lock(mutex_);
    CACHALOT_TRY_ASSIGN(
        engine_, transfer::TransferEngine::open(engine, this, std::move(listening.transports)));
  }
  CACHALOT_TRY_ASSIGN(record_, transfer::PeerRecord::make(engine.name, engine_->addresses()));
  record_.incarnation = engine_->incarnation();
  record_.facts = engine.facts;
  thread_ = std::thread([this] { look(); });
  return {};
}

Peers::~Peers() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (registry_) (void)registry_->withdraw(base::SteadyClock::read() + kWithdrawNs);
  if (feed_) feed_->end();        // sends over the engine
  if (engine_) engine_->close();  // no event comes, no copy is read afterwards
  server_.reset();
}

// --- Which peers are there --------------------------------------------------------------------------------

void Peers::look() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    lock.unlock();
    publish();
    look_at_registry();
    lock.lock();
    changed_.wait_for(lock, std::chrono::nanoseconds(options_.look_pause_ns),
                      [&] { return stop_; });
  }
}

// The registry keeps a record that was published once.
void Peers::publish() {
  if (is_published_) return;
  const Status published = registry_->publish(record_, base::SteadyClock::read() + kPublishNs);
  is_published_ = published.ok();
  if (published || !registry_line_.is_due()) return;
  base::log(LogLevel::kWarn, "peers", "other hosts do not find this one yet: %s",
            published.error().message);
}

// A registry that is down changes nothing: the connections are there.
void Peers::look_at_registry() {
  const Result<std::vector<transfer::PeerRecord>> records =
      registry_->list(kNamePrefix, base::SteadyClock::read() + kListNs);
  if (!records) {
    if (list_line_.is_due())
      base::log(LogLevel::kWarn, "peers", "other hosts are not looked for: %s",
                records.error().message);
    return;
  }
  for (const transfer::PeerRecord& record : *records) {
    const auto fact = record.facts.find(kPeersFact);
    if (record.incarnation == engine_->incarnation() || fact == record.facts.end() ||
        fact->second != kPeersVersion)
      continue;
    {
      const std::lock_guard lock(mutex_);
      const bool is_known = std::any_of(peers_.begin(), peers_.end(), [&](const auto& entry) {
        return entry.second.incarnation == record.incarnation;
      });
      if (is_known || stop_ || !may_call(record)) continue;
    }
    engine_->connect_async(
        {record.name, record.incarnation, record.addresses}, base::SteadyClock::read() + kConnectNs,
        [this, record](Result<PeerId> connected) { take_peer(record, std::move(connected)); });
  }
}

// Under the lock. A peer that does not answer, or ends the connection, is called less and less often until it tells what
// it has.
bool Peers::may_call(const transfer::PeerRecord& record) {
  const std::uint64_t now_ns = base::SteadyClock::read();
  std::erase_if(calls_, [&](const auto& call) { return now_ns > call.second.next_ns + kForgetNs; });
  Call& call = calls_[record.incarnation];
  if (call.is_running || now_ns < call.next_ns) return false;
  call.is_running = true;
  call.pause_ns = std::clamp(call.pause_ns * 2, kFirstPauseNs, kLongestPauseNs);
  call.next_ns = now_ns + call.pause_ns;
  return true;
}

void Peers::take_peer(const transfer::PeerRecord& record, Result<PeerId> connected) {
  bool has_slot = false;
  {
    const std::lock_guard lock(mutex_);
    calls_[record.incarnation].is_running = false;
    if (!connected) {
      const Error& error = connected.error();
      if (error.code == Code::kPermission && stranger_line_.is_due())
        base::log(LogLevel::kWarn, "peers", "%s: %s", record.name.c_str(), error.message);
      if (error.code != Code::kPermission && unreached_line_.is_due()) {
        base::log(LogLevel::kWarn, "peers", "%s at %s is not reached: %s", record.name.c_str(),
                  record.addresses.empty() ? "" : record.addresses.front().c_str(), error.message);
      }
      return;
    }
    std::uint32_t slot = 0;
    while (peers_.contains(slot)) ++slot;
    has_slot = slot < kMostPeers;
    if (has_slot) {
      peers_[slot] = {.name = record.name,
                      .address = record.addresses.empty() ? "" : record.addresses.front(),
                      .incarnation = record.incarnation,
                      .id = *connected};
    }
  }
  if (!has_slot) return engine_->disconnect(*connected);
  if (!options_.key) send(*connected, FollowMessage{});  // else after its proof
}

PeerIdentity Peers::own_identity() const {
  return {engine_->name(), engine_->incarnation()};
}

void Peers::on_peer(PeerId peer, const transfer::PeerInfo& info) {
  if (!options_.key) return;
  const Result<ChallengeMessage> challenge = make_challenge();
  if (!challenge) return engine_->disconnect(peer);
  {
    const std::lock_guard lock(mutex_);
    standings_[peer] = {{info.name, info.incarnation}, *challenge, false, info.is_called};
  }
  send(peer, *challenge);
}

void Peers::take_challenge(PeerId peer, const ChallengeMessage& challenge) {
  std::optional<Standing> standing;
  {
    const std::lock_guard lock(mutex_);
    const auto at = standings_.find(peer);
    if (at != standings_.end()) standing = at->second;
  }
  if (!standing || !options_.key) return;  // without a key there is nothing to show
  const Result<ProofMessage> proof =
      prove(*options_.key, challenge, own_identity(), standing->identity,
            standing->is_called ? Side::kCalls : Side::kIsCalled);
  if (!proof) return engine_->disconnect(peer);
  send(peer, *proof);
}

void Peers::take_proof(PeerId peer, const ProofMessage& proof) {
  bool is_right = false, is_called = false;
  std::string name;
  {
    const std::lock_guard lock(mutex_);
    const auto at = standings_.find(peer);
    if (at == standings_.end() || at->second.is_proved) return;
    Standing& standing = at->second;
    name = standing.identity.name;
    const Result<ProofMessage> expected =
        prove(*options_.key, standing.challenge, standing.identity, own_identity(),
              standing.is_called ? Side::kIsCalled : Side::kCalls);
    is_right = expected && is_equal(*expected, proof);
    standing.is_proved = is_right;
    is_called = standing.is_called;
  }
  if (!is_right) {
    if (stranger_line_.is_due())
      base::log(LogLevel::kWarn, "peers", "%s has another cluster key", name.c_str());
    return engine_->disconnect(peer);
  }
  engine_->trust(peer);
  if (is_called) send(peer, FollowMessage{});
}

std::optional<std::uint32_t> Peers::slot_of(PeerId peer) const {
  for (const auto& [slot, known] : peers_) {
    if (known.id == peer) return slot;
  }
  return {};
}

void Peers::on_peer_lost(PeerId peer, const Error& error) {
  std::optional<std::uint32_t> slot;
  {
    const std::lock_guard lock(mutex_);
    slot = slot_of(peer);
    for (auto& [request, awaited] : awaited_) {
      if (awaited.from == peer && !awaited.got) awaited.error = error;
    }
    followers_.erase(peer);
    standings_.erase(peer);
    if (slot && lost_line_.is_due()) {
      base::log(LogLevel::kInfo, "peers", "%s is lost: %s", peers_[*slot].name.c_str(),
                error.message);
    }
  }
  changed_.notify_all();
  feed_->remove(peer);
  server_->forget(peer);
  if (!slot) return;
  directory_.clear(*slot);
  const std::lock_guard lock(mutex_);
  peers_.erase(*slot);  // the slot is another peer's only now
}

// --- Messages ------------------------------------------------------------------------------------

void Peers::send(PeerId to, const PeerMessage& message) {
  // A peer that is lost meanwhile: on_peer_lost() comes.
  (void)engine_->send(to, encode(message));
}

Result<PushId> Peers::push(PeerId to, std::uint64_t window, transfer::ByteStream memory,
                           std::uint64_t deadline_ns) {
  return engine_->push(to, WindowKey{window}, std::move(memory), deadline_ns);
}

void Peers::on_push(PushId push, const transfer::TransferStatus& status) {
  if (status.state != transfer::TransferState::kRunning) server_->push_ended(push);
}

void Peers::on_message(PeerId peer, std::span<const std::byte> bytes) {
  Result<PeerMessage> message = decode_peer_message(bytes);
  std::unique_lock lock(mutex_);
  if (stop_) return;
  if (!message) {
    lock.unlock();
    if (stranger_line_.is_due())
      base::log(LogLevel::kWarn, "peers", "a peer's message: %s", message.error().message);
    return engine_->disconnect(peer);
  }
  if (const auto* const challenge = std::get_if<ChallengeMessage>(&*message)) {
    lock.unlock();
    return take_challenge(peer, *challenge);
  }
  if (const auto* const proof = std::get_if<ProofMessage>(&*message)) {
    lock.unlock();
    return take_proof(peer, *proof);
  }
  if (options_.key && !standings_[peer].is_proved) {
    const std::string name = standings_[peer].identity.name;
    lock.unlock();
    if (stranger_line_.is_due())
      base::log(LogLevel::kWarn, "peers", "%s has no cluster key", name.c_str());
    return engine_->disconnect(peer);
  }
  const std::optional<std::uint32_t> slot = slot_of(peer);
  if (std::holds_alternative<FollowMessage>(*message)) {
    const bool has_room = followers_.size() < kMostPeers;
    if (has_room) followers_[peer] = true;
    lock.unlock();
    if (!has_room) return engine_->disconnect(peer);
    engine_->trust(peer);
    return feed_->add(peer);
  }
  if (auto* const get = std::get_if<GetMessage>(&*message)) {
    const bool follows = followers_.contains(peer);
    lock.unlock();
    if (follows) server_->take(peer, std::move(*get));
    return;
  }
  if (const auto* const news = std::get_if<NewsMessage>(&*message)) {
    if (slot) calls_.erase(peers_[*slot].incarnation);
    if (slot && news->is_anew && joined_line_.is_due()) {
      base::log(LogLevel::kInfo, "peers", "%s at %s is a peer", peers_[*slot].name.c_str(),
                peers_[*slot].address.c_str());
    }
    lock.unlock();
    if (!slot) return;
    if (news->is_anew) directory_.clear(*slot);
    directory_.apply(*slot, news->blocks);
    const auto large = std::find_if(
        news->blocks.begin(), news->blocks.end(),
        [&](const BlockNews& block) { return block.length > access_.geometry.block_bytes; });
    if (large != news->blocks.end() && large_line_.is_due()) {
      base::log(LogLevel::kWarn, "peers",
                "a peer has blocks of %u bytes, which do not fit into the %llu of this pool's "
                "blocks: they are misses here",
                large->length, static_cast<unsigned long long>(access_.geometry.block_bytes));
    }
    heard_changes_.fetch_add(news->blocks.size(), std::memory_order_relaxed);
    return;
  }
  const auto answer = [&](std::uint64_t request) {
    const auto at = awaited_.find(request);
    return at == awaited_.end() || at->second.from != peer ? nullptr : &at->second;
  };
  if (auto* const got = std::get_if<GotMessage>(&*message)) {
    if (Awaited* const awaited = answer(got->request)) {
      awaited->got = std::move(*got);
      if (slot) peers_[*slot].heard_ns = base::SteadyClock::read();
    }
  } else if (auto* const refused = std::get_if<RefusedGetMessage>(&*message)) {
    if (Awaited* const awaited = answer(refused->request)) awaited->error = refused->error;
  }
  changed_.notify_all();
}

// --- What is counted -----------------------------------------------------------------------------

PeersCounts Peers::counts() const {
  PeersCounts counts{};
  counts.known_blocks = directory_.blocks();
  counts.followers = feed_->followers();
  counts.untold_changes = feed_->untold();
  counts.told_changes = feed_->told();
  counts.heard_changes = heard_changes_.load(std::memory_order_relaxed);
  counts.served = server_->counts();
  const std::lock_guard lock(mutex_);
  counts.peers = peers_.size();
  counts.got_blocks = got_blocks_;
  counts.got_bytes = got_bytes_;
  counts.absent_blocks = absent_blocks_;
  counts.failed_requests = failed_requests_;
  return counts;
}

}  // namespace cachalot::node
