// Reads pickles of protocols 0 to 5 without running anything that is in them.
//
// A pickle is a program for a stack machine, and Python's own reader calls whatever the program names. This
// one knows the instructions that make data (None, bool, int, float, str, bytes, list, tuple, set, dict,
// and the memo that shares them) and ends at any other: the worst that a file can do is to be refused.
//
// 1. Every length is checked against the bytes that are left before it is used.
// 2. Memory is bounded by the file and by the limits of PickleStack.
// 3. Nothing recurses, so nesting costs nothing.
// 4. Text is neither decoded nor checked: that of protocol 0 keeps its escapes.
//
// @source CPython's Lib/pickletools.py, PEP 307, PEP 3154, PEP 574
#pragma once

#include <cachalot/result.h>

#include <cstddef>
#include <string>
#include <vector>

#include "trace/allocation/pickle_value.h"

namespace cachalot::trace {

constexpr std::size_t kMaxPickleBytes = std::size_t{2} << 30;  // inflated

// A file, plain or gzip, held in memory with what is in it.
// @errors as ByteSource::open; kBadInput: "file: byte N: what stands there and what was expected"
Result<PickleDocument> read_pickle(const std::string& path);

// @errors kBadInput: "byte N: …"
Result<PickleDocument> parse_pickle(std::vector<char> bytes);

}  // namespace cachalot::trace
