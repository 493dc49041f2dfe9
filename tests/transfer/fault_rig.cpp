#include "fault_rig.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>

#include "base/clock.h"

namespace cachalot::transfer {
namespace {

constexpr std::uint64_t kMs = 1'000'000;
constexpr std::uint64_t kShortNs = 500 * kMs;
constexpr std::uint64_t kLongNs = 10'000 * kMs;
constexpr std::uint32_t kTries = 5;

Status wrong(const char* what) {
  return Error::make(Code::kInternal, "%s", what);
}

void sleep_ns(std::uint64_t ns) {
  std::this_thread::sleep_for(std::chrono::nanoseconds(ns));
}

std::uint64_t now() {
  return base::SteadyClock::read();
}

std::uint64_t word_of(std::uint64_t seed, std::uint32_t layer, std::uint32_t part,
                      std::uint32_t number, std::uint64_t at) {
  return base::mix64(seed + base::mix64((std::uint64_t{layer} << 40 | std::uint64_t{part} << 36 |
                                         std::uint64_t{number} << 20) +
                                        at + 1));
}

// Of a page, `bytes` from its beginning.
void write_page(std::byte* cache, std::uint32_t page, std::uint64_t bytes, std::uint64_t seed,
                std::uint32_t number) {
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    for (std::uint32_t part = 0; part < kParts; ++part) {
      std::byte* at = cache + offset_of(layer, part, page);
      for (std::uint64_t i = 0; i < bytes; i += 8) {
        const std::uint64_t word = word_of(seed, layer, part, number, i);
        std::memcpy(at + i, &word, 8);
      }
    }
  }
}

bool has_page(const std::byte* cache, std::uint32_t page, std::uint64_t first, std::uint64_t last,
              std::uint64_t seed, std::uint32_t number, std::uint32_t layers = kLayers,
              std::uint32_t first_layer = 0) {
  for (std::uint32_t layer = first_layer; layer < layers; ++layer) {
    for (std::uint32_t part = 0; part < kParts; ++part) {
      const std::byte* at = cache + offset_of(layer, part, page);
      for (std::uint64_t i = first; i < last; i += 8) {
        std::uint64_t word;
        std::memcpy(&word, at + i, 8);
        if (word != word_of(seed, layer, part, number, i)) return false;
      }
    }
  }
  return true;
}

// Of the used part of page `i` of a request.
std::uint64_t used_bytes(std::uint64_t tokens, std::uint32_t i) {
  return std::min<std::uint64_t>(tokens - std::uint64_t{i} * kPageTokens, kPageTokens) *
         kTokenBytes;
}

}  // namespace

const char* name_of(Fault fault) {
  static constexpr const char* kNames[kFaults] = {
      "prefill dies",  "decode dies",      "link cut",        "link half open", "prefill stalls",
      "decode stalls", "prefill restarts", "decode restarts", "decode cancels", "prefill cancels"};
  return kNames[static_cast<std::uint32_t>(fault)];
}
const char* name_of(Phase phase) {
  static constexpr const char* kNames[kPhases] = {"before", "during", "after"};
  return kNames[static_cast<std::uint32_t>(phase)];
}

// --- Processes ---

Status FaultRig::start_prefill() {
  return p_.start(link_, {.side = 'a',
                          .listen = {"tcp:" + NetnsLink::address('a') + ":7001"},
                          .peer_timeout_ns = peer_timeout_ns_,
                          .seed = rng_.next()});
}

Status FaultRig::start_decode() {
  last_damaged_ = last_received_ = 0;
  return d_.start(link_, {.side = 'b',
                          .listen = {"tcp:" + NetnsLink::address('b') + ":7002"},
                          .prefill = {{"tcp:" + NetnsLink::address('a') + ":7001"}},
                          .peer_timeout_ns = peer_timeout_ns_,
                          .seed = rng_.next(),
                          .damage = 0.01});
}

