// What happens in an allocation trace: a block of device memory is allocated or freed, or an iteration
// of the program begins; and the line of text that says so.
//
//   a ID BYTES [STREAM]   allocates; STREAM is 0 where none is named
//   f ID                  frees, on the stream of the allocation
//   m TEXT                marks the beginning of an iteration
//
// Fields are decimal and stand apart by spaces or tabs. Blank lines and lines that begin with # say
// nothing. An id names one live block at a time: when it was freed, another may get it.
#pragma once

#include <cachalot/result.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cachalot::trace {

constexpr std::size_t kMaxAllocLineBytes = 4096;
constexpr std::uint64_t kMaxAllocBytes = std::uint64_t{1} << 63;  // of one block
constexpr std::uint32_t kMaxAllocStream = 65535;  // so that arrays by stream are small

enum class AllocKind : std::uint8_t { kAllocate, kFree, kMark };

struct AllocEvent {
  AllocKind kind = AllocKind::kMark;
  std::uint32_t stream = 0;  // of a free, the stream, bytes and slot are those of its allocation
  std::uint64_t id = 0;
  std::uint64_t bytes = 0;
  std::uint64_t slot = 0;      // the block's place among the live ones, as LiveBlocks gives it
  std::uint64_t line = 0;      // counted from 1; 0 where the event is from no file
  std::string_view text = {};  // of a mark; as long as its source says
};

// Reads what stands in the line; slot and line, and of a free stream and bytes, are left to the caller.
// False: it says nothing.
// @errors kBadInput: what stands there and what was expected
Result<bool> parse_alloc_line(std::string_view line, AllocEvent& event);

// One line with its line feed, appended. A mark's text is written as far as it can be read again:
// without what follows a line feed, and at most kMaxAllocLineBytes with the line.
void append_alloc_line(const AllocEvent& event, std::string& to);

}  // namespace cachalot::trace
