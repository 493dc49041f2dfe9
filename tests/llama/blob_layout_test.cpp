#include "blob_layout.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace cachalot::llama {
namespace {

constexpr std::uint32_t kCells = 4, kLayers = 2, kRowBytes = 6;

class Writer {
 public:
  template <class T>
  Writer& add(T value) {
    const auto* const at = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), at, at + sizeof value);
    return *this;
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

struct Shape {
  std::uint32_t streams = 1, cells = kCells, transposed = 0, layers = kLayers,
                sections = 2 * kLayers;
  std::int32_t first_position = 0;
};

std::vector<std::byte> blob_of(const Shape& shape) {
  Writer writer;
  writer.add(std::uint32_t{0xaf143cd8}).add(std::int32_t{3}).add(shape.streams).add(shape.cells);
  for (std::uint32_t i = 0; i < shape.cells; ++i) {
    writer.add(shape.first_position + static_cast<std::int32_t>(i))
        .add(std::uint32_t{1})
        .add(std::int32_t{3});
  }
  writer.add(shape.transposed).add(shape.layers);
  for (std::uint32_t i = 0; i < shape.sections; ++i) {
    writer.add(std::int32_t{1}).add(std::uint64_t{kRowBytes});
    for (std::uint32_t byte = 0; byte < kCells * kRowBytes; ++byte)
      writer.add(static_cast<std::uint8_t>(byte * 7 + i));
  }
  return writer.take();
}

TEST(BlobLayout, HoldsBlocksOfItsOwnFormAtTheirPositions) {
  const auto layout = BlobLayout::learn(blob_of({}), kCells);
  ASSERT_TRUE(layout) << layout.error().message;
  EXPECT_EQ(layout->bytes(), blob_of({}).size());
  EXPECT_EQ(layout->describe(), "2 layers 1x6 1x6 1x6 1x6");
  const std::vector<std::byte> later = blob_of({.first_position = 8});
  EXPECT_TRUE(layout->holds(later.data(), 8));
  EXPECT_FALSE(layout->holds(later.data(), 4));
  EXPECT_FALSE(layout->holds(later.data(), 9));
}

TEST(BlobLayout, KnowsModelsWhoseKeysHoldTheirValues) {
  EXPECT_TRUE(BlobLayout::learn(blob_of({.sections = kLayers}), kCells));
}

// Every byte that is not of a row, the sequence's number or the magic's own is checked.
TEST(BlobLayout, HoldsNoBlockWithAnotherByteInItsHeaders) {
  const std::vector<std::byte> good = blob_of({});
  const auto layout = BlobLayout::learn(good, kCells);
  ASSERT_TRUE(layout);
  const std::size_t head = 16 + 12 * kCells + 8, section = 12 + kCells * kRowBytes;
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::vector<std::byte> bad = good;
    bad[at] ^= std::byte{0x10};
    const bool is_sequence =
        (at >= 4 && at < 8) || (at >= 16 && at < 16 + 12 * kCells && (at - 16) % 12 >= 8);
    const bool is_row = at >= head && (at - head) % section >= 12;
    EXPECT_EQ(layout->holds(bad.data(), 0), is_sequence || is_row) << "byte " << at;
  }
}

TEST(BlobLayout, IsNotLearntFromOtherForms) {
  const auto refusal = [](const Shape& shape) {
    const auto layout = BlobLayout::learn(blob_of(shape), kCells);
    return std::string(layout ? "" : layout.error().message);
  };
  EXPECT_NE(refusal({.streams = 2}).find("streams is 2"), std::string::npos);
  EXPECT_NE(refusal({.cells = 3}).find("cells"), std::string::npos);
  EXPECT_NE(refusal({.transposed = 1}).find("flash attention"), std::string::npos);
  EXPECT_NE(refusal({.transposed = 2}).find("transposed is 2"), std::string::npos);
  EXPECT_NE(refusal({.sections = 3}).find("K and V parts is 3"), std::string::npos);
  EXPECT_NE(refusal({.first_position = 1}).find("position"), std::string::npos);
}

TEST(BlobLayout, IsNotLearntFromPartsOfABlock) {
  const std::vector<std::byte> good = blob_of({});
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes) {
    // Cut behind a whole layer it is a block of fewer parts, which is seen by their number.
    EXPECT_FALSE(BlobLayout::learn(std::span(good).first(bytes), kCells) &&
                 bytes != 16 + 12 * kCells + 8 + 2 * (12 + kCells * kRowBytes))
        << bytes;
  }
}

}  // namespace
}  // namespace cachalot::llama