// --- A request ---

FaultRig::Request FaultRig::any_request(std::uint64_t deadline_ns) {
  Request r;
  r.id = {rng_.next(), rng_.next()};
  r.pages = static_cast<std::uint32_t>(4 + rng_.below(kMostPages - 3));
  r.tokens = std::uint64_t{r.pages} * kPageTokens - rng_.below(kPageTokens);
  r.seed = rng_.next() | 1;
  r.deadline_ns = deadline_ns;
  std::array<std::uint32_t, kPages> pages;
  for (auto* list : {&r.from, &r.to}) {
    std::iota(pages.begin(), pages.end(), 0u);
    for (std::uint32_t i = 0; i < r.pages; ++i)
      std::swap(pages[i], pages[i + rng_.below(kPages - i)]);
    std::copy_n(pages.begin(), r.pages, list->begin());
  }
  return r;
}

Command FaultRig::command(const Request& r, Command::Op op) const {
  Command c;
  c.op = op;
  c.id = r.id;
  c.pages = op == Command::kOffer ? r.from : r.to;
  c.page_count = r.pages;
  c.tokens = r.tokens;
  c.deadline_ns = r.deadline_ns;
  c.layers = r.layers;
  c.ask = r.ask;
  return c;
}

void FaultRig::fill_source(const Request& r) {
  for (std::uint32_t i = 0; i < r.pages; ++i)
    write_page(p_.memory(), r.from[i], kPageBytes, r.seed, i);
}

Status FaultRig::check_layers(const Request& r, std::uint32_t layers) const {
  for (std::uint32_t i = 0; i < r.pages; ++i) {
    if (!has_page(d_.memory(), r.to[i], 0, used_bytes(r.tokens, i), r.seed, i, layers,
                  r.checked_layers)) {
      return Error::make(Code::kInternal, "page %u (number %u of a request) has a wrong byte",
                         r.to[i], i);
    }
  }
  return {};
}

void FaultRig::overwrite(FaultPeer& peer, const std::array<std::uint32_t, kMostPages>& pages,
                         std::uint32_t count, std::uint64_t seed) {
  for (std::uint32_t i = 0; i < count; ++i)
    write_page(peer.memory(), pages[i], kPageBytes, seed, pages[i]);
}

// The decode instance does: a late write would be seen.
Status FaultRig::use_pages_again(const Request& r) {
  for (std::uint32_t i = 0; i < r.pages; ++i) {
    const std::uint32_t page = r.to[i];
    const auto before = seeds_.find(page);
    if (!has_page(d_.memory(), page, used_bytes(r.tokens, i), kPageBytes,
                  before == seeds_.end() ? memory_seed_ : before->second, page)) {
      return Error::make(Code::kInternal, "page %u was written beyond the tokens of its request",
                         page);
    }
  }
  const std::uint64_t seed = rng_.next() | 1;
  overwrite(d_, r.to, r.pages, seed);
  for (std::uint32_t i = 0; i < r.pages; ++i) seeds_[r.to[i]] = seed;
  return {};
}

Status FaultRig::offer(Request& r) {
  r.offered_ns = now();
  CACHALOT_TRY_ASSIGN(const Reply reply, p_.call(command(r, Command::kOffer)));
  if (!reply.is_ok) return Status(reply.error);
  r.is_offered = r.was_offered = true;
  return {};
}

Status FaultRig::ask(Request& r, bool waits_for_offer) {
  Command c = command(r, Command::kAsk);
  c.waits_for_offer = waits_for_offer;
  if (!d_.answers()) {
    r.is_asked = true;
    return d_.post(c);  // restore() reads the answer
  }
  r.asked_ns = now();
  CACHALOT_TRY_ASSIGN(const Reply reply, d_.call(c));
  return finish_ask(r, reply);
}

Status FaultRig::finish_ask(Request& r, const Reply& reply) {
  if (!reply.is_ok) return Status(reply.error);
  r.ask = reply.ask;
  r.is_asked = true;
  return {};
}

