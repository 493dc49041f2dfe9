#include "signal_limits.h"

#include <algorithm>
#include <cstdio>

namespace cachalot::apps::bench {
namespace {

using memory::Domain;
using memory::DomainKind;
using memory::kLineBytes;
using memory::Line;

constexpr std::uint64_t kMemoryBytes = std::uint64_t{2} << 20;
// Lines of different writers are a page apart.
constexpr std::uint64_t kPing = 0, kPong = 4096, kCount = 8192;
constexpr std::uint64_t kRequests = 65536, kAnswers = 131072;
constexpr std::uint32_t kRingLines = 256, kWindow = 64, kOutstanding = 128;
constexpr std::uint64_t kPatienceNs = 20'000'000'000;

enum Job : std::uint32_t { kEcho, kServeRing };
constexpr std::uint32_t kCoherentBit = 16;  // of Command.option

// Counts polls that found nothing; true once that has gone on for too long.
class Patience {
 public:
  bool is_over() {
    if (++rounds_ % 1'048'576 != 0) return false;
    if (since_ns_ == 0) since_ns_ = now_ns();
    return now_ns() - since_ns_ > kPatienceNs;
  }

 private:
  std::uint64_t rounds_ = 0, since_ns_ = 0;
};

bool wait_for_line(Domain& domain, const std::byte* at, std::uint64_t number) {
  Patience patience;
  while (domain.read_line(at).words[0] != number) {
    if (patience.is_over()) return false;
  }
  return true;
}

void echo(Domain& domain, std::byte* base, std::uint64_t first, std::uint64_t count) {
  Line line{};
  for (std::uint64_t n = first; n < first + count; ++n) {
    if (!wait_for_line(domain, base + kPing, n)) return;
    line.words[0] = n;
    domain.write_line(base + kPong, line);
  }
  domain.complete();
}

// One direction of a ring: reads up to 64 lines per fence and counts those that are next.
class Reader {
 public:
  Reader(Domain& domain, const std::byte* ring, std::uint64_t first)
      : domain_(&domain), ring_(ring), next_(first) {}

  // By plain loads, up to the first line that is not there; does not look before a whole window is
  // there, or for a while in vain, so that lines change hands in bulk.
  std::uint32_t poll_plainly() {
    constexpr std::uint32_t kLooks = 64;
    if (!is_there(next_ + kWindow - 1) && ++looks_ % kLooks != 0) return 0;
    std::uint32_t good = 0;
    while (good < kWindow && is_there(next_)) {
      ++next_;
      ++good;
    }
    return good;
  }

  std::uint32_t poll(std::uint32_t window) {
    const void* addresses[kWindow] = {};
    Line lines[kWindow];
    for (std::uint32_t i = 0; i < window; ++i) {
      addresses[i] = ring_ + (next_ + i) % kRingLines * kLineBytes;
    }
    domain_->gather_lines(addresses, window, lines);
    std::uint32_t good = 0;
    while (good < window && lines[good].words[0] == next_ + good) ++good;
    next_ += good;
    return good;
  }
  std::uint64_t next() const { return next_; }

 private:
  bool is_there(std::uint64_t number) const {
    const std::byte* const line = ring_ + number % kRingLines * kLineBytes;
    std::uint64_t found = 0;
    __atomic_load(reinterpret_cast<const std::uint64_t*>(line), &found, __ATOMIC_ACQUIRE);
    return found == number;
  }

