// Where earlier requests were placed, so that a program that repeats itself finds everything where
// it was an iteration ago, and the stitched blocks of one iteration fit the next.
//
// The requests form one long sequence. A cursor stands in it where the program seems to be again: while
// the sizes that come are those behind the cursor, it moves along; when another size comes, it goes
// to the latest place where the last kContext sizes were the same. Inside equal layers that may be
// another layer than the right one, until a size differs; from then on it is right.
//
// 1. A place is a hint only: the caller checks that it still exists and is free.
// 2. Memory is bounded: the last kRequests requests are known.
//
// @threads one at a time
// @cost    a hash and two cache lines a request
// @source  the idea that placements can be learned from an iteration: STAlloc (arXiv 2507.16274),
//          which plans them offline
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "device_memory/types.h"
#include "gpu/stream_events.h"

namespace cachalot::stitch {

struct Place {
  void* where = nullptr;     // a Segment or a StitchedBlock
  std::uint64_t id = 0;      // of it, by which one sees that it is another by now
  std::uint64_t offset = 0;  // in it
  bool is_stitched = false;
};

class PlacementHistory {
 public:
  // The place that the request had when the program was here last. Null: unknown.
  const Place* expect(std::uint64_t bytes, gpu::StreamId stream);
  // Where the request that expect() was asked for was placed. One that was refused is not recorded, and no part of
  // the sequence.
  void record(const Place& place);

 private:
  static constexpr std::uint64_t kRequests = std::uint64_t{1} << 17;
  static constexpr std::uint64_t kContexts = kRequests * 2;
  static constexpr int kContext = 8;  // sizes
  static constexpr std::uint64_t kNowhere = ~std::uint64_t{0};

  struct Request {
    std::uint64_t code = 0;
    Place place;
  };
  struct Context {
    std::uint64_t hash = 0;
    std::uint64_t request_and_one = 0;  // 0: none
  };

  bool is_known(std::uint64_t request) const {
    return request < next_ && next_ - request <= kRequests;
  }
  Request& at(std::uint64_t request) { return requests_[request % kRequests]; }
  Context& context(std::uint64_t hash) { return contexts_[hash % kContexts]; }
  std::uint64_t hash_with(std::uint64_t code);

  std::vector<Request> requests_;  // a ring, filled as far as there are any
  // Zeros that cost nothing until they are touched.
  std::unique_ptr<Context[], decltype(&std::free)> contexts_{nullptr, &std::free};
  std::uint64_t next_ = 0;                       // the number of the next request
  std::uint64_t cursor_ = kNowhere;              // the request that is expected
  std::uint64_t hash_ = 0;                       // up to the last request
  std::uint64_t code_ = 0, hash_with_code_ = 0;  // of the request in hand
};

}  // namespace cachalot::stitch