Status FaultRig::look_at_decode(Request& r) {
  Command c = command(r, Command::kLook);
  CACHALOT_TRY_ASSIGN(const Reply reply, d_.call(c));
  totals_.damaged += reply.damaged - last_damaged_;
  totals_.received += reply.received - last_received_;
  last_damaged_ = reply.damaged;
  last_received_ = reply.received;
  if (!r.is_asked || r.has_ask_ended) return {};
  if (!reply.has_ask) return wrong("a request is not known any more");
  r.bytes = reply.bytes;
  const bool is_done = reply.state == HandoverState::kDone;
  if (is_done && reply.layers != kLayers) return wrong("a request is done and lacks layers");
  // What counts as received must be right, whatever comes later.
  if (reply.layers > r.checked_layers) {
    CACHALOT_TRY(check_layers(r, reply.layers));
    r.checked_layers = reply.layers;
  }
  if (reply.state == HandoverState::kRunning) return {};
  r.has_ask_ended = true;
  r.was_done = is_done;
  r.error = reply.error;
  // Done: all bytes once more, at the end. Then the pages are used again.
  r.checked_layers = 0;
  CACHALOT_TRY(check_layers(r, reply.layers));
  CACHALOT_TRY(use_pages_again(r));
  c.op = Command::kRelease;
  CACHALOT_TRY_ASSIGN(const Reply released, d_.call(c));
  return released.is_ok ? Status() : Status(released.error);
}

Status FaultRig::look_at_prefill(Request& r) {
  CACHALOT_TRY_ASSIGN(const Reply reply, p_.call(command(r, Command::kLook)));
  for (std::uint32_t i = 0; i < reply.ended_count; ++i) {
    if (reply.ended[i].id != r.id) continue;
    if (r.has_offer_ended) return wrong("an offer has ended twice");
    r.has_offer_ended = true;
    r.was_taken = reply.ended[i].is_ok;
    // The prefill instance uses the pages again.
    overwrite(p_, r.from, r.pages, rng_.next() | 1);
  }
  return {};
}

// --- An injection ---

Status FaultRig::begin(std::uint64_t seed) {
  seed_ = seed;
  rng_ = base::Rng(seed);
  if (until_new_ == 0) {
    // A silent peer is noticed before a deadline of some seconds, or only by a short deadline.
    peer_timeout_ns_ = stall_ns_ != 0 ? 4 * stall_ns_ : rng_.chance(0.5) ? kShortNs : kLongNs;
    p_.kill();
    d_.kill();
    CACHALOT_TRY(start_prefill());
    CACHALOT_TRY(start_decode());
    until_new_ = 25;
  }
  --until_new_;
  memory_seed_ = rng_.next() | 1;
  for (std::uint32_t page = 0; page < kPages; ++page)
    write_page(d_.memory(), page, kPageBytes, memory_seed_, page);
  seeds_.clear();
  return {};
}

Status FaultRig::inject(Fault fault, Phase phase, std::uint64_t seed) {
  CACHALOT_TRY(begin(seed));
  CACHALOT_TRY(run(fault, phase));
  CACHALOT_TRY(restore());
  CACHALOT_TRY(wait_for_ends());
  CACHALOT_TRY(end(fault, phase));
  CACHALOT_TRY(wait_for_empty());
  CACHALOT_TRY(use_again());
  CACHALOT_TRY(wait_for_empty());
  return check_memory();
}

