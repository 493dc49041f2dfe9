// Two processes with a transfer engine each: the child pushes what the parent asks for, and the parent measures.
//
//   parent (receives)                         child (sends)
//     opens windows  ── keys in a message ──►   pushes into each window
//     opens the next one when one is full  ◄──  bytes, by TCP or out of the child's memory
//
// 1. Both processes have the source and the target at the same addresses: the child is forked from the parent.
// 2. Nothing is measured that does not go through windows and pushes of the engine.
#pragma once

#include <cachalot/result.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "measure.h"
#include "os/mapping.h"
#include "os/shared_file.h"
#include "transfer/strided/byte_stream.h"

namespace cachalot::apps::bench {

// What is copied, and where to. The pages of both are there before anything is measured.
class PairMemory {
 public:
  // @errors kNoSpace
  static Result<PairMemory> make(std::uint64_t bytes);

  std::byte* shared_source() const { return mapping_.data(); }
  std::byte* private_source() const { return source_.get(); }
  std::byte* target() const { return target_.get(); }
  std::uint64_t bytes() const { return bytes_; }
  int shared_fd() const { return file_.fd(); }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  PairMemory(os::SharedFile file, os::Mapping mapping, std::uint64_t bytes);

  os::SharedFile file_;
  os::Mapping mapping_;
  std::uint64_t bytes_;
  std::unique_ptr<std::byte, Free> source_, target_;
};

enum class Route {
  kTcp,        // 127.0.0.1
  kEncrypted,  // the same, with a cluster's key
  kShared,     // the receiver copies out of a shared file
  kForeign,    // the receiver copies out of the sender's private memory (process_vm_readv)
};

struct PushLoad {
  std::uint64_t bytes = 1 << 20;  // of one transfer
  // 0: a transfer is one piece on both sides. Otherwise its pieces lie twice as far apart, on both sides.
  std::uint64_t piece_bytes = 0;
  std::uint64_t transfers = 1000;
  std::uint64_t warm_up = 0;       // transfers before these
  std::uint64_t outstanding = 32;  // windows that are open
  // Each transfer uses the memory after that of the last one. Otherwise all use the same bytes, as ucx_perftest does.
  bool walks = false;
};

// A prefill whose layers are computed one after the other.
struct LayerLoad {
  std::uint32_t layers = 32;
  std::uint64_t layer_bytes = 4 << 20;
  std::uint64_t compute_ns = 0;  // of a layer, in CPU time
  bool is_whole = false;         // nothing is pushed before the last layer is computed
};

// A stream that the child can push, and what the child does before.
struct PreparedPush {
  transfer::ByteStream stream;
  std::function<void()> before;
};

class EnginePair {
 public:
  // @param memory    outlives the pair
  // @param prepared  for push_prepared()
  // @param cores     the receiver runs on its own one only, the sender on the other one; null: where the system says
  // @param has_checksums  the sender's pushes are verified
  // @errors kTimeout: the child does not connect; those of TransferEngine
  static Result<std::unique_ptr<EnginePair>> open(Route route, const PairMemory& memory,
                                                  std::vector<PreparedPush> prepared = {},
                                                  const Cores* cores = nullptr,
                                                  bool has_checksums = false);
  ~EnginePair();

  // @return seconds from the first request (after the warm-up) to the arrival of the last byte
  // @errors those of a window
  Result<double> push(const PushLoad& load);
  // Bytes a second.
  Result<double> rate(const PushLoad& load);
  // @return seconds from the request to the arrival of the last byte
  Result<double> push_layers(const LayerLoad& load);
  // @return as push_layers()
  Result<double> push_prepared(std::size_t index, const transfer::ByteStream& target);

 private:
  struct Impl;
  explicit EnginePair(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cachalot::apps::bench
