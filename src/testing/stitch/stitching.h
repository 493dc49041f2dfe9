// A stitching allocator on the model backend, as the tests use it: every call is checked.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "device_memory/model/model_backend.h"
#include "stitch/stitch_allocator.h"
#include "testing/device_memory/fake_events.h"

namespace cachalot::stitch {

struct Stitching {
  explicit Stitching(const StitchOptions& options = {}, std::uint64_t limit_bytes = 0) {
    backend = *device_memory::ModelBackend::open();
    backend->set_limit_bytes(limit_bytes);
    allocator = *StitchAllocator::create(*backend, events, options);
  }
  device_memory::Address allocate(std::uint64_t bytes, gpu::StreamId stream = 0) {
    const Result<device_memory::Address> address = allocator->allocate(bytes, stream);
    EXPECT_TRUE(address) << address.error().message;
    EXPECT_EQ(fault(), "");
    return address ? *address : 0;
  }
  void free(device_memory::Address address) {
    const Status freed = allocator->free(address);
    EXPECT_TRUE(freed) << freed.error().message;
    EXPECT_EQ(fault(), "");
  }
  // Two free primitive blocks that together have so many bytes.
  void make_two(std::uint64_t first_bytes, std::uint64_t second_bytes, gpu::StreamId stream = 0) {
    const device_memory::Address first = allocate(first_bytes, stream),
                                 second = allocate(second_bytes, stream);
    free(first);
    free(second);
  }
  std::string fault() const {
    const Status status = allocator->check();
    return status ? "" : status.error().message;
  }
  std::uint64_t reserved() const { return allocator->stats().reserved_bytes; }
  StitchStates states() const { return allocator->states(); }

  std::unique_ptr<device_memory::ModelBackend> backend;
  device_memory::FakeEvents events;
  std::unique_ptr<StitchAllocator> allocator;
};

}  // namespace cachalot::stitch