Status FaultRig::run(Fault fault, Phase phase) {
  // Without silence as a sign, the deadline is what ends a request; and nothing else ends an offer of which
  // nothing is taken.
  const bool is_short = peer_timeout_ns_ != kShortNs || phase == Phase::kBefore || rng_.chance(0.5);
  const bool is_gentle = phase == Phase::kAfter;  // it must be done first
  request_ = any_request(stall_ns_ != 0 ? stall_ns_
                         : is_gentle    ? 4 * kShortNs
                         : is_short     ? kShortNs
                                        : kLongNs);
  Request& r = request_;
  const bool is_gated = phase == Phase::kDuring && (stall_ns_ != 0 || rng_.chance(0.5));
  if (is_gated) r.layers = static_cast<std::uint32_t>(1 + rng_.below(kLayers - 1));
  if (phase == Phase::kDuring && !is_gated) {
    CACHALOT_TRY(link_.send("rate 15000000"));
    is_throttled_ = true;
  }
  r.asks_early = rng_.chance(0.3);
  fill_source(r);
  if (r.asks_early) {
    CACHALOT_TRY(ask(r, true));
    sleep_ns(rng_.below(3) * kMs);
  } else {
    CACHALOT_TRY(offer(r));
  }
  if (phase == Phase::kBefore) CACHALOT_TRY(apply(fault, phase));
  const bool has_gone =
      phase == Phase::kBefore && (fault == Fault::kPrefillDies || fault == Fault::kPrefillRestarts);
  if (r.asks_early && p_.answers() && !has_gone) {
    CACHALOT_TRY(offer(r));
    if (fault == Fault::kPrefillCancels && phase == Phase::kBefore)
      CACHALOT_TRY(p_.call(command(r, Command::kWithdraw)));
  }
  if (!r.is_asked && d_.lives()) {
    CACHALOT_TRY(ask(r, false));
    if (fault == Fault::kDecodeCancels && phase == Phase::kBefore)
      CACHALOT_TRY(apply(fault, phase));
  }
  if (phase == Phase::kDuring) {
    CACHALOT_TRY(wait_for_bytes(false));
    CACHALOT_TRY(apply(fault, phase));
    // What was computed meanwhile.
    if (is_gated && p_.answers()) {
      Command c = command(r, Command::kReady);
      c.layers = kLayers;
      CACHALOT_TRY(p_.call(c));
    }
  }
  if (phase == Phase::kAfter) {
    CACHALOT_TRY(wait_for_bytes(true));
    if (!r.was_done) {
      return Error::make(Code::kInternal, "a request without a fault has failed: %.150s",
                         r.error.message);
    }
    if (rng_.chance(0.5)) sleep_ns(rng_.below(5) * kMs);
    CACHALOT_TRY(apply(fault, phase));
  }
  if (fault == Fault::kDecodeRestarts && phase != Phase::kBefore) {
    // The new process has the reference, too.
    r.was_done_before = r.was_done;
    r.has_ask_ended = r.was_done = false;
    CACHALOT_TRY(ask(r, false));
  }
  return {};
}

// Until the first bytes, or layers, have arrived; to_the_end: until the request has ended.
Status FaultRig::wait_for_bytes(bool to_the_end) {
  Request& r = request_;
  const std::uint64_t end_ns = r.asked_ns + r.deadline_ns + slack_ns_;
  for (;;) {
    CACHALOT_TRY(look_at_decode(r));
    if (r.has_ask_ended) break;
    const bool is_there = r.layers < kLayers ? r.checked_layers >= r.layers : r.bytes > 0;
    if (!to_the_end && is_there) break;
    if (now() > end_ns) return wrong("a request has not ended at its deadline");
    sleep_ns(kMs);
  }
  if (!to_the_end && !r.has_ask_ended && r.layers == kLayers) sleep_ns(rng_.below(40) * kMs);
  return {};
}

// Half of the time with its host: the kernel does not tell the other side.
Status FaultRig::kill(FaultPeer& peer, bool restarts) {
  const bool has_host = rng_.chance(0.5);
  if (!has_host) CACHALOT_TRY(link_.send("cut"));
  peer.kill();
  if (has_host) return {};
  is_broken_ = !restarts;
  return restarts ? link_.send("heal") : Status();
}

