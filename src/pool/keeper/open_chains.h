// Chains whose writers said that more of them follows: what eviction spares while there is anything else.
//
// A chain longer than one commit is published from its beginning on. In a small pool others may store so
// much between two of its commits that its beginning is the least recently used of all, and goes; what
// follows then has no parent. So its tail counts as used for as long as the chain goes on.
//
// It is a preference and no promise: a writer that never goes on must not hold a full pool for ever, so
// a refusal for lack of space ends the protection of one chain (give_way).
//
// @threads one at a time; a handful of chains, so plain lists will do
#pragma once

#include <cstdint>
#include <vector>

namespace cachalot::pool {

class OpenChains {
 public:
  // The threads of one client that store at the same time, in most engines.
  static constexpr std::uint32_t kMostOfAClient = 8;

  // The chain of this client ends in block `tail` now, and goes on. Of too many, the one that was
  // silent for longest is forgotten.
  void open(std::uint32_t client, std::uint32_t tail);
  // This client goes on from `tail`, or has ended there.
  void close(std::uint32_t client, std::uint32_t tail);
  // A client has gone; a block is published no more.
  void forget_client(std::uint32_t client);
  void forget_block(std::uint32_t block);
  // This client was refused for want of space: its own chain that was silent for longest has ended, or
  // else any client's.
  void give_way(std::uint32_t client);

  bool has_tail(std::uint32_t block) const;
  std::size_t size() const { return chains_.size(); }

 private:
  struct Chain {
    std::uint32_t client;
    std::uint32_t tail;
  };
  std::vector<Chain> chains_;  // the one that was silent for longest first
};

}  // namespace cachalot::pool
