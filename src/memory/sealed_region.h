// A device's memory, seen as lines that carry their own proof (rule R5).
//
// Everything that is published goes out through here sealed, and comes in through here checked; the
// code above never sees a line that did not check.
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory/coherence.h"
#include "memory/line.h"

namespace cachalot::memory {

class SealedRegion {
 public:
  // How often a line that does not check is read before it counts as absent: it may have been
  // caught while it was written.
  static constexpr int kReadAttempts = 4;

  SealedRegion() = default;
  SealedRegion(Domain& domain, std::byte* base, const LineSeal& seal)
      : domain_(&domain), base_(base), seal_(seal) {}

  Domain& domain() const { return *domain_; }
  std::byte* at(std::uint64_t offset) const { return base_ + offset; }

  // The same memory, for lines that belong to one incarnation.
  SealedRegion salted(std::uint64_t salt) const { return {*domain_, base_, seal_.salted(salt)}; }

  // Seals and writes; seen by others in the order of the domain's order() calls.
  void publish(std::uint64_t offset, const Line& value) const {
    Line line = value;
    seal_.seal(line, offset);
    domain_->write_line(at(offset), line);
  }
  template <class T>
  void publish(std::uint64_t offset, const T& value) const {
    publish(offset, to_line(value));
  }

  void seal(Line& line, std::uint64_t offset) const { seal_.seal(line, offset); }

  bool checks(const Line& line, std::uint64_t offset) const {
    return domain_->broken(Rule::kR5CheckLines) || seal_.checks(line, offset);
  }

  // Reads one line; false if it never checked.
  bool read(std::uint64_t offset, Line& line) const {
    for (int attempt = 0; attempt < kReadAttempts; ++attempt) {
      domain_->read_lines(at(offset), 1, &line);
      if (checks(line, offset)) return true;
    }
    return false;
  }
  template <class T>
  bool read_as(std::uint64_t offset, T& value) const {
    Line line;
    if (!read(offset, line)) return false;
    value = as<T>(line);
    return true;
  }

 private:
  Domain* domain_ = nullptr;
  std::byte* base_ = nullptr;
  LineSeal seal_;
};

}  // namespace cachalot::memory
