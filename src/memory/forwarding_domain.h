// For tests: a coherence domain that hands everything to another one, many pieces line by line. A test says what is
// to be different.
#pragma once

#include <memory>

#include "memory/coherence.h"

namespace cachalot::memory {

class ForwardingDomain : public Domain {
 public:
  ForwardingDomain() : own_(make_coherent_domain()), inner_(*own_) {}
  explicit ForwardingDomain(Domain& inner) : inner_(inner) {}

  DomainKind kind() const override { return inner_.kind(); }
  bool writes_whole_lines() const override { return inner_.writes_whole_lines(); }
  void write_lines(void* to, const Line* lines, std::size_t count) override {
    inner_.write_lines(to, lines, count);
  }
  void read_lines(const void* from, std::size_t count, Line* lines) override {
    inner_.read_lines(from, count, lines);
  }
  void gather_lines(const void* const* from, std::size_t count, Line* lines) override {
    inner_.gather_lines(from, count, lines);
  }
  void write_bulk(void* to, const void* from, std::size_t bytes, FusedHash* hash) override {
    inner_.write_bulk(to, from, bytes, hash);
  }
  void read_bulk(void* to, const void* from, std::size_t bytes, FusedHash* hash) override {
    inner_.read_bulk(to, from, bytes, hash);
  }
  void order() override { inner_.order(); }
  void complete() override { inner_.complete(); }

 private:
  const std::unique_ptr<Domain> own_;
  Domain& inner_;
};

}  // namespace cachalot::memory
