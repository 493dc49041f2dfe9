// vTensors of requests that have ended, in the order in which they did. Their chunks stay mapped, so
// that the next request finds its memory ready: vAttention's deferred reclamation.
//
// 1. Reusable is one whose chunks are its own, all of them writable. The others wait to be unmapped.
// 2. A request gets the one with the fewest chunks that has enough for it; else the one with the most.
//    One that has more than the request can ever use is not for it.
//
// @threads one at a time
// @cost    each call looks at all of them
#pragma once

#include <cstdint>
#include <list>

#include "vmm/vtensor/vtensor.h"

namespace cachalot::vmm {

class IdleVTensors {
 public:
  void add(VTensor* vtensor);
  // One with chunks, by rule 2; null: none is reusable. @param most_chunks  that the request can use
  VTensor* take_best(std::uint64_t tokens, std::uint64_t most_chunks);
  // One without chunks; null: there is none.
  VTensor* take_empty();
  // One with chunks: those that are not reusable first, then the one that ended first.
  VTensor* take_oldest();

  std::uint64_t chunks() const { return chunks_; }  // as often as they are mapped
  bool has_unusable() const;

 private:
  using List = std::list<VTensor*>;
  static bool is_reusable(const VTensor& vtensor);
  VTensor* take(List::iterator place);

  List with_chunks_, empty_;
  std::uint64_t chunks_ = 0;
};

}  // namespace cachalot::vmm
