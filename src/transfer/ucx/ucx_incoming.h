// What a link receives. Bytes of a slice are copied from UCX's buffers to where they belong.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "transfer/link/frame_reader.h"
#include "transfer/ucx/ucx_wire.h"

namespace cachalot::transfer {

// A message as UCX hands it over.
struct UcxArrival {
  UcxMessage message;
  std::span<const std::byte> header;
  std::span<const std::byte> data;
};

class UcxIncoming {
 public:
  UcxIncoming(Link& link, LinkEvents& events);
  ~UcxIncoming();

  // Called by UCX.
  // @errors kBadInput, kCorrupt, kVersionMismatch
  Status take(const UcxArrival& arrival);

  // What comes from now on is dropped.
  void stop();
  // Ends all payloads.
  void end();

 private:
  struct Payload;

  Status take_segment(const UcxArrival& arrival);
  Status take_slice(const UcxArrival& arrival);
  Status take_void(const UcxArrival& arrival);
  Status check_sequence(std::uint32_t magic, std::uint64_t sequence);
  Status begin_payload(std::uint64_t number, std::span<const std::byte> frame);
  static void copy(Payload& payload, std::span<const std::byte> data, std::uint64_t offset);
  void try_end(const std::shared_ptr<Payload>& payload);

  Link& link_;
  LinkEvents& events_;
  FrameReader reader_;
  std::map<std::uint64_t, std::shared_ptr<Payload>> payloads_;
  std::uint64_t sequence_ = 0, last_payload_ = 0;
  bool is_stopped_ = false;
};

}  // namespace cachalot::transfer
