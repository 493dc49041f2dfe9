#include <cachalot/transfer.h>

#include <algorithm>
#include <cinttypes>
#include <utility>

#include "base/clock.h"
#include "kv/paged_cache.h"
#include "os/process.h"
#include "transfer/handover/open.h"
#include "transfer/handover/rank_impl.h"
#include "transfer/ucx/listening.h"

namespace cachalot {
namespace {

constexpr std::size_t kMostPlans = 64;
constexpr std::size_t kMostModelBytes = 4096;

bool is_for(const TransferRank::Impl::PlanKey& key, bool is_giving, const InstanceShape& shape,
            std::uint64_t turn) {
  return key.is_giving == is_giving && key.turn == turn && key.shape == shape;
}

// Which of equal ranks gives, and which of equal ones of a machine fetches.
std::uint64_t turn_of(const OfferId& id, const InstanceShape& source, const InstanceShape& taker) {
  const std::uint32_t fetchers = taker.machines.empty() ? 1 : taker.ranks();
  return id.low % std::max(source.ranks(), fetchers);
}

// Plans know the heads of a rank by its number alone: another division would move the bytes of other heads.
Status check_heads(const KvGeometry& own, const KvGeometry& planned) {
  if (own.kv_heads == planned.kv_heads && own.tp_replicas == planned.tp_replicas) return {};
  return Error::make(Code::kInvalidArgument,
                     "geometry: a rank of TP %u with kv_heads %u and tp_replicas %u; expected %u "
                     "and %u for a model of %u heads",
                     own.tp_size, own.kv_heads, own.tp_replicas, planned.kv_heads,
                     planned.tp_replicas, planned.kv_heads * (own.tp_size / planned.tp_replicas));
}

}  // namespace

Result<OfferId> random_offer_id() {
  CACHALOT_TRY_ASSIGN(const os::Uuid uuid, os::random_uuid());
  return OfferId{uuid.high, uuid.low};
}

Status TransferRank::Impl::start() {
  CACHALOT_TRY_ASSIGN(model_sizes, model_text(options.geometry, options.shape));
  CACHALOT_TRY_ASSIGN(own_ranks, ranks_of(options.geometry, options.shape, options.shape));
  CACHALOT_TRY(check_heads(options.geometry, own_ranks[own_rank].geometry));
  EngineOptions engine_options;
  engine_options.name = rank_name(options.instance, own_rank);
  engine_options.facts = {
      {"model", options.model}, {"kv", model_sizes}, {kDivisionFact, division_text(own_ranks)}};
  engine_options.has_checksums = options.checksums;
  engine_options.peer_timeout_ns = options.peer_timeout_ns;
  CACHALOT_TRY_ASSIGN(Listening listening, make_listening(engine_options.name, options.listen));
  CACHALOT_TRY_ASSIGN(engine_options.cluster_key,
                      read_cluster_key(options.cluster_key_file, options.listen));
  engine_options.listen = std::move(listening.addresses);
  if (tune) tune(engine_options);
  {
    // An event may come before the engine is known here.
    const std::lock_guard lock(mutex);
    CACHALOT_TRY_ASSIGN(
        engine, TransferEngine::open(engine_options, this, std::move(listening.transports)));
  }
  if (!options.registry.empty()) {
    CACHALOT_TRY_ASSIGN(PeerRecord own, PeerRecord::make(engine->name(), engine->addresses()));
    own.incarnation = engine->incarnation();
    CACHALOT_TRY_ASSIGN(book, AddressBook::open(options.registry, own, engine_options.cluster_key));
  }
  watcher = std::thread([this] { watch(); });
  return {};
}

TransferRank::Impl::~Impl() {
  close();
}

// Calls that wait, and the threads of the rank, take `mutex`: it is free while this waits for these threads.
void TransferRank::Impl::close() {
  if (bounce) return bounce->close();
  const std::lock_guard calls(closing);
  {
    const std::lock_guard lock(mutex);
    if (!std::exchange(is_closed, true)) end_all();
  }
  if (watcher.joinable()) watcher.join();
  // Both stay: a thread that is in a call uses them.
  if (book) book->close();
  if (engine) engine->close();
}

void TransferRank::Impl::end_all() {
  const Error error = Error::make(Code::kCancelled, "rank %s was closed",
                                  rank_name(options.instance, own_rank).c_str());
  for (auto& [id, ask] : asks) {
    if (ask.status.state == HandoverState::kRunning) end_ask(ask, &error);
  }
  std::vector<OfferName> left;
  for (const auto& [name, offer] : offers) left.push_back(name);
  for (const OfferName& name : left) end_offer(name, error, "its rank was closed");
  early.clear();
  changed.notify_all();
  deadlines_changed.notify_all();
}

Status TransferRank::Impl::check_open() const {
  if (!is_closed) return {};
  return Error::make(Code::kInvalidArgument, "rank %s: it was closed",
                     rank_name(options.instance, own_rank).c_str());
}

void TransferRank::Impl::watch() {
  std::unique_lock lock(mutex);
  while (!is_closed) {
    const std::uint64_t now_ns = base::SteadyClock::read();
    expire(now_ns);
    std::uint64_t next_ns = now_ns + 1'000'000'000;
    for (const auto& [name, offer] : offers) {
      next_ns = std::min(next_ns, offer.deadline_ns);
      if (offer.ask_by_ns != 0 && !offer.is_closed) next_ns = std::min(next_ns, offer.ask_by_ns);
    }
    for (const auto& [id, ask] : asks) {
      if (ask.status.state == HandoverState::kRunning) next_ns = std::min(next_ns, ask.deadline_ns);
    }
    deadlines_changed.wait_for(lock,
                               std::chrono::nanoseconds(next_ns > now_ns ? next_ns - now_ns : 1));
  }
}

void TransferRank::Impl::expire(std::uint64_t now_ns) {
  std::vector<OfferName> late;
  for (const auto& [name, offer] : offers) {
    if (offer.deadline_ns <= now_ns) late.push_back(name);
  }
  for (const OfferName& name : late) {
    const Offer& offer = offers.at(name);
    if (offer.is_standing) {
      end_offer(
          name, {}, "its time is over",
          offer.done > 0 ? &TransferStatistics::taken_offers : &TransferStatistics::expired_offers);
      continue;
    }
    const bool was_asked = offer.taker.has_value();
    end_offer(name,
              Error::make(Code::kTimeout, was_asked ? "the offer was not taken in time"
                                                    : "nothing asked for the offer in time"),
              "it has expired");
  }
  late.clear();
  for (const auto& [name, offer] : offers) {
    if (offer.ask_by_ns != 0 && !offer.is_closed && offer.ask_by_ns <= now_ns) late.push_back(name);
  }
  for (const OfferName& name : late) {
    if (const auto found = offers.find(name); found != offers.end()) end_await(found->second);
  }
  for (auto& [id, ask] : asks) {
    if (ask.status.state != HandoverState::kRunning || ask.deadline_ns > now_ns) continue;
    const Error error = lateness_of(ask);
    end_ask(ask, &error);
  }
}

void TransferRank::Impl::send(PeerId to, const Message& message) {
  // A peer that is lost meanwhile: on_peer_lost() comes.
  static_cast<void>(engine->send(to, encode(message)));
}

Result<const PairPlan*> TransferRank::Impl::plan_from(const InstanceShape& source,
                                                      const OfferId& id) {
  CACHALOT_TRY(check(source));
  const std::uint64_t turn = turn_of(id, source, options.shape);
  for (const auto& [key, plan] : plans) {
    if (is_for(key, false, source, turn)) return &plan;
  }
  CACHALOT_TRY_ASSIGN(const std::vector<Rank> sources,
                      ranks_of(options.geometry, options.shape, source));
  const bool is_once = !options.shape.machines.empty();
  CACHALOT_TRY_ASSIGN(PairPlan plan, plan_pair(sources, own_ranks, {is_once, turn}));
  if (plans.size() == kMostPlans) plans.pop_back();
  plans.emplace_front(PlanKey{false, source, turn}, std::move(plan));
  return &plans.front().second;
}

Result<const PairPlan*> TransferRank::Impl::plan_to(const InstanceShape& taker, const OfferId& id) {
  CACHALOT_TRY(check(taker));
  const std::uint64_t turn = turn_of(id, options.shape, taker);
  for (const auto& [key, plan] : plans) {
    if (is_for(key, true, taker, turn)) return &plan;
  }
  CACHALOT_TRY_ASSIGN(const std::vector<Rank> takers_of,
                      ranks_of(options.geometry, options.shape, taker));
  const bool is_once = !taker.machines.empty();
  CACHALOT_TRY_ASSIGN(PairPlan plan, plan_pair(own_ranks, takers_of, {is_once, turn}));
  if (plans.size() == kMostPlans) plans.pop_back();
  plans.emplace_front(PlanKey{true, taker, turn}, std::move(plan));
  return &plans.front().second;
}

Status TransferRank::Impl::check_pages(std::span<const PageId> pages, std::uint64_t first_token,
                                       std::uint64_t tokens) const {
  CACHALOT_TRY(check_open());
  const std::uint64_t page_tokens = cache.page_tokens();
  const std::uint64_t needed =
      (first_token + tokens) / page_tokens + ((first_token + tokens) % page_tokens != 0);
  if (tokens == 0 || pages.size() != needed) {
    return Error::make(Code::kInvalidArgument,
                       "%zu pages for %" PRIu64 " tokens from token %" PRIu64
                       " of the first page on; expected %" PRIu64 " pages of %" PRIu64 " tokens",
                       pages.size(), tokens, first_token, needed, page_tokens);
  }
  for (const PageId page : pages) {
    if (page >= cache.pages()) {
      return Error::make(Code::kInvalidArgument, "page %u; the cache has %u pages", page,
                         cache.pages());
    }
  }
  return {};
}

// Whether a peer is a rank of the same model.
Status TransferRank::Impl::check_peer(PeerId peer) const {
  CACHALOT_TRY_ASSIGN(const PeerInfo info, engine->info(peer));
  const auto differs = [&](const char* key, const std::string& own) -> Status {
    const auto found = info.facts.find(key);
    if (found != info.facts.end() && found->second == own) return {};
    return Error::make(Code::kRefused, "rank %s has %s \"%.60s\"; this one has \"%.60s\"",
                       info.name.c_str(), key,
                       found == info.facts.end() ? "" : found->second.c_str(), own.c_str());
  };
  CACHALOT_TRY(differs("model", options.model));
  return differs("kv", model_sizes);
}

void TransferRank::Impl::on_message(PeerId peer, std::span<const std::byte> bytes) {
  Result<Message> message = decode(bytes);
  const std::lock_guard lock(mutex);
  if (is_closed) return;
  if (!message) {
    engine->disconnect(peer);
    return;
  }
  if (auto* ask = std::get_if<AskMessage>(&*message)) take_ask(peer, std::move(*ask));
  if (auto* plan = std::get_if<PlanMessage>(&*message)) take_plan(peer, *plan);
  if (auto* go = std::get_if<GoMessage>(&*message)) take_go(peer, *go);
  if (auto* refusal = std::get_if<RefusalMessage>(&*message)) take_refusal(peer, *refusal);
  if (auto* note = std::get_if<NoteMessage>(&*message)) take_note(peer, std::move(*note));
  if (auto* cancel = std::get_if<CancelMessage>(&*message)) take_cancel(peer, cancel->ask);
  if (auto* nothing = std::get_if<NothingMessage>(&*message)) take_nothing(peer, *nothing);
  if (auto* decline = std::get_if<DeclineMessage>(&*message)) take_decline(peer, *decline);
}

void TransferRank::Impl::on_peer_lost(PeerId peer, const Error& error) {
  const std::lock_guard lock(mutex);
  for (auto& [id, ask] : asks) {
    if (ask.status.state != HandoverState::kRunning) continue;
    for (Source& source : ask.sources) {
      if (source.peer != peer || is_complete(ask, source)) continue;
      source.peer.reset();
      // Before it had answered, its rank had no room for another connection: once more, to the deadline.
      const bool is_asked_again =
          error.code == Code::kBusy && !source.has_plan && begin(ask, source).ok();
      if (is_asked_again) continue;
      end_ask(ask, &error);
      break;
    }
  }
  lose_taker(peer, error);
}

// --- Public ---

TransferRank::TransferRank(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TransferRank::TransferRank(TransferRank&&) noexcept = default;
TransferRank& TransferRank::operator=(TransferRank&&) noexcept = default;
TransferRank::~TransferRank() = default;

void TransferRank::close() {
  if (impl_) impl_->close();
}

Result<TransferRank> TransferRank::open(const TransferOptions& options) {
  return transfer::open(options, [](int ordinal) { return kv::CudaDevice::open(ordinal); });
}

Result<TransferRank> transfer::open(const TransferOptions& options,
                                    const kv::Gpus::Open& open_gpu) {
  if (options.instance.empty() || options.instance.find('/') != std::string::npos ||
      options.instance.size() > 200) {
    return Error::make(Code::kInvalidArgument,
                       "instance \"%.100s\": expected 1 to 200 characters without /",
                       options.instance.c_str());
  }
  if (options.model.empty() || options.model.size() > kMostModelBytes) {
    return Error::make(Code::kInvalidArgument, "model has %zu bytes; expected 1 to %zu",
                       options.model.size(), kMostModelBytes);
  }
  CACHALOT_TRY(check(options.shape));
  const KvGeometry& g = options.geometry;
  if (g.tp_size != options.shape.tp_size || g.pp_size != options.shape.pp_size) {
    return Error::make(Code::kInvalidArgument,
                       "geometry is a rank of TP %u, PP %u; the instance has TP %u, PP %u",
                       g.tp_size, g.pp_size, options.shape.tp_size, options.shape.pp_size);
  }
  CACHALOT_TRY_ASSIGN(kv::EngineCache cache, kv::engine_cache_of(options.cache, g));
  if (!options.shape.stage_layers.empty() && options.shape.stage_layers[g.pp_rank] != g.layers) {
    return Error::make(Code::kInvalidArgument,
                       "stage_layers: stage %u has %u layers; the geometry of this rank has %u",
                       g.pp_rank, options.shape.stage_layers[g.pp_rank], g.layers);
  }
  const std::uint32_t rank = g.pp_rank * g.tp_size + g.tp_rank;
  auto impl = std::make_unique<TransferRank::Impl>(options, std::move(cache), rank);
  if (options.cache.cuda_device) {
    CACHALOT_TRY_ASSIGN(impl->bounce, GpuBounce::open(options, open_gpu));
  } else {
    CACHALOT_TRY(impl->start());
  }
  return TransferRank(std::move(impl));
}

const std::vector<std::string>& TransferRank::addresses() const {
  if (impl_->bounce) return impl_->bounce->rank().addresses();
  return impl_->engine->addresses();
}

TransferStatistics TransferRank::statistics() const {
  if (impl_->bounce) return impl_->bounce->rank().statistics();
  const EngineCounters engine = impl_->engine->counters();
  const std::lock_guard lock(impl_->mutex);
  TransferStatistics s = impl_->counts;
  s.sent_bytes = engine.pushed_bytes;
  s.received_bytes = engine.received_bytes;
  s.copied_bytes = engine.copied_bytes;
  s.resent_bytes = engine.resent_bytes;
  s.corrupt_chunks = engine.corrupt_chunks;
  s.dropped_chunks = engine.dropped_chunks;
  for (const auto& [name, offer] : impl_->offers) s.open_offers += !offer.copied;
  for (const auto& [id, ask] : impl_->asks)
    s.open_asks += ask.status.state == HandoverState::kRunning;
  return s;
}

}  // namespace cachalot
