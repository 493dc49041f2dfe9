#include "node/peers/server.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>

#include "base/clock.h"
#include "node/archive/pool_payloads.h"
#include "pool/format/notes.h"
#include "pool/reader/published_blocks.h"
#include "pool/reader/validated_read.h"

namespace cachalot::node {
namespace {

using transfer::PeerId;
using transfer::PushId;

constexpr std::uint64_t kMostDeadlineNs = 10'000'000'000;
constexpr std::uint64_t kNsPerS = 1'000'000'000;

std::uint64_t raw(PushId push) {
  return static_cast<std::uint64_t>(push);
}
std::uint64_t bytes_of(const GetMessage& wanted) {
  std::uint64_t bytes = 0;
  for (const WantedBlock& block : wanted.blocks) bytes += block.length;
  return bytes;
}

}  // namespace

PeerServer::PeerServer(const pool::Access& access, PeerLinks& links,
                       const PeerServerOptions& options)
    : access_(access), links_(links), options_(options), thread_([this] { run(); }) {}

PeerServer::~PeerServer() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void PeerServer::take(PeerId from, GetMessage message) {
  const std::uint64_t deadline_ns =
      base::SteadyClock::read() + std::min(message.deadline_ns, kMostDeadlineNs);
  const Request request{from, std::move(message), deadline_ns};
  {
    const std::lock_guard lock(mutex_);
    ++counts_.requests;
    const auto waiting = static_cast<std::size_t>(std::count_if(
        queue_.begin(), queue_.end(), [&](const Request& other) { return other.from == from; }));
    if (waiting < options_.most_requests) {
      queue_.push_back(request);
      wake_.notify_all();
      return;
    }
  }
  refuse(request, Error::make(Code::kBusy, "peer: %zu requests of one peer wait already",
                              options_.most_requests));
}

void PeerServer::refuse(const Request& request, const Error& why) {
  {
    const std::lock_guard lock(mutex_);
    ++counts_.refused_requests;
  }
  links_.send(request.from, RefusedGetMessage{request.message.request, why});
}

void PeerServer::forget(PeerId peer) {
  const std::lock_guard lock(mutex_);
  std::erase_if(queue_, [&](const Request& request) { return request.from == peer; });
}

void PeerServer::push_ended(PushId push) {
  links_.release(push);  // nothing reads the copy any more
  const std::lock_guard lock(mutex_);
  const auto at = flying_.find(raw(push));
  if (at == flying_.end()) {
    if (is_pushing_) ended_[raw(push)] = true;
    return;
  }
  flying_bytes_ -= at->second.bytes;
  if ((flying_to_[at->second.to] -= at->second.bytes) == 0) flying_to_.erase(at->second.to);
  flying_.erase(at);
  wake_.notify_all();
}

PeerServerCounts PeerServer::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

// Requests whose deadline is over, out of the queue.
std::vector<PeerServer::Request> PeerServer::take_late(std::uint64_t now_ns) {
  std::vector<Request> late;
  for (auto at = queue_.begin(); at != queue_.end();) {
    if (now_ns < at->deadline_ns) {
      ++at;
      continue;
    }
    late.push_back(std::move(*at));
    at = queue_.erase(at);
  }
  return late;
}

// The first request that the limits admit. One that is larger than a limit is admitted when nothing else is on its way.
std::deque<PeerServer::Request>::iterator PeerServer::next(std::uint64_t now_ns) {
  if (now_ns < next_ns_) return queue_.end();
  return std::find_if(queue_.begin(), queue_.end(), [&](const Request& request) {
    const std::uint64_t bytes = bytes_of(request.message);
    const auto own = flying_to_.find(request.from);
    const bool has_share =
        own == flying_to_.end() || own->second + bytes <= options_.most_flying_bytes / 4;
    return has_share && (flying_bytes_ == 0 || flying_bytes_ + bytes <= options_.most_flying_bytes);
  });
}

// Until a request is late, or the limit of bytes a second admits one; a push that ends wakes earlier.
std::uint64_t PeerServer::wait_ns(std::uint64_t now_ns) const {
  std::uint64_t until_ns = now_ns + kNsPerS;
  for (const Request& request : queue_) until_ns = std::min(until_ns, request.deadline_ns);
  if (now_ns < next_ns_) until_ns = std::min(until_ns, next_ns_);
  return until_ns - std::min(until_ns, now_ns);
}

void PeerServer::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const std::uint64_t now_ns = base::SteadyClock::read();
    const std::vector<Request> late = take_late(now_ns);
    std::optional<Request> request;
    if (const auto at = next(now_ns); at != queue_.end()) {
      request = std::move(*at);
      queue_.erase(at);
    }
    if (late.empty() && !request) {
      wake_.wait_for(lock, std::chrono::nanoseconds(wait_ns(now_ns)));
      continue;
    }
    lock.unlock();
    for (const Request& one : late)
      refuse(one, Error::make(Code::kBusy, "peer: sends as much as it may"));
    if (request) serve(*request);
    lock.lock();
  }
}

