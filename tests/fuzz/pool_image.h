// A small pool that two keepers have served, for targets that start from the same bytes each time.
#pragma once

#include <cstring>
#include <vector>

#include "base/log.h"
#include "pool/format/notes.h"
#include "testing/pool/test_pool.h"

namespace cachalot::pool {

inline constexpr std::uint64_t kImageBlocks = 12;  // called 0, 1, …: a chain

class PoolImage {
 public:
  PoolImage() : pool_(image_geometry()) {
    base::set_log_level(base::LogLevel::kOff);
    GTEST_FLAG_SET(throw_on_failure, true);  // what fails in a test's classes ends the fuzzer
    for (std::uint64_t reign = 0; reign < 2; ++reign) {
      pool_.start_keeper();
      const auto client = pool_.attach(static_cast<std::uint32_t>(reign), options());
      const BlockHash parent = hash_of(kImageBlocks / 2 - 1);
      pool_.put(*client, reign * kImageBlocks / 2, kImageBlocks / 2,
                reign == 0 ? nullptr : &parent);
      const Entry entry = pool_.entry_of(hash_of(reign));
      const std::vector<std::uint32_t> tokens = {1, 2, 3};
      write_note(pool_.access(), {entry.block, entry.generation}, hash_of(reign), tokens);
      if (reign == 0) {
        EXPECT_TRUE(client->detach());
      }
      // The second keeper and its client die.
      reign == 0 ? pool_.stop_keeper() : pool_.kill_keeper();
    }
    image_.assign(base(), base() + pool_.access().geometry.device_bytes);
  }

  static ClientOptions options() {
    ClientOptions options;
    options.fingerprint = options.name = "one";
    options.write_checksums = options.verify_checksums = true;
    options.timeout_ns = 1'000'000;  // a thousand readings of the pool's clock
    options.pid = 77;
    return options;
  }
  TestPool& pool() { return pool_; }
  void restore() {
    pool_.stop_keeper();
    std::memcpy(base(), image_.data(), image_.size());
  }

 private:
  static Geometry image_geometry() {
    Geometry g = small_geometry(24, 16);
    g.note_bytes = 64;
    return g;
  }
  std::byte* base() const { return pool_.access().view.bases[0]; }

  TestPool pool_;
  std::vector<std::byte> image_;
};

}  // namespace cachalot::pool
