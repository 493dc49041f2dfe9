#include "transfer/strided/strided.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>
#include <string>
#include <vector>

namespace cachalot::transfer {
namespace {

// All byte addresses of a stream, by the definition of an axis.
std::vector<std::uint64_t> addresses(std::uint64_t base, const std::vector<Axis>& axes,
                                     std::uint64_t run_bytes, std::size_t from = 0) {
  std::vector<std::uint64_t> all;
  if (from == axes.size()) {
    for (std::uint64_t i = 0; i < run_bytes; ++i) all.push_back(base + i);
    return all;
  }
  const Axis& axis = axes[from];
  for (std::uint64_t step = 0; step < axis.count; ++step) {
    const std::uint64_t at = axis.offsets.empty() ? step * axis.stride
                                                  : axis.offsets[step / axis.per_offset] +
                                                        step % axis.per_offset * axis.stride;
    const auto inner = addresses(base + at, axes, run_bytes, from + 1);
    all.insert(all.end(), inner.begin(), inner.end());
  }
  return all;
}

Axis any_axis(std::uint64_t run_bytes) {
  Axis axis;
  axis.count = *rc::gen::inRange<std::uint64_t>(1, 6);
  axis.stride = *rc::gen::elementOf(std::vector<std::uint64_t>{run_bytes, run_bytes * 2, 40, 200});
  if (*rc::gen::inRange(0, 2) == 1) {
    axis.per_offset = *rc::gen::inRange<std::uint64_t>(1, 4);
    const std::uint64_t places = (axis.count - 1) / axis.per_offset + 1;
    for (std::uint64_t i = 0; i < places; ++i)
      axis.offsets.push_back(*rc::gen::inRange<std::uint64_t>(0, 50) * 16);
  }
  return axis;
}

RC_GTEST_PROP(Strided, ACursorVisitsTheBytesThatTheLoopsName, ()) {
  const std::uint64_t run_bytes = *rc::gen::inRange<std::uint64_t>(1, 9);
  std::vector<Axis> axes;
  const int count = *rc::gen::inRange(0, 4);
  for (int i = 0; i < count; ++i) axes.push_back(any_axis(run_bytes));
  const auto expected = addresses(1000, axes, run_bytes);

  const auto stream = Strided::make(1000, axes, run_bytes);
  RC_ASSERT(stream.ok());
  RC_ASSERT(stream->bytes() == expected.size());
  const auto start = *rc::gen::inRange<std::uint64_t>(0, expected.size() + 1);
  StridedCursor cursor(*stream, start);
  std::vector<std::uint64_t> visited;
  for (;;) {
    const std::uint64_t most = *rc::gen::inRange<std::uint64_t>(1, 30);
    const Piece piece = cursor.next(most);
    if (piece.bytes == 0) break;
    RC_ASSERT(piece.bytes <= most);
    for (std::uint64_t i = 0; i < piece.bytes; ++i) visited.push_back(piece.at + i);
    RC_ASSERT(cursor.offset() == start + visited.size());
  }
  RC_ASSERT(visited == std::vector<std::uint64_t>(expected.begin() + start, expected.end()));
  for (const std::uint64_t at : visited) RC_ASSERT(at >= stream->lowest() && at < stream->end());
}

RC_GTEST_PROP(Strided, ACopyBetweenStreamsKeepsTheOrder, ()) {
  const std::uint64_t heads = *rc::gen::inRange<std::uint64_t>(1, 5),
                      tokens = *rc::gen::inRange<std::uint64_t>(1, 9);
  const std::uint64_t bytes = heads * tokens * 4;
  std::vector<std::uint8_t> from(bytes), to(bytes), expected(bytes);
  std::iota(from.begin(), from.end(), 1);
  // From token, head to head, token.
  const auto source =
      Strided::make(reinterpret_cast<std::uintptr_t>(from.data()),
                    {{.count = heads, .stride = 4}, {.count = tokens, .stride = heads * 4}}, 4);
  const auto target =
      Strided::make(reinterpret_cast<std::uintptr_t>(to.data()),
                    {{.count = heads, .stride = tokens * 4}, {.count = tokens, .stride = 4}}, 4);
  RC_ASSERT(source.ok() && target.ok());
  const auto cut = *rc::gen::inRange<std::uint64_t>(0, bytes + 1);
  copy_between(*source, *target, cut, bytes - cut);
  copy_between(*source, *target, 0, cut);
  for (std::uint64_t h = 0; h < heads; ++h) {
    for (std::uint64_t t = 0; t < tokens; ++t) {
      for (int i = 0; i < 4; ++i)
        expected[(h * tokens + t) * 4 + i] = from[(t * heads + h) * 4 + i];
    }
  }
  RC_ASSERT(to == expected);
}

TEST(Strided, WholePagesBecomeOneRunEach) {
  const auto stream = Strided::make(
      0,
      {{.count = 2, .stride = 1 << 20},
       {.count = 64, .stride = 256, .offsets = {8192, 0, 4096, 12288}, .per_offset = 16},
       {.count = 2, .stride = 128}},
      128);
  ASSERT_TRUE(stream.ok());
  EXPECT_EQ(stream->runs(), 8u);
  EXPECT_EQ(stream->run_bytes(), 4096u);
}

TEST(Strided, WhatDoesNotFitIsRefused) {
  const auto refused = [](std::vector<Axis> axes, std::uint64_t run_bytes) {
    const auto stream = Strided::make(0, std::move(axes), run_bytes);
    return stream.ok() ? std::string() : std::string(stream.error().message);
  };
  EXPECT_NE(refused(std::vector<Axis>(7), 1).find("7 axes"), std::string::npos);
  EXPECT_NE(refused({{.count = 0}}, 1).find("0 steps"), std::string::npos);
  EXPECT_NE(refused({}, 0).find("0 bytes"), std::string::npos);
  EXPECT_NE(refused({{.count = 3, .offsets = {1, 2}}}, 1).find("2 offsets"), std::string::npos);
  EXPECT_NE(refused({{.count = 3, .offsets = {1}, .per_offset = 0}}, 1).find("0 steps an offset"),
            std::string::npos);
  const std::uint64_t large = std::uint64_t{1} << 40;
  EXPECT_NE(refused({{.count = large, .stride = large}}, 1).find("63 bits"), std::string::npos);
  EXPECT_NE(refused({{.count = large}, {.count = large}}, 1).find("63 bits"), std::string::npos);
  EXPECT_NE(refused({{.count = 1, .offsets = {~std::uint64_t{0}}}}, 1).find("63 bits"),
            std::string::npos);
}

}  // namespace
}  // namespace cachalot::transfer
