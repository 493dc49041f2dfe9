// One side of the fault matrix: a process in a network namespace of its own with a TransferRank, and what the process
// that injects the faults tells it to do.
//
// 1. The KV cache is memory that both processes map: it can be compared also after the peer was killed.
// 2. A command is answered at once, so a peer that does not answer hangs.
#pragma once

#include <cachalot/transfer.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "os/child.h"
#include "testing/transfer/netns_link.h"

namespace cachalot::transfer {

inline constexpr std::uint32_t kLayers = 8, kPages = 32, kPageTokens = 16;
inline constexpr std::uint64_t kTokenBytes = 4 * 64 * 2;  // of a part of a layer
inline constexpr std::uint64_t kPageBytes = kPageTokens * kTokenBytes;
inline constexpr std::uint64_t kTensorBytes = kParts * kPages * kPageBytes;
inline constexpr std::uint64_t kCacheBytes = kLayers * kTensorBytes;
inline constexpr std::uint32_t kMostPages = 16;  // of a request

// Where a part of a page is in the cache.
inline std::uint64_t offset_of(std::uint32_t layer, std::uint32_t part, std::uint32_t page) {
  return layer * kTensorBytes + (std::uint64_t{part} * kPages + page) * kPageBytes;
}

struct Command {
  enum Op : std::uint32_t { kOffer, kReady, kWithdraw, kAsk, kLook, kRelease } op = kLook;
  OfferId id = {};
  std::array<std::uint32_t, kMostPages> pages = {};
  std::uint32_t page_count = 0, layers = 0;
  std::uint64_t tokens = 0, deadline_ns = 0, ask = 0;
  bool waits_for_offer = false;
};

struct Ended {
  OfferId id = {};
  bool is_ok = false;
};

struct Reply {
  Error error = {};    // of the command, or of the ask
  bool is_ok = false;  // the command
  std::uint64_t ask = 0;
  // kLook
  bool has_ask = false;
  HandoverState state = HandoverState::kRunning;
  std::uint32_t layers = 0;
  std::uint64_t bytes = 0;
  std::uint32_t ended_count = 0;
  std::array<Ended, 16> ended = {};
  // Everything that a request could leave behind.
  std::uint64_t offers = 0, asks = 0, takers = 0, pushes = 0, early = 0, windows = 0;
  std::uint64_t engine_pushes = 0,
                engine_windows = 0;  // the engine's: memory that a peer may read or write
  std::uint64_t damaged = 0, corrupt = 0, received = 0;  // since the start of the process

  std::uint64_t held() const {
    return offers + asks + takers + pushes + early + windows + engine_pushes + engine_windows;
  }
};

struct PeerOptions {
  char side = 'a';
  std::vector<std::string> listen = {};
  std::vector<std::vector<std::string>> prefill = {};  // addresses of the prefill rank
  std::uint64_t peer_timeout_ns = 0;
  std::uint64_t seed = 0;
  double damage = 0;  // the probability with which a received payload is changed
};

class FaultPeer {
 public:
  // @errors kIo: no memory
  static Result<FaultPeer> make();
  FaultPeer(FaultPeer&& other) noexcept;
  FaultPeer(const FaultPeer&) = delete;
  ~FaultPeer();

  // @errors kIo: the rank did not open
  Status start(const NetnsLink& link, const PeerOptions& options);
  void kill();
  void stop();
  void resume();
  bool answers() const { return child_ && !is_stopped_; }
  bool lives() const { return child_.has_value(); }

  // @errors kTimeout: no answer; kIo: it has ended
  Result<Reply> call(const Command& command);
  // For a peer that is stopped: the answer comes after resume().
  Status post(const Command& command);
  Result<Reply> answer();

  std::byte* memory() const { return memory_; }

 private:
  explicit FaultPeer(std::byte* memory) : memory_(memory) {}

  std::byte* memory_;
  std::optional<os::Child> child_;
  os::FileDescriptor socket_;
  bool is_stopped_ = false;
};

}  // namespace cachalot::transfer
