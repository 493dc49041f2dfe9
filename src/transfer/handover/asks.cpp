// The decode side: connect to the ranks that have the KV, agree on the orders, open windows, count what arrives.
#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "transfer/handover/rank_impl.h"

namespace cachalot {
namespace {

std::uint64_t raw(AskId id) {
  return static_cast<std::uint64_t>(id);
}
std::uint64_t raw(WindowKey key) {
  return static_cast<std::uint64_t>(key);
}

// Bytes are written into each page once.
Status check_distinct(std::span<const PageId> pages) {
  std::vector<PageId> sorted(pages.begin(), pages.end());
  std::ranges::sort(sorted);
  const auto twice = std::ranges::adjacent_find(sorted);
  if (twice == sorted.end()) return {};
  return Error::make(Code::kInvalidArgument,
                     "page %u is given twice; expected another page for each part of the tokens",
                     *twice);
}

}  // namespace

KvSlice TransferRank::Impl::slice_of(const Ask& ask, const Fetch& fetch) const {
  // The pages begin with the page of the first token.
  const std::uint64_t inside = ask.first_token % cache.page_tokens();
  return {ask.pages, inside, ask.tokens - ask.first_token, fetch.destination_layers,
          fetch.destination_heads};
}

Ask* TransferRank::Impl::find_ask(std::uint64_t number, PeerId peer, Source** source) {
  const auto found = asks.find(AskId{number});
  if (found == asks.end() || found->second.status.state != HandoverState::kRunning) return nullptr;
  for (Source& candidate : found->second.sources) {
    if (candidate.peer != peer) continue;
    *source = &candidate;
    return &found->second;
  }
  return nullptr;
}

void TransferRank::Impl::connect(const KvReference& reference, std::uint32_t rank,
                                 std::uint64_t deadline_ns,
                                 std::function<void(Result<PeerId>)> done) {
  PeerAddress address;
  address.name = rank_name(reference.instance, rank);
  if (rank < reference.addresses.size()) address.addresses = reference.addresses[rank];
  if (!address.addresses.empty() || !book) {
    engine->connect_async(address, deadline_ns, std::move(done));
    return;
  }
  // A connected peer needs no address, so the registry is asked once a peer, and may be down afterwards.
  engine->connect_async(
      address, deadline_ns,
      [this, address, deadline_ns, done = std::move(done)](Result<PeerId> peer) {
        if (peer) return done(std::move(peer));
        book->find(address.name, deadline_ns, [this, deadline_ns, done](Result<PeerRecord> found) {
          if (!found) return done(found.error());
          engine->connect_async({found->name, found->incarnation, found->addresses}, deadline_ns,
                                done);
        });
      });
}

// Asks one source, as soon as it is connected.
Status TransferRank::Impl::begin(const Ask& ask, const Source& source) {
  CACHALOT_TRY_ASSIGN(AskMessage message, message_of(ask, source));
  KvReference sisters;
  sisters.instance = options.instance;
  sisters.addresses = instance_addresses;
  connect(source.is_sister ? sisters : ask.reference, source.rank, ask.deadline_ns,
          [this, id = ask.id, rank = source.rank, offer = ask.reference.id,
           message = std::move(message), may_ask_again = ask.may_ask_again](Result<PeerId> peer) {
            on_connected(id, rank, offer, message, *may_ask_again, std::move(peer));
          });
  return {};
}

void TransferRank::Impl::begin(Ask& ask) {
  for (const Source& source : ask.sources) {
    if (const Status status = begin(ask, source); !status) return end_ask(ask, &status.error());
  }
  // Ranks that this pair needs nothing of hear it, also when the ask has ended meanwhile. One that cannot be reached
  // frees its pages at its deadline.
  for (const std::uint32_t rank : ask.idle_ranks) {
    connect(ask.reference, rank, ask.deadline_ns,
            [this, offer = ask.reference.id, name = ask.name](Result<PeerId> peer) {
              if (peer) send_proven(*peer, offer, {}, NothingMessage{name, options.shape});
            });
  }
}

Result<AskMessage> TransferRank::Impl::message_of(const Ask& ask, const Source& source) const {
  AskMessage message;
  message.ask = raw(ask.id);
  message.offer = ask.name;
  message.nonce = ask.nonce;
  message.shape = options.shape;
  message.rank = own_rank;
  message.first_token = ask.first_token;
  message.tokens = ask.tokens;
  message.waits_for_offer = ask.waits_for_offer;
  message.is_copy = source.is_sister;
  message.hash = ask.hash;
  for (const AskWindow& window : source.windows) {
    CACHALOT_TRY_ASSIGN(const StreamShape shape, stream_shape(cache, slice_of(ask, window.fetch)));
    message.fetches.push_back(shape);
  }
  return message;
}

void TransferRank::Impl::on_connected(AskId id, std::uint32_t source_rank, const OfferId& offer,
                                      const AskMessage& message, const bool& may_ask_again,
                                      Result<PeerId> peer) {
  const std::lock_guard lock(mutex);
  Status status = peer ? check_peer(*peer) : Status(peer.error());
  const auto found = asks.find(id);
  if (found == asks.end() || found->second.status.state != HandoverState::kRunning) {
    // It has ended before this rank could be asked. That one hears both, or its pages would wait for this rank.
    if (!status.ok() || may_ask_again) return;
    send_proven(*peer, offer, {}, message);
    send(*peer, CancelMessage{raw(id)});
    return;
  }
  Ask& ask = found->second;
  const auto source =
      std::ranges::find_if(ask.sources, [&](const Source& s) { return s.rank == source_rank; });
  if (status.ok()) status = check_division(ask, *source, *peer);
  if (!status) {
    end_ask(ask, &status.error());
    return;
  }
  source->peer = *peer;
  send_proven(*peer, offer, {}, message);
}

void TransferRank::Impl::take_plan(PeerId peer, const PlanMessage& message) {
  Source* source = nullptr;
  Ask* const ask = find_ask(message.ask, peer, &source);
  if (ask == nullptr) return;
  Status status;
  if (is_proven(peer, ask->reference.id, ask->nonce, message))
    status = open_windows(*ask, *source, message);
  else
    status = Error::make(
        Code::kPermission,
        "rank %s answers at the address of the reference, and does not know the offer",
        rank_name(source->is_sister ? options.instance : ask->reference.instance, source->rank)
            .c_str());
  if (!status) end_ask(*ask, &status.error());
}

Status TransferRank::Impl::open_windows(Ask& ask, Source& source, const PlanMessage& message) {
  if (message.orders.size() != source.windows.size() || source.has_plan) {
    return Error::make(Code::kBadInput, "the prefill rank plans %zu transfers; expected %zu, once",
                       message.orders.size(), source.windows.size());
  }
  source.has_plan = true;
  GoMessage go{raw(ask.id), {}};
  for (std::size_t i = 0; i < source.windows.size(); ++i) {
    AskWindow& window = source.windows[i];
    CACHALOT_TRY_ASSIGN(ByteStream stream,
                        kv_stream(cache, slice_of(ask, window.fetch), message.orders[i]));
    window.bytes = stream.bytes();
    CACHALOT_TRY_ASSIGN(window.key,
                        engine->open_window(*source.peer, std::move(stream), ask.deadline_ns));
    window.is_open = true;
    window_asks[raw(window.key)] = ask.id;
    go.windows.push_back(raw(window.key));
  }
  send(*source.peer, go);
  return {};
}

void TransferRank::Impl::on_window(WindowKey key, const TransferStatus& status) {
  const std::lock_guard lock(mutex);
  const auto found = window_asks.find(raw(key));
  if (found == window_asks.end()) return;
  const auto entry = asks.find(found->second);
  if (entry == asks.end() || entry->second.status.state != HandoverState::kRunning) return;
  Ask& ask = entry->second;
  if (status.state == TransferState::kFailed) {
    end_ask(ask, &status.error);
    return;
  }
  // Layers [0, layers) are there if no window that has one of them lacks it.
  std::uint32_t layers = cache.geometry().layers;
  ask.status.bytes = 0;
  for (Source& source : ask.sources) {
    for (AskWindow& window : source.windows) {
      if (window.is_open && window.key == key) {
        window.arrived = status.bytes;
        window.is_done = status.state == TransferState::kDone;
      }
      ask.status.bytes += window.arrived;
      if (window.is_done) continue;
      const std::uint64_t turn_bytes =
          window.bytes == 0 ? 1 : window.bytes / window.fetch.destination_layers.count();
      layers = std::min(layers, window.fetch.destination_layers.first +
                                    static_cast<std::uint32_t>(window.arrived / turn_bytes));
    }
  }
  ask.status.layers = layers;
  if (ask.copies) raise_layers(offers.at(*ask.copies), layers);
  end_if_arrived(ask);
  changed.notify_all();
}

void TransferRank::Impl::take_note(PeerId peer, NoteMessage message) {
  Source* source = nullptr;
  Ask* const ask = find_ask(message.ask, peer, &source);
  if (ask == nullptr || !source->has_plan) return;
  ask->status.note = std::move(message.note);
  ask->has_note = true;
  if (ask->copies) send_note(offers.at(*ask->copies), ask->status.note);
  end_if_arrived(*ask);
}

void TransferRank::Impl::take_refusal(PeerId peer, const RefusalMessage& message) {
  Source* source = nullptr;
  Ask* const ask = find_ask(message.ask, peer, &source);
  if (ask != nullptr && !is_complete(*ask, *source)) end_ask(*ask, &message.error);
}

bool TransferRank::Impl::is_complete(const Ask& ask, const Source& source) const {
  return (!ask.reference.expects_note || ask.has_note) &&
         std::ranges::all_of(source.windows, [](const AskWindow& w) { return w.is_done; });
}

void TransferRank::Impl::end_if_arrived(Ask& ask) {
  if (ask.status.state != HandoverState::kRunning) return;  // it ended with its copies
  for (const Source& source : ask.sources) {
    if (!is_complete(ask, source)) return;
  }
  if (ask.copies) {
    await_asks(offers.at(*ask.copies));  // on_copies_ended() comes
    return;
  }
  end_ask(ask, nullptr);
}

void TransferRank::Impl::close_windows(Ask& ask, const Error* reason) {
  for (Source& source : ask.sources) {
    for (AskWindow& window : source.windows) {
      if (!window.is_open) continue;
      window_asks.erase(raw(window.key));
      engine->release(window.key, reason);  // after this, nothing writes into the pages
      window.is_open = false;
    }
  }
}

// A plan from another division of the layers would put KV into other layers.
Status TransferRank::Impl::check_division(const Ask& ask, const Source& source, PeerId peer) const {
  if (source.is_sister) return {};
  CACHALOT_TRY_ASSIGN(const PeerInfo info, engine->info(peer));
  const auto found = info.facts.find(kDivisionFact);
  if (found == info.facts.end() || found->second == ask.division) return {};
  return Error::make(Code::kInvalidArgument,
                     "rank %s is of an instance of %.60s; the reference says %.60s",
                     info.name.c_str(), found->second.c_str(), ask.division.c_str());
}

Error TransferRank::Impl::lateness_of(const Ask& ask) const {
  const auto has_bytes = [](const Source& source) {
    return std::ranges::all_of(source.windows, [](const AskWindow& w) { return w.is_done; });
  };
  auto source = std::ranges::find_if_not(ask.sources, has_bytes);
  const bool lacks_note = source == ask.sources.end();
  if (lacks_note) source = ask.sources.begin();
  const std::string rank =
      rank_name(source->is_sister ? options.instance : ask.reference.instance, source->rank);
  const auto late = [&](const char* what) {
    return Error::make(Code::kTimeout, "rank %s %s at the deadline of the ask", rank.c_str(), what);
  };
  if (lacks_note) return late("had sent all bytes, but not the note of finish() that is expected");
  const bool has_plan = source->has_plan;
  if (!source->peer) return late("was not connected");
  if (!has_plan && source->is_sister)
    return late("of this machine, to copy from, had not asked for the same tokens");
  if (!has_plan && ask.waits_for_offer) return late("had not made the offer");
  if (source->is_sister) return late("of this machine, to copy from, had not sent all bytes");
  return Error::make(Code::kTimeout, "instance %s had sent %llu bytes at the deadline of the ask",
                     ask.reference.instance.c_str(),
                     static_cast<unsigned long long>(ask.status.bytes));
}

// @param error  null: done
void TransferRank::Impl::end_ask(Ask& ask, const Error* error) {
  close_windows(ask, error);
  if (error == nullptr) {
    ask.status.state = HandoverState::kDone;
    ask.status.layers = cache.geometry().layers;
    ++counts.done_asks;
  } else {
    ask.status.state = HandoverState::kFailed;
    ask.status.error = *error;
    ++counts.failed_asks;
    *ask.may_ask_again = error->code == Code::kNotFound;
    for (const Source& source : ask.sources) {
      if (source.peer) send(*source.peer, CancelMessage{raw(ask.id)});
    }
    fail_copies(ask, *error);
  }
  changed.notify_all();
}

Status TransferRank::Impl::check_addresses(const KvReference& reference) const {
  CACHALOT_TRY(check(reference.shape));
  if (reference.addresses.size() == reference.shape.ranks() ||
      (reference.addresses.empty() && book)) {
    return {};
  }
  return Error::make(Code::kInvalidArgument,
                     "a reference has addresses of %zu ranks; expected %u%s",
                     reference.addresses.size(), reference.shape.ranks(), book ? " or none" : "");
}

// --- Public ---

Status TransferRank::decline(const KvReference& reference, std::uint64_t deadline_ns) {
  if (impl_->bounce) return impl_->bounce->rank().decline(reference, deadline_ns);
  const std::lock_guard lock(impl_->mutex);
  Impl& impl = *impl_;
  CACHALOT_TRY(impl.check_addresses(reference));
  if (impl.own_rank != 0) return {};
  const std::uint64_t end_ns =
      base::SteadyClock::read() + std::min<std::uint64_t>(deadline_ns, ~std::uint64_t{0} >> 2);
  for (std::uint32_t rank = 0; rank < reference.shape.ranks(); ++rank) {
    impl.connect(reference, rank, end_ns, [&impl, offer = reference.id](Result<PeerId> peer) {
      if (peer) impl.send_proven(*peer, offer, {}, DeclineMessage{name_of(offer)});
    });
  }
  return {};
}

Result<AskId> TransferRank::ask(const KvReference& reference, const AskOptions& o) {
  if (impl_->bounce) return impl_->bounce->ask(reference, o);
  const std::lock_guard lock(impl_->mutex);
  Impl& impl = *impl_;
  const std::uint64_t tokens = o.tokens == 0 ? reference.tokens : o.tokens;
  if (o.first_token >= tokens || tokens > reference.tokens) {
    return Error::make(Code::kInvalidArgument, "tokens %llu to %llu of a reference to %llu tokens",
                       static_cast<unsigned long long>(o.first_token),
                       static_cast<unsigned long long>(tokens),
                       static_cast<unsigned long long>(reference.tokens));
  }
  CACHALOT_TRY(impl.check_addresses(reference));
  const std::uint64_t inside = o.first_token % impl.cache.page_tokens();
  CACHALOT_TRY(impl.check_pages(o.pages, inside, tokens - o.first_token));
  CACHALOT_TRY(check_distinct(o.pages));
  CACHALOT_TRY_ASSIGN(const PairPlan* const plan, impl.plan_from(reference.shape, reference.id));
  CACHALOT_TRY_ASSIGN(const std::vector<Rank> source_ranks,
                      ranks_of(impl.options.geometry, impl.options.shape, reference.shape));
  const bool copies = !plan->copies_of(impl.own_rank).empty();
  if (copies && impl.instance_addresses.empty() && !impl.book) {
    return Error::make(Code::kInvalidArgument,
                       "rank %u copies from rank %u of its machine, whose addresses are unknown; "
                       "expected a registry, or addresses of this instance",
                       impl.own_rank, plan->copies_of(impl.own_rank).front().source);
  }
  CACHALOT_TRY_ASSIGN(const OfferId copies_name, random_offer_id());
  CACHALOT_TRY_ASSIGN(const OfferId nonce, random_offer_id());
  const AskId id{impl.next_ask++};
  Ask& ask = impl.asks[id];
  ask.id = id;
  ask.reference = reference;
  ask.name = name_of(reference.id);
  ask.nonce = {nonce.high, nonce.low};
  ask.pages.assign(o.pages.begin(), o.pages.end());
  ask.first_token = o.first_token;
  ask.tokens = tokens;
  ask.hash = o.hash;
  ask.deadline_ns =
      base::SteadyClock::read() + std::min<std::uint64_t>(o.deadline_ns, ~std::uint64_t{0} >> 2);
  ask.waits_for_offer = o.waits_for_offer;
  ask.division = division_text(source_ranks);
  for (const Fetch& fetch :
       copies ? plan->copies_of(impl.own_rank) : plan->fetches_of(impl.own_rank)) {
    auto source = std::find_if(ask.sources.begin(), ask.sources.end(),
                               [&](const Source& s) { return s.rank == fetch.source; });
    if (source == ask.sources.end()) {
      ask.sources.push_back({fetch.source, copies, {}, false, {}});
      source = std::prev(ask.sources.end());
    }
    source->windows.emplace_back().fetch = fetch;
  }
  if (impl.own_rank == 0) {
    for (std::uint32_t rank = 0; rank < reference.shape.ranks(); ++rank) {
      if (plan->expected_transfers(rank) == 0) ask.idle_ranks.push_back(rank);
    }
  }
  ++impl.counts.asks;
  impl.offer_copies(ask, *plan, {copies_name.high, copies_name.low});
  impl.begin(ask);
  impl.deadlines_changed.notify_all();
  return id;
}

Result<AskStatus> TransferRank::status(AskId id) const {
  return wait(id, 0);
}

Result<AskStatus> TransferRank::wait(AskId id, std::uint64_t timeout_ns,
                                     std::uint32_t layers) const {
  if (impl_->bounce) return impl_->bounce->wait(id, timeout_ns, layers);
  std::unique_lock lock(impl_->mutex);
  const std::uint64_t now_ns = base::SteadyClock::read();
  const std::uint64_t end_ns =
      timeout_ns > ~std::uint64_t{0} - now_ns ? ~std::uint64_t{0} : now_ns + timeout_ns;
  for (;;) {
    const auto found = impl_->asks.find(id);
    if (found == impl_->asks.end())
      return Error::make(Code::kNotFound, "no such ask, or it was released");
    const AskStatus& status = found->second.status;
    const std::uint64_t read_ns = base::SteadyClock::read();
    if (status.state != HandoverState::kRunning || status.layers >= layers || read_ns >= end_ns) {
      return AskStatus(status);
    }
    if (end_ns == ~std::uint64_t{0}) {
      impl_->changed.wait(lock);
    } else {
      impl_->changed.wait_for(lock, std::chrono::nanoseconds(end_ns - read_ns));
    }
  }
}

void TransferRank::release(AskId id) {
  if (impl_->bounce) return impl_->bounce->release(id);
  const std::lock_guard lock(impl_->mutex);
  const auto found = impl_->asks.find(id);
  if (found == impl_->asks.end()) return;
  if (found->second.status.state == HandoverState::kRunning) {
    const Error error = Error::make(Code::kCancelled, "the decode instance has cancelled");
    impl_->end_ask(found->second, &error);
  }
  impl_->asks.erase(found);
}

}  // namespace cachalot
