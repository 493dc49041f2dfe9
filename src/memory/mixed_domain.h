// A pool whose devices differ: some are coherent, others are not (CXL 3 beside CXL 2).
//
// Each access goes to the part whose memory it is in. Memory that is not known to be coherent is not: the rules of the
// noncoherent domain are right for every memory.
//
// order() waits until what this thread wrote to incoherent memory is on its device. A store to coherent memory
// may be seen the moment it is done, by another road than the one on which a payload travels to its device: SFENCE
// says nothing of two devices.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "memory/coherence.h"

namespace cachalot::memory {

class MixedDomain final : public Domain {
 public:
  struct Range {
    const std::byte* begin;
    const std::byte* end;
  };

  // @param  coherent_memory  all else is not coherent
  // @param  coherent, noncoherent  how the two kinds of memory are accessed
  MixedDomain(std::vector<Range> coherent_memory, std::unique_ptr<Domain> coherent,
              std::unique_ptr<Domain> noncoherent)
      : Domain(coherent->hints_help()),
        coherent_memory_(std::move(coherent_memory)),
        coherent_(std::move(coherent)),
        noncoherent_(std::move(noncoherent)) {}

  // True if all of these bytes are in coherent memory.
  bool is_coherent(const void* at, std::size_t bytes) const;

  DomainKind kind() const override { return DomainKind::kMixed; }
  bool writes_whole_lines() const override {
    return coherent_->writes_whole_lines() && noncoherent_->writes_whole_lines();
  }

  void write_lines(void* to, const Line* lines, std::size_t count) override;
  void read_lines(const void* from, std::size_t count, Line* lines) override;
  void gather_lines(const void* const* from, std::size_t count, Line* lines) override;
  void write_bulk(void* to, const void* from, std::size_t bytes, FusedHash* hash) override;
  void read_bulk(void* to, const void* from, std::size_t bytes, FusedHash* hash) override;
  void write_runs(const CopyRun* runs, std::size_t count, FusedHash* hash) override;
  void prepare_read(const Extent* extents, std::size_t count) override;
  void read_prepared(const CopyRun* runs, std::size_t count, FusedHash* hash) override;
  void order() override;
  void complete() override;

 private:
  Domain& part_of(const void* at, std::size_t bytes) const {
    return is_coherent(at, bytes) ? *coherent_ : *noncoherent_;
  }
  // Calls f(part, first, count) for each stretch of neighbours that are of one part.
  // @param  is_coherent  (index) -> bool
  template <class IsCoherent, class F>
  void for_each_stretch(std::size_t count, IsCoherent&& is_coherent, F&& f) const;

  const std::vector<Range> coherent_memory_;
  const std::unique_ptr<Domain> coherent_;
  const std::unique_ptr<Domain> noncoherent_;
};

}  // namespace cachalot::memory