Status FaultRig::apply(Fault fault, Phase phase) {
  Request& r = request_;
  Cell& cell = cells_[{fault, phase}];
  if (r.is_asked && !r.has_ask_ended && d_.answers()) {
    CACHALOT_TRY(look_at_decode(r));
    cell.running += !r.has_ask_ended && r.bytes > 0;
  }
  switch (fault) {
    case Fault::kPrefillDies:
    case Fault::kPrefillRestarts:
      CACHALOT_TRY(kill(p_, fault == Fault::kPrefillRestarts));
      r.is_offered = false;
      overwrite(p_, r.from, r.pages, rng_.next() | 1);
      if (fault == Fault::kPrefillRestarts) CACHALOT_TRY(start_prefill());
      break;
    case Fault::kDecodeDies:
    case Fault::kDecodeRestarts:
      CACHALOT_TRY(kill(d_, fault == Fault::kDecodeRestarts));
      r.is_asked = false;
      if (fault == Fault::kDecodeRestarts) CACHALOT_TRY(start_decode());
      r.checked_layers = 0;
      break;
    case Fault::kLinkCut:
      is_broken_ = true;
      return link_.send("cut");
    case Fault::kLinkHalfOpen:
      is_broken_ = true;
      return link_.send(rng_.chance(0.5) ? "half-open way=ab" : "half-open way=ba");
    case Fault::kPrefillStalls:
      p_.stop();
      break;
    case Fault::kDecodeStalls:
      d_.stop();
      break;
    case Fault::kDecodeCancels:
      if (r.is_asked && !r.has_ask_ended) {
        CACHALOT_TRY(d_.call(command(r, Command::kRelease)));
        r.has_ask_ended = true;
        CACHALOT_TRY(use_pages_again(r));
      }
      break;
    case Fault::kPrefillCancels:
      if (r.is_offered) CACHALOT_TRY(p_.call(command(r, Command::kWithdraw)));
      break;
  }
  return {};
}

// The fault lasts until the side that is alive has ended its part; then the world is whole again.
Status FaultRig::restore() {
  Request& r = request_;
  if (!p_.answers() || !d_.answers() || is_broken_) CACHALOT_TRY(wait_for_ends());
  if (p_.lives() && !p_.answers()) p_.resume();
  if (d_.lives() && !d_.answers()) {
    d_.resume();
    if (r.is_asked && r.ask == 0) {
      r.asked_ns = now();
      CACHALOT_TRY_ASSIGN(const Reply reply, d_.answer());
      CACHALOT_TRY(finish_ask(r, reply));
    }
  }
  if (is_broken_ || is_throttled_) CACHALOT_TRY(link_.send("heal"));
  is_broken_ = is_throttled_ = false;
  if (!p_.lives()) CACHALOT_TRY(start_prefill());
  return {};
}

// Until all that live and do not stall have ended the request; not later than its deadline.
Status FaultRig::wait_for_ends() {
  Request& r = request_;
  const std::uint64_t begin_ns = now();
  for (;;) {
    const bool waits_for_p = p_.answers() && r.is_offered && !r.has_offer_ended;
    const bool waits_for_d = d_.answers() && r.is_asked && !r.has_ask_ended;
    if (!waits_for_p && !waits_for_d) return {};
    if (waits_for_p) CACHALOT_TRY(look_at_prefill(r));
    if (waits_for_d) CACHALOT_TRY(look_at_decode(r));
    // A process that was stopped notices a deadline only now.
    const std::uint64_t now_ns = now();
    const std::uint64_t p_ns = std::max(r.offered_ns + r.deadline_ns, begin_ns);
    const std::uint64_t d_ns = std::max(r.asked_ns + r.deadline_ns, begin_ns);
    for (const auto& [waits, at] : {std::pair(waits_for_p, p_ns), std::pair(waits_for_d, d_ns)}) {
      if (!waits || now_ns <= at) continue;
      totals_.longest_over_ns = std::max(totals_.longest_over_ns, now_ns - at);
    }
    if (waits_for_p && !r.has_offer_ended && now_ns > p_ns + slack_ns_)
      return wrong("an offer has not ended at its deadline");
    if (waits_for_d && !r.has_ask_ended && now_ns > d_ns + slack_ns_)
      return wrong("a request has not ended at its deadline");
    sleep_ns(kMs);
  }
}