std::uint32_t PeerServer::namespace_of(const BlockHash& space) {
  const auto find = [&] {
    const auto at = std::find(spaces_.begin(), spaces_.end(), space);
    return at == spaces_.end() ? 0u : static_cast<std::uint32_t>(at - spaces_.begin()) + 1;
  };
  if (const std::uint32_t known = find(); known != 0) return known;
  spaces_ = pool::read_namespaces(access_);
  return space == BlockHash{} ? 0 : find();
}

// Copies the leading blocks that are there, and as long as they should be.
GotMessage PeerServer::read(const GetMessage& wanted, std::uint32_t namespace_id, std::byte* to) {
  GotMessage got{wanted.request, {}};
  std::vector<BlockHash> hashes;
  for (const WantedBlock& block : wanted.blocks) hashes.push_back(block.hash);
  std::vector<pool::Found> found(hashes.size());
  pool::ValidatedRead read =
      pool::ValidatedRead::look_up(access_, hashes, namespace_id, found, true);
  std::size_t right = 0;
  while (right < read.found().size() &&
         read.found()[right].entry.length == wanted.blocks[right].length)
    ++right;
  read.shorten(right);
  PoolPayloads payloads(access_);
  payloads.read(read);
  for (std::size_t i = 0; i < read.found().size(); ++i) {
    GotBlock block;
    const std::byte* const begin = to;
    for (const storage::Bytes& piece : payloads.payload(i)) {
      std::memcpy(to, piece.data(), piece.size());
      to += piece.size();
    }
    const pool::Entry& entry = read.found()[i].entry;
    (void)pool::read_note(access_, {entry.block, entry.generation}, hashes[i], block.tokens);
    block.head.key = {wanted.space, hashes[i]};
    block.head.parent = wanted.blocks[i].parent;
    block.head.payload_bytes = entry.length;
    block.head.tokens = static_cast<std::uint32_t>(block.tokens.size());
    const storage::Bytes body[] = {{begin, entry.length}, std::as_bytes(std::span(block.tokens))};
    block.head.seal = storage::seal_of(block.head, std::span(body, block.tokens.empty() ? 1 : 2));
    got.blocks.push_back(std::move(block));
  }
  got.blocks.resize(std::min(got.blocks.size(), read.validate().valid));
  return got;
}

void PeerServer::serve(const Request& request) {
  const GetMessage& wanted = request.message;
  const std::uint64_t bytes = bytes_of(wanted);
  const bool is_right =
      !wanted.blocks.empty() &&
      std::all_of(wanted.blocks.begin(), wanted.blocks.end(), [&](const WantedBlock& block) {
        return block.length != 0 && block.length <= access_.geometry.block_bytes;
      });
  if (is_right && wanted.blocks.size() > 1 && bytes > options_.most_flying_bytes) {
    return refuse(request,
                  Error::make(Code::kInvalidArgument,
                              "peer: blocks of %llu bytes in all, expected at most %llu",
                              static_cast<unsigned long long>(bytes),
                              static_cast<unsigned long long>(options_.most_flying_bytes)));
  }
  if (!is_right) {
    return refuse(
        request,
        Error::make(Code::kInvalidArgument, "peer: blocks of other lengths than 1 to %llu bytes",
                    static_cast<unsigned long long>(access_.geometry.block_bytes)));
  }
  const std::uint32_t namespace_id = namespace_of(wanted.space);
  Copy copy(new std::byte[bytes]);
  GotMessage got{wanted.request, {}};
  if (namespace_id != 0) got = read(wanted, namespace_id, copy.get());
  const std::size_t blocks = got.blocks.size();
  {
    const std::lock_guard lock(mutex_);
    counts_.served_blocks += blocks == wanted.blocks.size() ? blocks : 0;
    counts_.served_bytes += blocks == wanted.blocks.size() ? bytes : 0;
    counts_.absent_blocks += wanted.blocks.size() - blocks;
    is_pushing_ = blocks == wanted.blocks.size();
  }
  links_.send(request.from, got);
  if (blocks < wanted.blocks.size()) return;
  const Result<PushId> push = links_.push(
      request.from, wanted.window, transfer::ByteStream(transfer::Strided::flat(copy.get(), bytes)),
      request.deadline_ns);
  const std::lock_guard lock(mutex_);
  is_pushing_ = false;
  // It may have ended before it is known here.
  const bool is_over = push && ended_.erase(raw(*push)) != 0;
  ended_.clear();
  if (push && options_.most_bytes_per_s != 0) {
    next_ns_ =
        std::max(next_ns_, base::SteadyClock::read()) + bytes * kNsPerS / options_.most_bytes_per_s;
  }
  if (!push || is_over) return;
  flying_[raw(*push)] = {std::move(copy), request.from, bytes};
  flying_to_[request.from] += bytes;
  flying_bytes_ += bytes;
}

}  // namespace cachalot::node