  Domain* domain_;
  const std::byte* ring_;
  std::uint64_t next_;
  std::uint32_t looks_ = 0;
};

void write_to_ring(Domain& domain, std::byte* ring, std::uint64_t number) {
  Line line{};
  line.words[0] = number;
  domain.write_line(ring + number % kRingLines * kLineBytes, line);
}

void serve_ring(Domain& domain, std::byte* base, SignalLimits::Ring ring, std::uint64_t first,
                std::uint64_t count) {
  Reader requests(domain, base + kRequests, first);
  Patience patience;
  while (requests.next() < first + count) {
    const std::uint64_t from = requests.next();
    const std::uint32_t good =
        ring == SignalLimits::Ring::kPlain ? requests.poll_plainly() : requests.poll(kWindow);
    if (good == 0) {
      if (patience.is_over()) return;
      continue;
    }
    if (ring == SignalLimits::Ring::kAnswerEach) {
      for (std::uint32_t i = 0; i < good; ++i) write_to_ring(domain, base + kAnswers, from + i);
    } else {
      Line line{};
      line.words[0] = requests.next();
      domain.write_line(base + kCount, line);
    }
  }
  domain.complete();
}

Result<Peer::Serve> prepare_peer(const std::vector<std::string>& paths) {
  CACHALOT_TRY_ASSIGN(memory::DeviceSet opened, memory::DeviceSet::open(paths));
  auto memory = std::make_shared<memory::DeviceSet>(std::move(opened));
  std::shared_ptr<Domain> coherent = make_domain(DomainKind::kCoherent);
  std::shared_ptr<Domain> noncoherent = make_domain(DomainKind::kNoncoherent);
  return Peer::Serve([=](const Command& command) -> std::uint64_t {
    Domain& domain = (command.option & kCoherentBit) != 0 ? *coherent : *noncoherent;
    if (command.job == kEcho) {
      echo(domain, memory->base(0), command.first, command.count);
    } else {
      const auto ring = static_cast<SignalLimits::Ring>(command.option & ~kCoherentBit);
      serve_ring(domain, memory->base(0), ring, command.first, command.count);
    }
    return 0;
  });
}

Error silence() {
  return Error::make(Code::kTimeout, "bench: the second process has not answered for 20 s");
}

std::uint32_t option_of(DomainKind kind) {
  return kind == DomainKind::kCoherent ? kCoherentBit : 0;
}

}  // namespace

Result<SignalLimits> SignalLimits::start(const Cores& cores) {
  CACHALOT_TRY_ASSIGN(memory::DeviceSet memory,
                      memory::DeviceSet::create({"memfd:bench"}, kMemoryBytes));
  const std::vector<std::string> paths = {memory.file(0).path()};
  CACHALOT_TRY_ASSIGN(Peer peer, Peer::start(cores.other, [&] { return prepare_peer(paths); }));
  return SignalLimits(std::move(memory), std::move(peer));
}

Status SignalLimits::ping_pong(DomainKind kind, std::uint32_t round_trips,
                               std::vector<double>& samples_ns) {
  constexpr std::uint32_t kMean = 16;
  const std::unique_ptr<Domain> domain = make_domain(kind);
  std::byte* const base = memory_.base(0);
  round_trips = round_trips / kMean * kMean;
  CACHALOT_TRY(peer_.begin({kEcho, option_of(kind), round_trips, next_}));
  Line line{};
  for (std::uint32_t done = 0; done < round_trips; done += kMean) {
    const std::uint64_t start = now_ns();
    for (std::uint32_t i = 0; i < kMean; ++i) {
      line.words[0] = next_;
      domain->write_line(base + kPing, line);
      if (!wait_for_line(*domain, base + kPong, next_++)) return silence();
    }
    samples_ns.push_back(static_cast<double>(now_ns() - start) / kMean);
  }
  CACHALOT_TRY(peer_.end());
  return {};
}

Status SignalLimits::ring_rate(DomainKind kind, Ring ring, std::uint64_t requests,
                               RateMeter& rate) {
  const std::unique_ptr<Domain> domain = make_domain(kind);
  std::byte* const base = memory_.base(0);
  const std::uint64_t first = next_;
  next_ += requests;
  CACHALOT_TRY(peer_.begin(
      {kServeRing, option_of(kind) | static_cast<std::uint32_t>(ring), requests, first}));
  Reader each(*domain, base + kAnswers, first);
  Patience patience;
  std::uint64_t posted = first, answered = first;
  rate.start();
  while (answered < next_) {
    const std::uint64_t before = answered;
    while (posted < next_ && posted - answered < kOutstanding) {
      write_to_ring(*domain, base + kRequests, posted++);
    }
    if (ring == Ring::kAnswerEach) {
      each.poll(static_cast<std::uint32_t>(std::min<std::uint64_t>(posted - answered, kWindow)));
      answered = each.next();
    } else {
      // A number of an earlier round is below this one's.
      answered = std::max(answered, domain->read_line(base + kCount).words[0]);
    }
    rate.count(answered - before);
    if (patience.is_over()) return silence();
  }
  CACHALOT_TRY(peer_.end());
  return {};
}

Status note_ping_pong(SignalLimits& limits, Report& report) {
  double p50_ns[2];
  for (const DomainKind kind : {DomainKind::kCoherent, DomainKind::kNoncoherent}) {
    std::vector<double> samples;
    CACHALOT_TRY(limits.ping_pong(kind, 20'000, samples));
    p50_ns[kind == DomainKind::kNoncoherent] = median_of(samples);
  }
  char text[160];
  std::snprintf(text, sizeof text,
                "plain ping-pong between the two cores: %.0f ns coherent, %.0f ns noncoherent",
                p50_ns[0], p50_ns[1]);
  report.note(text);
  return {};
}

}  // namespace cachalot::apps::bench
