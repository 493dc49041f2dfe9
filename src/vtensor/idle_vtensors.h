// vTensors of requests that have ended, in the order in which they did. Their chunks stay mapped, so
// that the next request finds its memory ready: vAttention's deferred reclamation.
//
// 1. Reusable is one whose chunks are its own, all of them writable. The others wait to be unmapped.
// 2. A request gets the one with the fewest chunks that has enough for it; else the one with the most.
//    One that has more than the request can ever use is not for it.
//
// @threads one at a time
// @cost    take_best() looks at all reusable ones
#pragma once

#include <cstdint>
#include <list>

#include "vtensor/vtensor.h"

namespace cachalot::vtensor {

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
  bool has_unusable() const { return !unusable_.empty(); }

 private:
  struct Idle {
    VTensor* vtensor = nullptr;
    std::uint64_t chunks = 0;
  };
  using List = std::list<Idle>;
  VTensor* take(List& list, List::iterator place);

  List reusable_, unusable_, empty_;
  std::uint64_t chunks_ = 0;
};

}  // namespace cachalot::vtensor
