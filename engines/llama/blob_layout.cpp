#include "blob_layout.h"

#include <cinttypes>
#include <cstring>

namespace cachalot::llama {
namespace {

constexpr std::uint64_t kStreamsAt = 8, kCellsAt = 12, kFirstCellAt = 16, kCellBytes = 12,
                        kSectionBytes = 12;

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

Error unknown(const char* what, std::uint64_t value, std::uint64_t expected) {
  return Error::make(Code::kUnsupported,
                     "the format of a sequence's state is unknown: %s is %" PRIu64
                     ", expected %" PRIu64,
                     what, value, expected);
}

}  // namespace

std::uint32_t streams_of(std::span<const std::byte> blob) {
  return blob.size() < kStreamsAt + 4 ? 0 : load<std::uint32_t>(blob.data() + kStreamsAt);
}

Result<BlobLayout> BlobLayout::learn(std::span<const std::byte> blob, std::uint32_t block_tokens) {
  BlobLayout layout;
  const std::byte* const data = blob.data();
  const std::uint64_t head = kFirstCellAt + kCellBytes * std::uint64_t{block_tokens};
  if (blob.size() < head + 8) return unknown("its length", blob.size(), head + 8);
  layout.magic_ = load<std::uint32_t>(data);
  if (streams_of(blob) != 1) return unknown("the number of streams", streams_of(blob), 1);
  layout.cells_ = load<std::uint32_t>(data + kCellsAt);
  if (layout.cells_ != block_tokens)
    return unknown("the number of cells", layout.cells_, block_tokens);
  const auto transposed = load<std::uint32_t>(data + head);
  if (transposed == 1) {
    return Error::make(Code::kUnsupported, "V is transposed: enable flash attention");
  }
  if (transposed != 0) return unknown("the flag that V is transposed", transposed, 0);
  layout.layers_ = load<std::uint32_t>(data + head + 4);
  std::uint64_t at = head + 8;
  while (at < blob.size()) {
    if (blob.size() - at < kSectionBytes)
      return unknown("the length after its last layer", blob.size() - at, 0);
    const Section section{at, load<std::int32_t>(data + at), load<std::uint64_t>(data + at + 4)};
    const std::uint64_t room = blob.size() - at - kSectionBytes;
    if (section.row_bytes == 0 || section.row_bytes > room / block_tokens) {
      return unknown("the length of a row", section.row_bytes, room / block_tokens);
    }
    layout.sections_.push_back(section);
    at += kSectionBytes + section.row_bytes * block_tokens;
  }
  const std::size_t sections = layout.sections_.size();
  if (layout.layers_ == 0 ||
      (sections != 2 * std::size_t{layout.layers_} && sections != layout.layers_)) {
    return unknown("the number of K and V parts", sections, 2 * std::uint64_t{layout.layers_});
  }
  layout.bytes_ = blob.size();
  if (!layout.holds(data, 0)) return unknown("the position of a cell", 1, 0);
  return layout;
}

std::string BlobLayout::describe() const {
  std::string text = std::to_string(layers_) + " layers";
  for (const Section& section : sections_) {
    text += " " + std::to_string(section.type) + "x" + std::to_string(section.row_bytes);
  }
  return text;
}

bool BlobLayout::holds(const std::byte* blob, std::int64_t position) const {
  if (load<std::uint32_t>(blob) != magic_ || load<std::uint32_t>(blob + kStreamsAt) != 1 ||
      load<std::uint32_t>(blob + kCellsAt) != cells_) {
    return false;
  }
  const std::byte* cell = blob + kFirstCellAt;
  for (std::uint32_t i = 0; i < cells_; ++i, cell += kCellBytes) {
    if (load<std::int32_t>(cell) != position + i || load<std::uint32_t>(cell + 4) != 1)
      return false;
  }
  if (load<std::uint32_t>(cell) != 0 || load<std::uint32_t>(cell + 4) != layers_) return false;
  for (const Section& section : sections_) {
    if (load<std::int32_t>(blob + section.offset) != section.type ||
        load<std::uint64_t>(blob + section.offset + 4) != section.row_bytes) {
      return false;
    }
  }
  return true;
}

}  // namespace cachalot::llama
