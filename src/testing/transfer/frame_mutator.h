// Changes the frames of a valid conversation at random: for tests against peers that send anything.
#pragma once

#include <cstring>
#include <iterator>

#include "base/crc32c.h"
#include "base/rng.h"
#include "testing/transfer/raw_peer.h"

namespace cachalot::transfer {

class FrameMutator {
 public:
  explicit FrameMutator(std::uint64_t seed) : rng_(seed) {}

  // The bytes that are sent in place of a frame with its payload and trailer.
  Bytes change(const Bytes& frame) {
    Bytes bytes = frame;
    switch (rng_.below(9)) {
      case 0:  // as any network fault: the CRC finds it
        flip(bytes);
        break;
      case 1:
      case 2:
        change_word(bytes);
        break;
      case 3:
        change_word(bytes);
        change_word(bytes);
        break;
      case 4:
        bytes.resize(rng_.below(bytes.size()));
        break;
      case 5:
        bytes.insert(bytes.end(), frame.begin(), frame.end());  // twice
        break;
      case 6:
        change_header(bytes);
        break;
      case 7: {
        Bytes noise(1 + rng_.below(200));
        for (std::byte& b : noise) b = static_cast<std::byte>(rng_.next());
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(rng_.below(bytes.size())),
                     noise.begin(), noise.end());
        break;
      }
      case 8:
        bytes.clear();
        break;
    }
    return bytes;
  }
  base::Rng& rng() { return rng_; }

 private:
  void flip(Bytes& bytes) {
    bytes[rng_.below(bytes.size())] ^= static_cast<std::byte>(1 + rng_.below(255));
  }
  // A word of the body becomes another one, and the CRC follows.
  void change_word(Bytes& bytes) {
    FrameHeader header;
    std::memcpy(&header, bytes.data(), sizeof header);
    if (header.body_bytes == 0) return flip(bytes);
    const std::size_t at = sizeof header + 8 * rng_.below(header.body_bytes / 8);
    std::uint64_t word;
    std::memcpy(&word, bytes.data() + at, 8);
    const std::uint64_t values[] = {0,           1,
                                    word + 1,    word - 1,
                                    word * 2,    std::uint64_t{1} << 32,
                                    ~word,       ~std::uint64_t{0},
                                    rng_.next(), word ^ (std::uint64_t{1} << rng_.below(64))};
    word = values[rng_.below(std::size(values))];
    std::memcpy(bytes.data() + at, &word, 8);
    seal(bytes, header);
  }
  void change_header(Bytes& bytes) {
    FrameHeader header;
    std::memcpy(&header, bytes.data(), sizeof header);
    switch (rng_.below(4)) {
      case 0:
        header.type = static_cast<std::uint16_t>(rng_.below(14));
        break;
      case 1:
        header.body_bytes = static_cast<std::uint32_t>(8 * rng_.below(64));
        break;
      case 2:
        header.payload_bytes = rng_.next() >> rng_.below(64);
        break;
      case 3:
        header.version = static_cast<std::uint16_t>(rng_.below(4));
        break;
    }
    std::memcpy(bytes.data(), &header, sizeof header);
    if (sizeof header + header.body_bytes > bytes.size())
      bytes.resize(sizeof header + header.body_bytes);
    seal(bytes, header);
  }
  static void seal(Bytes& bytes, FrameHeader header) {
    header.crc = 0;
    std::uint32_t crc = base::kCrc32cInit;
    std::memcpy(bytes.data(), &header, sizeof header);
    for (std::size_t i = 0; i < sizeof header + header.body_bytes; i += 8) {
      std::uint64_t word;
      std::memcpy(&word, bytes.data() + i, 8);
      crc = base::crc32c_word(crc, word);
    }
    header.crc = crc;
    std::memcpy(bytes.data(), &header, sizeof header);
  }

  base::Rng rng_;
};

}  // namespace cachalot::transfer
