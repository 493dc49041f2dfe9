// For tests: a kernel given as text, and a launch of it on bytes of the test's.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "ptx/block.h"
#include "ptx/program.h"
#include "ptx/violation.h"

namespace cachalot::ptx {

// A kernel with one parameter, the address of `out`. Registers: %p0 to %p9 and, of 16, 32 and 64 bits, %h,
// %r and %d alike. %d9 is the address when it begins.
inline std::string kernel_text(const std::string& body) {
  return ".version 9.0\n.target sm_90\n.address_size 64\n"
         ".visible .entry test(.param .u64 out)\n{\n"
         ".reg .pred %p<10>; .reg .b16 %h<10>; .reg .b32 %r<10>; .reg .b64 %d<10>;\n"
         "ld.param.u64 %d9, [out];\n" +
         body + "\nret;\n}\n";
}

constexpr std::uint64_t kOutAt = std::uint64_t{1} << 40;  // the device's address of `out`

// What a device reaches: `out`, from kOutAt on.
inline Reach reach_of(std::vector<std::byte>& out) {
  return [&out](std::uint64_t at, std::uint64_t bytes) -> std::byte* {
    if (at < kOutAt || at - kOutAt > out.size() || bytes > out.size() - (at - kOutAt))
      return nullptr;
    return out.data() + (at - kOutAt);
  };
}

inline Launched run_text(const std::string& body, std::vector<std::byte>& out,
                         const Shape& shape = {}, std::uint64_t seed = 1,
                         Mood mood = Mood::kRandom) {
  const Program program = assemble(kernel_text(body));
  return launch(program.kernels.at(0), shape, &kOutAt, reach_of(out), seed, mood);
}

// The first value that it stores.
template <class T>
T result_of(const std::string& body, const Shape& shape = {}) {
  std::vector<std::byte> out(256);
  run_text(body, out, shape);
  T value;
  std::memcpy(&value, out.data(), sizeof value);
  return value;
}

// What is wrong with it; empty: nothing.
inline std::string complaint_of(const std::string& body, const Shape& shape = {},
                                std::uint64_t seed = 1, Mood mood = Mood::kRandom) {
  std::vector<std::byte> out(1024);
  try {
    run_text(body, out, shape, seed, mood);
  } catch (const Violation& violation) {
    return violation.what();
  }
  return "";
}

inline void expect_complaint(const std::string& part, const std::string& body,
                             const Shape& shape = {}) {
  const std::string complaint = complaint_of(body, shape);
  EXPECT_NE(complaint.find(part), std::string::npos) << complaint << "\n" << body;
}

// A thread block of so many.
inline Shape threads(std::uint32_t count, std::uint32_t dynamic_shared_bytes = 0) {
  Shape shape;
  shape.block[0] = count;
  shape.dynamic_shared_bytes = dynamic_shared_bytes;
  return shape;
}

}  // namespace cachalot::ptx