Status FaultRig::end(Fault fault, Phase phase) {
  Request& r = request_;
  Cell& cell = cells_[{fault, phase}];
  ++cell.injections;
  ++(!r.is_asked ? cell.gone : r.was_done ? cell.done : cell.failed);
  if (r.was_done && r.was_done_before) return wrong("an offer was taken a second time");
  if (fault == Fault::kDecodeRestarts && phase == Phase::kBefore && !r.asks_early && !r.was_done) {
    // The deadline may have passed while it restarted.
    if (now() < r.offered_ns + r.deadline_ns)
      return wrong("a restarted instance did not get its KV");
  }
  if (!d_.lives()) {
    CACHALOT_TRY(use_pages_again(r));  // the killed process has left something there
    CACHALOT_TRY(start_decode());
  }
  return {};
}

Status FaultRig::wait_for_empty() {
  const std::uint64_t end_ns = now() + slack_ns_ + kShortNs;
  for (;;) {
    const Command look;
    CACHALOT_TRY_ASSIGN(const Reply p, p_.call(look));
    CACHALOT_TRY_ASSIGN(const Reply d, d_.call(look));
    if (p.held() == 0 && d.held() == 0) return {};
    if (now() > end_ns) {
      const auto n = [](std::uint64_t v) { return static_cast<unsigned long long>(v); };
      return Error::make(Code::kInternal,
                         "left: prefill %llu offers, %llu takers, %llu pushes (engine: %llu), %llu "
                         "early asks; decode %llu requests, %llu windows (engine: %llu)",
                         n(p.offers), n(p.takers), n(p.pushes), n(p.engine_pushes), n(p.early),
                         n(d.asks), n(d.windows), n(d.engine_windows));
    }
    sleep_ns(kMs);
  }
}

// Both work together again. What is still on its way of the connection before arrives meanwhile.
Status FaultRig::use_again() {
  for (std::uint32_t attempt = 0;; ++attempt) {
    Request r = any_request(kLongNs);
    fill_source(r);
    CACHALOT_TRY(offer(r));
    CACHALOT_TRY(ask(r, false));
    const std::uint64_t end_ns = now() + r.deadline_ns + slack_ns_;
    while (!r.has_ask_ended || !r.has_offer_ended) {
      const bool was_running = !r.has_ask_ended;
      CACHALOT_TRY(look_at_decode(r));
      if (was_running && r.has_ask_ended && !r.was_done)
        CACHALOT_TRY(p_.call(command(r, Command::kWithdraw)));
      CACHALOT_TRY(look_at_prefill(r));
      if (now() > end_ns) return wrong("a request after the fault has not ended");
      sleep_ns(kMs);
    }
    if (r.was_done) return {};
    // The old connection may end only now.
    ++totals_.retries;
    if (attempt == kTries) return wrong("no request succeeds after the fault");
  }
}

Status FaultRig::check_memory() const {
  for (std::uint32_t page = 0; page < kPages; ++page) {
    if (const auto found = seeds_.find(page); found != seeds_.end()) {
      if (!has_page(d_.memory(), page, 0, kPageBytes, found->second, page))
        return Error::make(Code::kInternal, "page %u was written after its request had ended",
                           page);
      continue;
    }
    if (!has_page(d_.memory(), page, 0, kPageBytes, memory_seed_, page))
      return Error::make(Code::kInternal, "page %u was written and is of no request", page);
  }
  return {};
}

}  // namespace cachalot::transfer
