// Converts the tokens that the KV heads of each layer have chosen.
#pragma once

#include <cachalot/geometry.h>
#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>
#include <vector>

namespace cachalot::python {

namespace nb = nanobind;

// A copy: other threads may run during the call.
class HeadTokens {
 public:
  // @param object  an array of integers [layers, heads, k], or a sequence for each layer of a sequence for each head
  //                of sequences of numbers
  // Raises InvalidArgumentError: not the geometry's heads, a negative or larger number, an array of other
  // dimensions; TypeError: no sequence.
  HeadTokens(nb::handle object, const KvGeometry& geometry);
  // As Client::load_head_tokens takes them.
  const std::vector<std::span<const std::uint32_t>>& lists() const { return lists_; }

 private:
  void take_array(nb::handle object, const KvGeometry& geometry);
  void take_sequence(nb::handle object, const KvGeometry& geometry);

  std::vector<std::uint32_t> numbers_;            // of an array
  std::vector<std::vector<std::uint32_t>> each_;  // of sequences
  std::vector<std::span<const std::uint32_t>> lists_;
};

}  // namespace cachalot::python
