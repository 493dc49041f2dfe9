// Blocks of prompts on their way between processes that share no pool. Needs no llama.h.
//
//   prefill   std::optional<PromptReference> reference = handover->offer(hashes, fill);   // a proxy carries it
//   decode    std::optional<Handover::Arrival> arrival = handover->ask(*reference, hashes, first);
//             while (arrival->state() == Handover::Arrival::kComing) nap();
//             if (arrival->state() == Handover::Arrival::kHere) import(arrival->block(first)), …
//
// llama.cpp writes and reads a block in one piece, so blocks pass a buffer of this process on both sides: the *staging*
// memory, in pages of one block.
//
// Invariants
//   1. A page is free, or belongs to one offer or one arrival. It is free again when that has ended: taken, expired,
//      failed, destroyed.
//   2. Blocks are asked for only if the reference is of this prompt, of the same model, and of a process whose blocks
//      are the same to the bit (BlockIdentity).
//   3. Whatever fails is logged, and costs a computation.
//
// @threads any
#pragma once

#include <cachalot/hash.h>
#include <cachalot/result.h>
#include <cachalot/transfer.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "prompt_reference.h"

namespace cachalot::llama {

struct HandoverOptions {
  std::vector<std::string> listen;             // as TransferOptions::listen
  std::uint64_t deadline_ns = 30'000'000'000;  // that an offer stands, and that a transfer may take
  std::uint64_t peer_timeout_ns = 5'000'000'000;
  bool checksums = false;
  std::uint64_t staging_bytes = 0;
  std::function<void(const char* message)> on_warning;
};

class Handover {
 public:
  // @errors kInvalidArgument: less staging memory than a block, an address; kNoSpace: no memory; kBusy: another process
  //         has the address
  static Result<std::shared_ptr<Handover>> open(const HandoverOptions& options,
                                                const BlockIdentity& identity,
                                                std::uint64_t block_bytes);
  Handover(const Handover&) = delete;
  Handover& operator=(const Handover&) = delete;

  const std::vector<std::string>& addresses() const { return rank_.addresses(); }

  // Writes one block of a prompt.
  using Fill = std::function<Status(std::size_t block, std::span<std::byte> room)>;
  // Lends copies of a prompt's first blocks to the process that names them.
  // @param hashes  of these blocks
  // @return nothing: no block, no memory, or `fill` failed
  std::optional<PromptReference> offer(std::span<const BlockHash> hashes, const Fill& fill);

  // Blocks on their way to this process. It must not outlive the Handover.
  class Arrival {
   public:
    Arrival(Arrival&& from) noexcept;
    Arrival& operator=(Arrival&&) = delete;
    // Cancels what has not arrived.
    ~Arrival();

    enum State { kComing, kHere, kFailed };
    State state();
    // Blocks [first, end) of the prompt.
    std::size_t first() const { return first_; }
    std::size_t end() const { return first_ + pages_.size(); }
    // @param number  within [first, end), in state kHere
    std::span<const std::byte> block(std::size_t number) const;

   private:
    friend class Handover;
    Arrival(Handover* handover, AskId ask, std::size_t first, std::vector<PageId> pages)
        : handover_(handover), ask_(ask), first_(first), pages_(std::move(pages)) {}
    Handover* handover_;  // null: moved from
    AskId ask_;
    std::size_t first_;
    std::vector<PageId> pages_;
    State state_ = kComing;
  };
  // Asks for the blocks of a reference, from block `first` on; for one at least, so that the offer ends.
  // @param hashes  of all blocks of the prompt that may come from elsewhere
  // @return nothing: the reference is of something else; no memory
  std::optional<Arrival> ask(const PromptReference& reference, std::span<const BlockHash> hashes,
                             std::size_t first);

  void log(const char* what, const Error& error) const;

  struct Counts {
    std::uint64_t pages = 0, free_pages = 0, page_bytes = 0;
    TransferStatistics of_rank;
  };
  Counts counts();

 private:
  struct FreeMemory {
    void operator()(std::byte* memory) const;
  };
  using Memory = std::unique_ptr<std::byte[], FreeMemory>;
  Handover(const HandoverOptions& options, const BlockIdentity& identity, std::uint64_t block_bytes,
           std::uint64_t page_bytes, Memory memory, std::string instance, TransferRank rank,
           std::uint32_t pages);

  Result<PromptReference> lend(std::span<const BlockHash> hashes, std::span<const PageId> pages,
                               const Fill& fill);
  Status check(const PromptReference& reference, std::span<const BlockHash> hashes) const;
  Result<std::vector<PageId>> take_pages(std::size_t count);
  void give_back(std::span<const PageId> pages);
  void reap_offers();
  std::span<std::byte> page(PageId number) const {
    return {memory_.get() + number * page_bytes_, block_bytes_};
  }

  const HandoverOptions options_;
  const BlockIdentity identity_;
  const std::uint64_t block_bytes_, page_bytes_;
  const Memory memory_;  // outlives rank_
  const std::string instance_;
  TransferRank rank_;
  const std::uint32_t pages_;

  std::mutex mutex_;  // all below
  std::vector<PageId> free_pages_;
  std::map<OfferId, std::vector<PageId>> offered_;
};

}  // namespace cachalot::llama
