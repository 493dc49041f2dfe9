#include "transfer/strided/byte_stream.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>
#include <string>
#include <vector>

namespace cachalot::transfer {
namespace {

std::vector<std::uint64_t> addresses(StridedCursor cursor) {
  std::vector<std::uint64_t> all;
  for (Piece piece = cursor.next(7); piece.bytes > 0; piece = cursor.next(7)) {
    for (std::uint64_t i = 0; i < piece.bytes; ++i) all.push_back(piece.at + i);
  }
  return all;
}

Strided any_section(std::uint64_t turns) {
  const std::uint64_t run_bytes = *rc::gen::inRange<std::uint64_t>(1, 9);
  const auto stream =
      Strided::make(*rc::gen::inRange<std::uint64_t>(0, 1000),
                    {{.count = turns, .stride = *rc::gen::inRange<std::uint64_t>(0, 500)},
                     {.count = *rc::gen::inRange<std::uint64_t>(1, 5),
                      .stride = *rc::gen::elementOf(std::vector<std::uint64_t>{run_bytes, 30})}},
                    run_bytes);
  RC_ASSERT(stream.ok());
  return *stream;
}

RC_GTEST_PROP(ByteStream, InEachTurnEverySectionGivesItsShare, ()) {
  const auto turns = *rc::gen::inRange<std::uint64_t>(1, 5);
  std::vector<Strided> sections;
  std::vector<std::vector<std::uint64_t>> bytes;
  const int count = *rc::gen::inRange(1, 5);
  for (int i = 0; i < count; ++i) {
    sections.push_back(any_section(turns));
    bytes.push_back(addresses(StridedCursor(sections.back())));
  }
  std::vector<std::uint64_t> expected;
  for (std::uint64_t turn = 0; turn < turns; ++turn) {
    for (const auto& all : bytes) {
      const auto share = static_cast<std::ptrdiff_t>(all.size() / turns);
      const auto first = all.begin() + static_cast<std::ptrdiff_t>(turn) * share;
      expected.insert(expected.end(), first, first + share);
    }
  }

  const auto stream = ByteStream::make(turns, sections);
  RC_ASSERT(stream.ok());
  RC_ASSERT(stream->bytes() == expected.size());
  RC_ASSERT(stream->turn_bytes() * turns == expected.size());
  const auto start = *rc::gen::inRange<std::uint64_t>(0, expected.size() + 1);
  ByteStreamCursor cursor(*stream, start);
  std::vector<std::uint64_t> visited;
  for (;;) {
    const auto most = *rc::gen::inRange<std::uint64_t>(1, 30);
    const Piece piece = cursor.next(most);
    if (piece.bytes == 0) break;
    RC_ASSERT(piece.bytes <= most);
    for (std::uint64_t i = 0; i < piece.bytes; ++i) visited.push_back(piece.at + i);
    RC_ASSERT(cursor.offset() == start + visited.size());
  }
  RC_ASSERT(visited == std::vector<std::uint64_t>(
                           expected.begin() + static_cast<std::ptrdiff_t>(start), expected.end()));
  for (const std::uint64_t at : visited) RC_ASSERT(at >= stream->lowest() && at < stream->end());
}

TEST(ByteStream, OneSectionHasNoSeamsBetweenTurns) {
  const auto strided = Strided::make(0, {{.count = 4, .stride = 100}}, 100);
  ASSERT_TRUE(strided.ok());
  const auto stream = ByteStream::make(4, {*strided});
  ASSERT_TRUE(stream.ok());
  EXPECT_EQ(stream->turn_bytes(), 100u);
  EXPECT_EQ(ByteStreamCursor(*stream).next(1000).bytes, 400u);
}

TEST(ByteStream, AnEmptyStreamHasNoPieces) {
  const ByteStream none, empty(Strided::flat(&none, 0));
  EXPECT_EQ(ByteStreamCursor(none).next(1).bytes, 0u);
  EXPECT_EQ(ByteStreamCursor(empty).next(1).bytes, 0u);
  EXPECT_EQ(none.turn_bytes() + none.runs() + none.lowest() + none.end(), 0u);
}

TEST(ByteStream, ACopyTakesSectionsApart) {
  std::vector<char> from(12), to(12, 0);
  std::iota(from.begin(), from.end(), 'a');
  // Turns of two bytes of the first half and one of each of the second.
  const ByteStream source = Strided::flat(from.data(), 12);
  const auto target =
      ByteStream::make(4, {Strided::flat(to.data(), 8), Strided::flat(to.data() + 8, 4)});
  ASSERT_TRUE(target.ok());
  copy_between(source, *target, 5, 7);
  copy_between(source, *target, 0, 5);
  EXPECT_EQ(std::string(to.begin(), to.end()), "abdeghjkcfil");
}

TEST(ByteStream, WhatDoesNotFitIsRefused) {
  const auto refused = [](std::uint64_t turns, std::vector<Strided> sections) {
    const auto stream = ByteStream::make(turns, std::move(sections));
    return stream.ok() ? std::string() : std::string(stream.error().message);
  };
  const Strided six = Strided::flat(nullptr, 6);
  EXPECT_NE(refused(0, {six}).find("0 turns"), std::string::npos);
  EXPECT_NE(refused(1, {}).find("0 sections"), std::string::npos);
  EXPECT_NE(refused(1, std::vector<Strided>(kMostSections + 1, six)).find("65 sections"),
            std::string::npos);
  EXPECT_NE(refused(4, {six}).find("6 bytes"), std::string::npos);
  EXPECT_NE(refused(1, {Strided()}).find("0 bytes"), std::string::npos);
  const Strided large = Strided::flat(nullptr, std::uint64_t{1} << 62);
  EXPECT_NE(refused(1, {large, large}).find("63 bits"), std::string::npos);
}

}  // namespace
}  // namespace cachalot::transfer
