// Takes a byte stream of frames and payloads apart, as a transport hands it over in pieces of any size.
//
// 1. A payload's bytes go into its memory within take(), between enter() and leave(); no pointer to it is kept.
// 2. After an error or stop() no event comes, but the one of end().
#pragma once

#include <cachalot/result.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "transfer/link/link.h"

namespace cachalot::transfer {

class FrameReader {
 public:
  FrameReader(Link& link, LinkEvents& events);
  ~FrameReader();

  // Calls on_frame(), on_payload(), on_payload_end(), until one of them calls stop().
  // @errors kBadInput, kVersionMismatch, kCorrupt: the stream is not one of frames
  Status take(std::span<const std::byte> bytes);
  // What comes from now on is dropped.
  void stop() { is_stopped_ = true; }
  // As stop(), and on_payload_end() of a payload that has begun.
  void end();

 private:
  struct Payload;

  Status take_frame(std::span<const std::byte>& bytes);
  void take_payload(std::span<const std::byte>& bytes);
  Status take_trailer(std::span<const std::byte>& bytes);
  bool fill(std::span<const std::byte>& bytes, std::size_t wanted);

  Link& link_;
  LinkEvents& events_;
  std::vector<std::byte> buffer_;  // of a header, body or trailer
  std::unique_ptr<Payload> payload_;
  bool is_stopped_ = false;
};

}  // namespace cachalot::transfer
